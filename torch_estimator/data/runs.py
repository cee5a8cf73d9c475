"""Batches that come together: a run of them lies in one piece of memory until it is taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_estimator.data.stream import State, Stream

_MOST_BATCHES = 1024


class Batch(NamedTuple):
    """One batch: features (a column, or a dict or tuple of columns) and labels (the same, or None)."""

    features: Any
    labels: Any


class Run:
    """Batches that follow each other.

    Args:
        whole: Their rows, as a `Batch` or what was made of one.
        count: How many batches they are, all of the same length.
        position: Tells the position after so many of them, from 1.
    """

    def __init__(self, whole: Any, count: int, position: Callable[[int], State]) -> None:
        self.whole = whole
        self.count = count
        self.position = position
        self._batches: Sequence[Any] | None = None

    def take_apart(self) -> None:
        """Makes all batches at once, which takes less than one by one."""
        self._batches = [self.whole] if self.count == 1 else split(self.whole, self.count)

    def batch(self, number: int) -> Any:
        """One of the batches."""
        return self.together(number, 0, 1)[0] if self._batches is None else self._batches[number]

    def together(self, first: int, rows: int, count: int) -> tuple[Any, int]:
        """Batches from number ``first`` on as one, and how many they are; see `Stream.next_together`."""
        size = _rows(self.whole) // self.count
        several = max(1, min(count, rows // size, self.count - first))
        if several == self.count:
            return self.whole, several
        return part(self.whole, first * size, (first + several) * size), several


class RunReader:
    """Reads the runs of a stream.

    Args:
        stream: Of batches.
        convert: What to make of a `Batch`, row by row.

    Attributes:
        apart: Whether runs are taken apart at once.
    """

    def __init__(self, stream: Stream, convert: Callable[[Batch], Any] | None) -> None:
        self._stream = stream
        self._convert = convert
        self.apart = True

    def __call__(self) -> tuple[Run | None, State]:
        """Returns the next run, None at the end, and the position after it."""
        chunk, count = self._stream.next_together(2**62, _MOST_BATCHES)
        after = self._stream.state()
        if chunk is None:
            return None, after
        batch = Batch(chunk.features, chunk.labels)
        run = Run(batch if self._convert is None else self._convert(batch), count, self._stream.positions(count))
        if self.apart:
            run.take_apart()
        return run, after


def split(values: Any, count: int) -> Sequence[Any]:
    """Returns the rows of a column, or of all columns in a structure, in ``count`` parts of equal length, as views.

    >>> import numpy as np
    >>> [one["x"].tolist() for one in split({"x": np.arange(6), "y": None}, 3)]
    [[0, 1], [2, 3], [4, 5]]
    """
    if values is None:
        return [None] * count
    if isinstance(values, Tensor):
        # What a module does to its batch in place must not be an error because others share the memory.
        return torch.unsafe_split(values, len(values) // count)
    if isinstance(values, dict):
        rows = zip(*(split(value, count) for value in values.values()), strict=True)
        return [dict(zip(values, row, strict=True)) for row in rows] if values else [{}] * count
    if isinstance(values, tuple):
        make = getattr(type(values), "_make", tuple)
        return [make(row) for row in zip(*(split(value, count) for value in values), strict=True)]
    size = len(values) // count
    return [values[start : start + size] for start in range(0, count * size, size)]


def part(values: Any, start: int, stop: int) -> Any:
    """Returns rows ``start:stop`` of a column, or of all columns in a structure, as views."""
    if values is None:
        return None
    if isinstance(values, dict):
        return {name: part(value, start, stop) for name, value in values.items()}
    if isinstance(values, tuple):
        make = getattr(type(values), "_make", tuple)
        return make(part(value, start, stop) for value in values)
    return values[start:stop]


def _rows(values: Any) -> int:
    while isinstance(values, dict | tuple):
        values = next(iter(values.values() if isinstance(values, dict) else values))
    return len(values)
