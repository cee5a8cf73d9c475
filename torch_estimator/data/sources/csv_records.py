"""The records of CSV files, which may have newlines in quoted fields, as ranges that can be read in any order.

Ranges are read line by line, as those of other text files are, until quotes in one of them show that a record of the
file may have several lines, or lines cannot be parsed. From then on, the file's records are found from its beginning
on. Other files are thus neither read twice nor slower. What this does not see: if a range lies within one record, each
of its lines has as many fields as a row, and it is read before the range where the record begins, then its lines are
taken for rows.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torch_estimator.data.columns import Array
from torch_estimator.data.sources.csv_format import DELIMITERS, CsvFormat
from torch_estimator.data.sources.csv_parser import open_quote_problem
from torch_estimator.data.sources.input_files import ByteFile
from torch_estimator.data.sources.text_lines import (
    BYTE_ORDER_MARK,
    MOST_LINE_BYTES,
    LineRanges,
    Piece,
    count_lines,
    first_line,
    named_line,
    too_long,
)
from torch_estimator.errors import DataError

logger = logging.getLogger("torch_estimator")


class CsvRecords:
    """The positions at which a file's records begin. They are found as far into the file as is asked, and kept.

    A record ends at a newline that is in no quoted field. Where a quote does not end within 64 MiB, or at all, its line
    is the end of a wrong record. With `gives_up` no records are found after the first such one, which stands for them.
    """

    def __init__(self, file: ByteFile, first: int, form: CsvFormat, step: int, *, gives_up: bool = False) -> None:
        self._file = file
        self._first = first
        self._step = step
        self._form = form
        self._gives_up = gives_up
        # The beginnings of some records: about one for each range.
        self._known = [first]
        # The answers of `start` for the beginnings of ranges, each `step` bytes.
        self._start = {first: first}
        # The records with a quote that does not end: where it is, and the beginning of the record after its line.
        self._opened: dict[int, tuple[int, int]] = {}

    def start(self, position: int) -> int:
        """Return the beginning of the first record at or after a position, or the end of the file."""
        if position in self._start:
            return self._start[position]
        at = self._known[max(bisect_right(self._known, position) - 1, 0)]
        while at < position and not (self._gives_up and self._opened):
            starts = self._starts_after(at)
            if starts[-1] > self._known[-1]:
                self._known.append(int(starts[-1]))
                ranges = np.arange(at + self._step - (at - self._first) % self._step, starts[-1] + 1, self._step)
                self._start.update(zip(ranges.tolist(), starts[np.searchsorted(starts, ranges)].tolist(), strict=True))
            following = int(np.searchsorted(starts, position))
            at = int(starts[min(following, len(starts) - 1)])
        return at

    def pieces(self, number: int, start: int, stop: int) -> list[Piece]:
        """Return the records that begin between two positions; those whose quote does not end are pieces of their own.

        `number` is that of the file.
        """
        begin, end = self.start(start), self.start(stop)
        for at, (_, following) in self._opened.items() if self._gives_up else ():
            begin, end = min(begin, at), min(end, following)
        data = memoryview(self._file.read(begin, end))
        pieces = []
        for at in sorted(at for at in self._opened if begin <= at < end):
            opened, following = self._opened[at]
            wrong = _piece(number, at, data[at - begin : following - begin], opened)
            pieces += [_piece(number, begin, data[: at - begin]), wrong]
            begin, data = following, data[following - begin :]
        return [piece for piece in (*pieces, _piece(number, begin, data)) if len(piece.data)]

    def _starts_after(self, at: int) -> Array:
        """Return one or more beginnings of records after the one at `at`, in order, or the end of the file."""
        size = self._file.range_bytes
        while True:
            data = self._file.read(at, at + size)
            ends = self._form.ends(data)
            if len(ends):
                return at + ends
            is_last = at + len(data) >= self._file.size
            if is_last or size == MOST_LINE_BYTES:
                break
            size = min(2 * size, MOST_LINE_BYTES)
        opened = self._form.opening(data)
        if opened is None and is_last:
            return np.array([self._file.size])
        if opened is None:
            raise too_long(self._file, count_lines(self._file, at) + 1)
        following = at + (data.find(b"\n", opened) + 1 or len(data))
        self._opened[at] = at + opened, following
        return np.array([following])


class CsvRanges(LineRanges):
    """The records of several files, in numbered ranges. A record belongs to the range in which it begins."""

    def __init__(
        self, opened: Sequence[ByteFile], starts: Sequence[int], form: CsvFormat, *, gives_up: bool = False
    ) -> None:
        super().__init__(opened, starts)
        self._form = form
        self._gives_up = gives_up
        # The files that are not read line by line.
        self._records: dict[int, CsvRecords] = {}

    def read(self, ranges: Array) -> list[Piece]:
        """Return the records of some ranges, in their order."""
        return [piece for pieces in self.in_order(ranges, self._read_records) for piece in pieces if len(piece.data)]

    def between(self, number: int, start: int, stop: int) -> list[Piece]:
        """Return the records of a file that begin between two positions, however the file is divided."""
        return [piece for piece in self._read_records(number, [(start, stop)])[0] if len(piece.data)]

    def look_closer(self, pieces: Sequence[Piece]) -> bool:
        """Switch the files of pieces that cannot be parsed from lines to records; return whether one has changed."""
        new = {piece.file for piece in pieces} - {*self._records} if self._form.quote_char is not None else set()
        for number in new:
            self._find_records(number)
        return bool(new)

    def _read_records(self, number: int, runs: Sequence[tuple[int, int]]) -> list[list[Piece]]:
        if number not in self._records:
            try:
                lines = self._read_file(number, runs)
                if all(self._form.is_by_line(piece.data) for piece in lines):
                    return [[piece] for piece in lines]
            except DataError:
                # If a line is too long because a quote does not end, the message is about the quote.
                if self._form.quote_char is None:
                    raise
            self._find_records(number)
        return [self._records[number].pieces(number, start, stop) for start, stop in runs]

    def _find_records(self, number: int) -> None:
        self._records[number] = CsvRecords(
            self._files[number], self._first[number], self._form, self._step, gives_up=self._gives_up
        )


def first_record(file: ByteFile, form: CsvFormat) -> tuple[int, bytes]:
    """Return where the first record of a file begins, after a byte order mark, and the record.

    Raise a DataError if it has a quote that does not end.
    """
    line = first_line(file)
    start = len(BYTE_ORDER_MARK) if line.startswith(BYTE_ORDER_MARK) else 0
    if form.opening(line[start:]) is None:
        return start, line[start:]
    piece = CsvRecords(file, start, form, file.range_bytes).pieces(0, start, start + 1)[0]
    if piece.opened is not None:
        raise DataError(f"{named_line(file, piece.opened)}: {open_quote_problem(None)}.")
    return start, form.records(piece.data)[0]


def found_delimiter(
    form: CsvFormat, file: ByteFile, names: Sequence[str] | None, *, without: str | None = None
) -> CsvFormat:
    """Return the format with another usual delimiter, if only that divides the first two records into equal columns.

    `names` are the columns, or None if the first record has them. `without` is no delimiter.
    """
    data = file.read(0, file.range_bytes).removeprefix(BYTE_ORDER_MARK)
    first = form.records(data)[:1]
    if not first or len(form.fields(first[0].decode("latin-1"))) > 1:
        return form
    for delimiter in DELIMITERS:
        other = replace(form, delimiter=delimiter)
        fields = [other.fields(record.decode("latin-1")) for record in other.records(data)[:2] if record.strip()]
        counts = {len(one) for one in fields} | ({len(names)} if names is not None else set())
        if delimiter not in (without, form.delimiter, form.quote_char) and len(counts) == 1 and counts != {1}:
            logger.warning(
                "%s is read with %r between its columns, as its first lines have no %r; give delimiter=%r to say so.",
                *(file.url, delimiter, form.delimiter, delimiter),
            )
            return other
    return form


def _piece(number: int, start: int, data: memoryview, opened: int | None = None) -> Piece:
    is_cut = len(data) > 0 and data[-1] != ord("\n")
    return Piece(number, start, bytes(data) + b"\n" if is_cut else data, opened)
