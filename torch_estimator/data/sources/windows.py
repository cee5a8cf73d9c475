"""Windows: groups of about 65,536 rows that are read from a source, prepared and shuffled at once.

Random orders depend only on a seed, an epoch and the number of a window, so that a restored stream repeats them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array
from torch_estimator.data.sources.base import Reader
from torch_estimator.data.stream import State, Stream

WINDOW_ROWS = 65_536
"""Rows in a window. With this many rows, the overhead of a window adds little time per batch."""

WINDOW_BYTES = 64 * 2**20
"""Size of a window in bytes. If rows are wide, a window has fewer than `WINDOW_ROWS` rows, so as to have this size."""


@dataclass(kw_only=True, slots=True)
class Shuffling:
    """Settings of shuffling: at least `buffer` rows are shuffled at a time, in an order that depends on `seed`."""

    buffer: int
    seed: int


class WindowStream(Stream):
    """Stream that reads a source in windows. A window is a group of consecutive or (to shuffle) random ranges.

    A shuffled stream permutes all ranges of the source anew in every epoch. It reads the ranges of a window as one
    chunk, prepares it, and permutes its rows. A source that fits into one window is fully shuffled and read only once.
    `prepare` must treat rows independently and be deterministic, since its result may be kept for all epochs. `count`
    is the number of windows.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        shuffling: Shuffling | None = None,
        prepare: Callable[[Chunk], Chunk] | None = None,
    ) -> None:
        self._reader = reader
        self._shuffling = shuffling
        self._prepare = prepare
        self.count = window_count(reader, buffer=shuffling.buffer if shuffling is not None else 1)
        self._only_window: Chunk | None = None
        self._ranges: Array = np.arange(reader.ranges)
        self.start(0)

    def start(self, epoch: int) -> None:
        self._go_to(epoch, 0)

    def next(self) -> Chunk | None:
        while self._window < self.count:
            chunk = self._read(self._window)
            if self._shuffling is not None and chunk.rows > 1:
                order = permute_rows(chunk.rows, seed=self._shuffling.seed, epoch=self._epoch, window=self._window)
                chunk = chunk.take(order)
            self._window += 1
            if chunk.rows:
                return chunk
        return None

    def state(self) -> State:
        state: State = {"epoch": self._epoch, "window": self._window}
        if self._shuffling is not None:
            state["seed"] = self._shuffling.seed
        return state

    def restore(self, state: State) -> None:
        if self._shuffling is not None:
            self._shuffling.seed = state["seed"]
        self._go_to(state["epoch"], state["window"])

    def close(self) -> None:
        self._only_window = None

    def _go_to(self, epoch: int, window: int) -> None:
        self._epoch = epoch
        self._window = window
        # Permute the ranges only if there are several windows. A single window is kept in memory for all epochs, and
        # permuting its rows already shuffles it completely.
        if self._shuffling is not None and self.count > 1:
            self._ranges = permute_ranges(self._reader.ranges, seed=self._shuffling.seed, epoch=epoch)

    def _read(self, window: int) -> Chunk:
        if self._only_window is not None:
            return self._only_window
        first = window * len(self._ranges) // self.count
        last = (window + 1) * len(self._ranges) // self.count
        chunk = self._reader.read(self._ranges[first:last])
        if self._prepare is not None and chunk.rows:
            chunk = self._prepare(chunk)
        if self.count == 1:
            self._only_window = chunk
        return chunk


def window_count(reader: Reader, *, buffer: int) -> int:
    """Return the number of windows into which a source is divided. Window sizes differ by at most one range.

    `buffer` is the minimum number of rows to shuffle at once.
    """
    if not reader.ranges:
        return 0
    rows = max(buffer, min(WINDOW_ROWS, int(WINDOW_BYTES / max(reader.bytes_per_row, 1))), 1)
    return max(1, min(reader.ranges, int(reader.ranges * reader.rows_per_range / rows)))


def permute_ranges(count: int, *, seed: int, epoch: int) -> Array:
    """Return a random order of the ranges of a source, for one epoch: int64 ``[count]``."""
    return _generator(seed, epoch, 0).permutation(count)


def permute_rows(count: int, *, seed: int, epoch: int, window: int) -> Array:
    """Return a random order of the rows in one window, for one epoch: int64 ``[count]``."""
    # Random stream 0 of an epoch gives the order of the ranges, so the windows use the streams from 1 on.
    return _generator(seed, epoch, window + 1).permutation(count)


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, epoch, stream]))
