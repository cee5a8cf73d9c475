"""Text files: reading ranges of whole lines, and errors that name the file and line.

The CSV and JSON sources share this module: random access by ranges, and the search for the line that a parser refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data.columns import Array
from torch_estimator.data.sources.byte_ranges import ByteRanges
from torch_estimator.data.sources.input_files import ByteFile, convert_file, open_byte_file
from torch_estimator.data.sources.left_out import Damage, reason, wrong_rows
from torch_estimator.data.sources.text_encoding import HEAD_BYTES, check_readable, compression, decoded, unpacked
from torch_estimator.errors import DataError, RowError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_SLACK_BYTES = 4096
_COUNT_BYTES = 2**22
MOST_LINE_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive whole lines of a file, of which the first begins at the byte `start`.

    The last ends with a newline. `opened` is the place of a quote that does not end: the piece is then a wrong record
    of CSV, up to the end of the line with this quote.
    """

    file: int
    start: int
    data: bytes | memoryview
    opened: int | None = None


def joined(pieces: Sequence[Piece]) -> bytes | memoryview:
    """Return the lines of all pieces. Raise ArrowInvalid if one has a quote that does not end."""
    if any(piece.opened is not None for piece in pieces):
        raise pa.ArrowInvalid("A quoted field does not end")
    return pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)


class LineRanges(ByteRanges):
    """The lines of several files, divided into small numbered ranges. A line belongs to the range in which it begins.

    `starts` are the positions in the files at which the first line begins, after a header.
    """

    def __init__(self, opened: Sequence[ByteFile], starts: Sequence[int]) -> None:
        super().__init__(opened, starts)
        self._first = starts

    def read(self, ranges: Array) -> list[Piece]:
        """Return the lines of some ranges, in their order.

        Those of neighboring ranges are read at once, as one `Piece`.
        """
        return [piece for piece in self.in_order(ranges, self._read_file) if len(piece.data)]

    def look_closer(self, pieces: Sequence[Piece]) -> bool:
        """Return whether the lines of these pieces, which cannot be parsed, may be others if they are read again."""
        return False

    def sample(self) -> list[Piece]:
        """Return the lines of the first range with a line that is not blank. If there is none, return no lines."""
        for number in range(len(self)):
            pieces = self.read(np.array([number]))
            if any(bytes(piece.data).strip() for piece in pieces):
                return pieces
        return []

    def _read_file(self, number: int, runs: Sequence[tuple[int, int]]) -> list[Piece]:
        file, first = self._files[number], self._first[number]
        # Also read the byte before `start`, to see whether a line begins exactly at `start`. Read some bytes after
        # `stop`, too, which hold the rest of the last line.
        wide = [(max(start - 1, first), stop + _SLACK_BYTES) for start, stop in runs]
        return [
            _lines(file, number, data, begin, start, stop, at_start=start == first)
            for (start, stop), (begin, _), data in zip(runs, wide, file.read_many(wide), strict=True)
        ]


def read_lines(file: ByteFile, start: int, stop: int, *, first: int) -> Piece:
    """Return the lines of a file that begin between two positions, however the file is divided.

    Lines from the byte `stop` on belong to the next part. The first line of the file begins at the byte `first`.
    """
    # Also read the byte before `start`, to see whether a line begins exactly at `start`. Read some bytes after `stop`,
    # too, which hold the rest of the last line.
    begin = max(start - 1, first)
    data = file.read(begin, stop + _SLACK_BYTES)
    return _lines(file, 0, data, begin, start, stop, at_start=start == first)


def _lines(file: ByteFile, number: int, data: bytes, begin: int, start: int, stop: int, *, at_start: bool) -> Piece:
    """Return the lines of a file that begin between the byte positions `start` and `stop`.

    `data` are the bytes of the file from `begin` to a little after `stop`. `at_start` says whether `start` is the
    beginning of the first line of the file.
    """
    cut = 0 if at_start else data.find(b"\n") + 1
    if (cut == 0 and not at_start) or begin + cut >= stop:
        return Piece(number, start, b"")
    end = data.find(b"\n", stop - 1 - begin)
    while end < 0 and begin + len(data) < file.size:
        # The last line is longer than the bytes that were read after the range. Read more until the line ends.
        known = len(data)
        if known > stop - begin + MOST_LINE_BYTES:
            raise too_long(file, count_lines(file, stop) + 1)
        data += file.read(begin + known, begin + known + max(known, _SLACK_BYTES))
        end = data.find(b"\n", known)
    if end >= 0:
        return Piece(number, begin + cut, memoryview(data)[cut : end + 1])
    return Piece(number, begin + cut, data[cut:] + b"\n")


