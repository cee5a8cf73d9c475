"""Pieces of text files that begin and end where lines do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torch_estimator.data.byte_files import ByteFile, open_byte_file
from torch_estimator.data.columns import Array
from torch_estimator.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_SLACK_BYTES = 4096
_COUNT_BYTES = 2**22
_MOST_RANGES = 2**18


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of a file.

    Attributes:
        file: Number of the file.
        start: Where in the file the first line begins.
        data: The bytes; the last line ends with a newline.
    """

    file: int
    start: int
    data: bytes | memoryview


class LineRanges:
    """The lines of several files in small numbered ranges: a range has the lines that begin in it.

    Args:
        opened: The files.
        starts: Where in each file the first line begins, after a header.
    """

    def __init__(self, opened: Sequence[ByteFile], starts: Sequence[int]) -> None:
        self._files = opened
        self._first = starts
        total = sum(file.size for file in opened)
        step = max([file.range_bytes for file in opened] + [-(-total // _MOST_RANGES)])
        files: list[Array] = []
        begins: list[Array] = []
        for number, (file, first) in enumerate(zip(opened, starts, strict=True)):
            begin = np.arange(first, file.size, step, dtype=np.int64)
            files.append(np.full(len(begin), number, dtype=np.int32))
            begins.append(begin)
        self._file = np.concatenate(files)
        self._begin = np.concatenate(begins)
        self._step = step
        self.bytes = total - sum(starts)

    def __len__(self) -> int:
        return len(self._file)

    def read(self, ranges: Array) -> list[Piece]:
        """Returns the lines of the ranges with these numbers; neighbours are read at once."""
        runs = list(self._runs(ranges))
        pieces: list[Piece | None] = [None] * len(runs)
        by_file: dict[int, list[int]] = {}
        for place, (file, _, _) in enumerate(runs):
            by_file.setdefault(file, []).append(place)
        for file, places in by_file.items():
            for place, piece in zip(places, self._read_file(file, [runs[i][1:] for i in places]), strict=True):
                pieces[place] = piece
        return [piece for piece in pieces if piece is not None and len(piece.data)]

    def sample(self) -> list[Piece]:
        """Returns the first range that has more than blank lines; nothing if none has."""
        for number in range(len(self)):
            pieces = self.read(np.array([number]))
            if pieces and bytes(pieces[0].data).strip():
                return pieces
        return []

    def _runs(self, ranges: Array) -> Iterator[tuple[int, int, int]]:
        """Yields file, start and stop of every run of neighbours."""
        if not len(ranges):
            return
        files = self._file[ranges]
        breaks = np.flatnonzero((np.diff(ranges) != 1) | (np.diff(files) != 0)) + 1
        for first, last in zip([0, *breaks], [*breaks, len(ranges)], strict=True):
            file = int(files[first])
            start = int(self._begin[ranges[first]])
            yield file, start, min(int(self._begin[ranges[last - 1]]) + self._step, self._files[file].size)

    def _read_file(self, number: int, runs: Sequence[tuple[int, int]]) -> list[Piece]:
        file, first = self._files[number], self._first[number]
        # One byte before, to see whether a line begins at the start; some after, for the end of the last line.
        wide = [(max(start - 1, first), stop + _SLACK_BYTES) for start, stop in runs]
        return [
            _lines(file, number, data, begin, start, stop, at_start=start == first)
            for (start, stop), (begin, _), data in zip(runs, wide, file.read_many(wide), strict=True)
        ]


def _lines(file: ByteFile, number: int, data: bytes, begin: int, start: int, stop: int, *, at_start: bool) -> Piece:
    """Returns the lines that begin in ``start:stop``; ``data`` is what the file holds from ``begin`` on."""
    cut = 0 if at_start else data.find(b"\n") + 1
    if (cut == 0 and not at_start) or begin + cut >= stop:
        return Piece(number, start, b"")
    end = data.find(b"\n", stop - 1 - begin)
    while end < 0 and begin + len(data) < file.size:
        known = len(data)
        data += file.read(begin + known, begin + known + max(known, _SLACK_BYTES))
        end = data.find(b"\n", known)
    if end >= 0:
        return Piece(number, begin + cut, memoryview(data)[cut : end + 1])
    return Piece(number, begin + cut, data[cut:] + b"\n")


def open_text_file(path: str) -> ByteFile:
    """Opens a file of lines.

    Raises:
        DataError: It cannot be read, or is empty.
    """
    file = open_byte_file(path)
    if file.size == 0:
        raise DataError(f"{path} is empty.")
    return file


def named_files(opened: Sequence[ByteFile]) -> str:
    """Returns the name of the first file and how many more there are."""
    more = len(opened) - 1
    return opened[0].url + (f" (and {more} more file{'s' if more > 1 else ''})" if more else "")


def count_lines(file: ByteFile, stop: int) -> int:
    """Returns how many lines end before ``stop``; a carriage return ends a line, with or without a newline."""
    lines, last = 0, b""
    for start in range(0, stop, _COUNT_BYTES):
        data = last + file.read(start, min(start + _COUNT_BYTES, stop))
        # A pair may lie on both sides of the border.
        last = data[-1:]
        lines += _ends(data) - _ends(last)
    return lines + _ends(last)


def _ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def first_line(file: ByteFile) -> bytes:
    """Returns the first line, with its end if it has one."""
    data = b""
    # Of a carriage return at the end it is not known yet whether a newline follows.
    while not _ends(data[:-1]) and not data.endswith(b"\n") and len(data) < file.size:
        data += file.read(len(data), len(data) + max(len(data), _SLACK_BYTES))
    return data.splitlines(keepends=True)[0] if data else data
