"""Cutting the stream of rows into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torch_estimator.data.checks import check_count
from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.padding import PLAIN, Padding, has_lists
from torch_estimator.data.stream import State, Stream
from torch_estimator.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Cuts rows into batches of ``size``; the last may be smaller unless ``drop_remainder``. Lists are padded."""

    size: int
    drop_remainder: bool = False
    padding: Padding = PLAIN

    def __post_init__(self) -> None:
        check_count("batch's size", self.size, at_least=1)

    def stream(self, upstream: Stream) -> Stream:
        """Returns the batches of ``upstream``."""
        return _Batches(upstream, self)

    def signature(self) -> str:
        """What a position depends on: not the size, since positions count rows."""
        return "batch"


class _Batches(Stream):
    """Batches are views of chunks, except those that straddle two.

    The position is that of the chunk at hand and how many of its rows are used up.
    """

    def __init__(self, upstream: Stream, batching: Batching) -> None:
        self._upstream = upstream
        self._size = batching.size
        self._drop_remainder = batching.drop_remainder
        self._padding = batching.padding
        self._has_lists = False
        self._is_uneven = False
        self._before = upstream.state()
        self._row = 0
        self._chunk: Chunk | None = None

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)
        self._forget(self._upstream.state(), 0)

    def next(self) -> Chunk | None:
        start = self._row
        stop = start + self._size
        if self._chunk is not None and stop <= self._chunk.rows:
            self._row = stop
            batch: Chunk | None = self._chunk.slice(start, stop)
        else:
            batch = self._straddling()
        return self._padding.apply(batch) if self._has_lists and batch is not None else batch

    def next_together(self, rows: int, count: int) -> tuple[Chunk | None, int]:
        there = 0 if self._chunk is None or self._is_uneven else self._chunk.rows - self._row
        together = min(count, min(rows, there) // self._size)
        if self._chunk is None or together < 2:
            return self.next(), 1
        start, self._row = self._row, self._row + together * self._size
        return self._chunk.slice(start, self._row), together

    def state(self) -> State:
        return {"row": self._row, "of": self._before}

    def positions(self, together: int) -> Callable[[int], State]:
        size, before, after = self._size, self._before, self._row
        return lambda used: {"row": after - (together - used) * size, "of": before}

    def restore(self, state: State) -> None:
        self._upstream.restore(state["of"])
        self._forget(state["of"], state["row"])

    def close(self) -> None:
        self._chunk = None
        self._upstream.close()

    def _forget(self, before: State, row: int) -> None:
        self._before = before
        self._row = row
        self._chunk = None

    def _straddling(self) -> Chunk | None:
        parts: list[Chunk] = []
        missing = self._size
        while missing and self._has_rows():
            assert self._chunk is not None
            stop = min(self._row + missing, self._chunk.rows)
            parts.append(self._chunk.slice(self._row, stop))
            missing -= stop - self._row
            self._row = stop
        if not parts or (missing and self._drop_remainder):
            return None
        return concat_chunks(parts)

    def _has_rows(self) -> bool:
        """Moves on to the next chunk where this one is used up; False at the end."""
        if self._chunk is not None and self._row < self._chunk.rows:
            return True
        before = self._upstream.state()
        chunk = self._upstream.next()
        if chunk is None:
            return False
        if self._chunk is not None:
            self._row = 0
        elif self._row > chunk.rows:
            raise DataError(f"{chunk.place(0)}: the data has fewer rows than when the position was saved.")
        self._before = before
        self._chunk = chunk
        # All chunks have the same columns.
        self._has_lists = has_lists(chunk)
        # Lists are padded to the longest of a batch, by whomever: that of many batches may be much longer.
        self._is_uneven = any(not isinstance(one, np.ndarray) and is_list_type(one.type) for one in chunk.columns())
        return self._row < chunk.rows or self._has_rows()