def open_text_file(path: str, encoding: str | None = None) -> ByteFile:
    """Open a text file. One that is compressed, as its first bytes tell, or in another encoding is converted to UTF-8.

    `encoding` is a name of `check_encoding`; None is UTF-8 without a choice. Raise a DataError if the file cannot be
    read, is empty, or is compressed or encoded in an unsupported way.
    """
    file = open_byte_file(path, unpack=False)
    if file.size == 0:
        raise DataError(f"{path} is empty.")
    head = file.read(0, HEAD_BYTES)
    kind = compression(head) or ("gzip" if path.endswith(".gz") else None)
    if kind is not None:
        file = convert_file(path, lambda packed: unpacked(path, packed, kind))
        head = file.read(0, HEAD_BYTES)
    check_readable(path, head, encoding)
    if encoding in (None, "utf-8"):
        return file
    return convert_file(path, lambda packed: decoded(path, unpacked(path, packed, kind), str(encoding)))


def named_files(opened: Sequence[ByteFile]) -> str:
    """Return the name of the first file and the number of further files, as text for messages."""
    more = len(opened) - 1
    return opened[0].url + (f" (and {more} more file{'s' if more > 1 else ''})" if more else "")


def named_line(file: ByteFile, offset: int) -> str:
    """Return the name of a file and the number of the line that begins at an offset, as text for messages."""
    return f"{file.url}, line {count_lines(file, offset) + 1}"


def count_lines(file: ByteFile, stop: int) -> int:
    """Return the number of lines that end before `stop`. A carriage return ends a line, with or without a newline."""
    lines, last = 0, b""
    for start in range(0, stop, _COUNT_BYTES):
        data = last + file.read(start, min(start + _COUNT_BYTES, stop))
        # Count the last byte with the next block. If the last byte is a carriage return and the next block begins
        # with a newline, the two bytes are a single line end.
        last = data[-1:]
        lines += _ends(data) - _ends(last)
    return lines + _ends(last)


def _ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def first_line(file: ByteFile) -> bytes:
    """Return the first line of a file, including its line end."""
    data = b""
    # Read on if the last byte is a carriage return, because a newline that belongs to the same line end may follow.
    while not _ends(data[:-1]) and not data.endswith(b"\n") and len(data) < file.size:
        if len(data) > MOST_LINE_BYTES:
            raise too_long(file, 1)
        data += file.read(len(data), len(data) + max(len(data), _SLACK_BYTES))
    return data.splitlines(keepends=True)[0] if data else data


