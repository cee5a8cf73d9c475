"""Files divided into small numbered ranges of bytes, so that their lines or records can be read in random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from torch_estimator.data.columns import Array
from torch_estimator.data.sources.input_files import ByteFile

_MAX_RANGES = 2**18

_Piece = TypeVar("_Piece")


class ByteRanges:
    """Several files, divided into numbered ranges of about the length that is best for reading in random order.

    `starts` are the positions in the files at which the first ranges begin; `bytes` is the length of all ranges
    together.
    """

    def __init__(self, opened: Sequence[ByteFile], starts: Sequence[int]) -> None:
        self._files = opened
        total = sum(file.size for file in opened)
        step = max([file.range_bytes for file in opened] + [-(-total // _MAX_RANGES)])
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

    def url_of(self, number: int) -> str:
        """Return the file of a range."""
        return self._files[int(self._file[number])].url

    def in_order(
        self, ranges: Array, read_file: Callable[[int, Sequence[tuple[int, int]]], Sequence[_Piece]]
    ) -> list[_Piece]:
        """Read some ranges file by file, and return one piece for each run of neighboring ranges, in the given order.

        `read_file` returns, for the number of a file and the starts and stops of runs in it in bytes, a piece for each
        run.
        """
        runs = list(self._runs(ranges))
        pieces: dict[int, _Piece] = {}
        by_file: dict[int, list[int]] = {}
        for place, (file, _, _) in enumerate(runs):
            by_file.setdefault(file, []).append(place)
        for file, places in by_file.items():
            pieces.update(zip(places, read_file(file, [runs[i][1:] for i in places]), strict=True))
        return [pieces[place] for place in range(len(runs))]

    def _runs(self, ranges: Array) -> Iterator[tuple[int, int, int]]:
        """Yield file number, start and stop (in bytes) of every run of neighboring ranges in the same file."""
        if not len(ranges):
            return
        files = self._file[ranges]
        breaks = np.flatnonzero((np.diff(ranges) != 1) | (np.diff(files) != 0)) + 1
        for first, last in zip([0, *breaks], [*breaks, len(ranges)], strict=True):
            file = int(files[first])
            start = int(self._begin[ranges[first]])
            yield file, start, min(int(self._begin[ranges[last - 1]]) + self._step, self._files[file].size)
