"""Filter: keeps the rows for which a user's function returns True. Unbatch: the rows of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array
from torch_estimator.data.operations.map import Map, call
from torch_estimator.data.stream import PassThroughStream, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

# Raise an error if an endless input has so many rows in turn of which none is kept. Fewer rows may be chance.
_MANY_ROWS = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Operation that calls a user's function with many rows, and keeps the rows for which it returns True.

    A position is one of the stream before it, so it stays exact, and a resumed run may use a corrected function. With
    `of_batches`, the function is called with batches, and may answer for a whole batch.
    """

    predicate: Callable[..., Any]
    of_batches: bool = False

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise InvalidTypeError(f"filter takes a function, but got {self.predicate!r}.")

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of the rows of `upstream` that are kept."""
        return _FilterStream(upstream, self)

    def signature(self) -> str:
        """Return "filter" without the function."""
        return "filter"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbatch:
    """Operation that makes rows of batches."""

    def stream(self, upstream: Stream) -> Stream:
        """Return `upstream`, since a stream of batches is a stream of rows in larger groups."""
        return upstream

    def signature(self) -> str:
        """Return "unbatch"."""
        return "unbatch"


CALLS = Map | Filter
"""The operations that call a function of the user."""


class _FilterStream(PassThroughStream):
    def __init__(self, upstream: Stream, settings: Filter) -> None:
        super().__init__(upstream)
        self._settings = settings

    def next(self) -> Chunk | None:
        begun, dropped = self._upstream.endless_epoch(), 0
        while (chunk := self._upstream.next()) is not None:
            keep = self._mask(chunk)
            if keep.all():
                return chunk
            if keep.any():
                return chunk.take(np.flatnonzero(keep))
            dropped += chunk.rows
            if begun is not None and dropped >= _MANY_ROWS and (self._upstream.endless_epoch() or 0) > begun + 1:
                raise DataError(
                    f"filter has kept none of {dropped:,} rows, which are more than one epoch, and repeat() before it "
                    "never ends; correct its function, or call filter before repeat."
                )
        return None

    def _mask(self, chunk: Chunk) -> Array:
        result = call(self._settings.predicate, chunk, of_batches=self._settings.of_batches)
        mask = np.asarray(result)
        if mask.dtype == bool and mask.shape == () and self._settings.of_batches:
            return np.full(chunk.rows, mask)
        if mask.dtype != bool or mask.shape not in ((chunk.rows,), (chunk.rows, 1)):
            whole = (
                ", or one for the batch" if self._settings.of_batches else "; before batch it sees many rows at once"
            )
            raise InvalidValueError(
                f"the function given to filter must return a boolean for each of the {chunk.rows} rows{whole}, but "
                f"returned {mask.dtype} of the shape {list(mask.shape)}."
            )
        return mask.reshape(chunk.rows)