def too_long(file: ByteFile, line: int) -> DataError:
    """Return the error for a line that does not end."""
    return DataError(
        f"{file.url}, line {line}: no newline ends the line within {MOST_LINE_BYTES >> 20} MiB; see whether the file "
        "is the text that it should be, and end each line with a newline."
    )


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines, each with its end."""
    return data.splitlines(keepends=True)


class LineLocator:
    """Search for the file and line of a row or a parse error. The search is slow, and only for error messages.

    The pieces are the lines of the window, in order. `parse` raises `pyarrow.ArrowInvalid` if it cannot parse lines;
    `problem` returns what is wrong with a line, given the line and that error. `blank` are the characters that a line
    without a row consists of. `split` divides text into the lines of one row each.
    """

    def __init__(
        self,
        files: Sequence[ByteFile],
        pieces: Sequence[Piece],
        parse: Callable[[bytes], Any],
        problem: Callable[[bytes, pa.ArrowInvalid], str],
        blank: bytes = b"\r\n",
        split: Callable[[bytes], Sequence[bytes]] = split_lines,
    ) -> None:
        self._files = files
        self._pieces = pieces
        self._parse = parse
        self._problem = problem
        self._split = split
        self._blank = blank

    def locate(self, row: int) -> str:
        """Return the file and the line (from 1) of a row. Blank lines count as lines, but hold no rows."""
        filled = (line for line in self._lines() if bytes(line.data).strip(self._blank))
        for _ in range(row):
            next(filled, None)
        where = next(filled, None)
        return self._files[0].url if where is None else self._named(where)

    def error(self, error: RowError | pa.ArrowInvalid) -> DataError:
        """Convert an error about the lines to a `DataError` that names the file and line."""
        return self.row_error(error) if isinstance(error, RowError) else self.parse_error(error)

    def row_error(self, error: RowError) -> DataError:
        """Convert an error about a value in one row to a `DataError` that names the file and line."""
        return DataError(f"{self.locate(error.row)}: column {error.column!r}: {error.problem}.")

    def parse_error(self, error: pa.ArrowInvalid) -> DataError:
        """Return a `DataError` with the file and line of the first line that cannot be parsed.

        Arrow raised `error` for the whole window.
        """
        lines = list(self._lines())
        # Bisect the lines: all lines before `good` can be parsed, and a line between `good` and `bad` cannot.
        good, bad = 0, len(lines)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._can_parse(lines[good:middle]):
                good = middle
            else:
                bad = middle
        return DataError(f"{self._named(lines[good])}: {self._problem(bytes(lines[good].data), error)}.")

    def without_wrong(self, use: Callable[[bytes], object]) -> tuple[list[Piece], list[Damage]]:
        """Return the lines that can be used, and for each other line where it begins and why it cannot.

        `use` is called with lines; it raises `RowError` or `pyarrow.ArrowInvalid` if one cannot be used.
        """
        lines = list(self._lines())
        wrong = wrong_rows(len(lines), lambda start, stop: use(bytes(joined(lines[start:stop]))))
        kept = [line for number, line in enumerate(lines) if number not in wrong]
        return kept, [self._damage(lines[number], error) for number, error in wrong.items()]

    def _damage(self, line: Piece, error: RowError | pa.ArrowInvalid) -> Damage:
        problem = reason(error) if isinstance(error, RowError) else self._problem(bytes(line.data), error)
        return line.file, line.start if line.opened is None else line.opened, problem

    def _lines(self) -> Iterator[Piece]:
        """Yield every line as a piece."""
        for piece in self._pieces:
            start = piece.start
            for line in (bytes(piece.data),) if piece.opened is not None else self._split(bytes(piece.data)):
                yield Piece(piece.file, start, line, piece.opened)
                start += len(line)

    def _named(self, line: Piece) -> str:
        return named_line(self._files[line.file], line.start if line.opened is None else line.opened)

    def _can_parse(self, lines: Sequence[Piece]) -> bool:
        try:
            self._parse(bytes(joined(lines)))
        except pa.ArrowInvalid:
            return False
        return True


def first_words(error: pa.ArrowException) -> str:
    """Return the first line of an error message of Arrow."""
    return str(error).splitlines()[0].rstrip(".")


def type_in_words(kind: pa.DataType) -> str:
    """Return what a column of a type holds, with an article, such as "a whole number (int64)"."""
    if pa.types.is_dictionary(kind):
        return "UTF-8 text"
    if pa.types.is_integer(kind):
        return f"a whole number ({kind})"
    return "true or false" if pa.types.is_boolean(kind) else f"a number ({kind})"


def is_finite(array: pa.Array) -> bool:
    """Return whether all numbers are finite; nulls are ignored."""
    # Computing the sum is several times faster than `pc.is_finite`. If the sum is finite, all numbers are finite.
    total = pc.sum(array).as_py()
    return total is None or math.isfinite(total) or bool(pc.all(pc.is_finite(array)).as_py())


def check_finite(array: pa.Array, name: str, default: object, filled: Container[str]) -> None:
    """Raise ArrowInvalid if a number of the column `name` is not finite, unless its default is NaN.

    The model fills NaN in the columns `filled`, so that NaN is a missing value there.
    """
    if (isinstance(default, float) and math.isnan(default)) or is_finite(array):
        return
    if name not in filled or pc.any(pc.is_inf(array)).as_py():
        raise pa.ArrowInvalid(f"A number of column {name} is not finite")
