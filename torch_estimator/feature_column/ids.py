"""Ids of a categorical column over a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.raw_values import Codes

Int64Array: TypeAlias = npt.NDArray[np.int64]

NOT_IN_VOCABULARY = -1
MISSING = -2


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids ``[N, slots]``, kept as a table over few codes where that is less work.

    Attributes:
        table: The ids where `codes` is None, else int64 ``[number of codes]``. `NOT_IN_VOCABULARY` and
            `MISSING` are no ids; they differ only in crosses.
        codes: Positions in the table, ``[N, slots]``.
    """

    table: Int64Array
    codes: Codes | None

    def place(self, slots: Int64Array, offset: int, padding: int) -> None:
        """Writes the ids into ``slots``, ``[slots, N]``, moved up by `offset`, with `padding` where there is none."""
        moved = np.where(self.table < 0, padding, self.table + offset)
        if self.codes is None:
            slots[:] = moved.T
            return
        for slot, codes in zip(slots, self.codes.T, strict=True):
            # Codes are in range: to clip them costs nothing, while the default would copy all that is written.
            moved.take(codes, out=slot, mode="clip")


@dataclass(frozen=True, slots=True)
class IdLists:
    """Any number of ids per row, some with weights.

    Attributes:
        ids: Those of all rows; `NOT_IN_VOCABULARY` and `MISSING` are no ids.
        offsets: int64 ``[N + 1]``; row i has the ids from ``offsets[i]`` to ``offsets[i + 1]``.
        weights: One float32 per id, or None.
    """

    ids: Int64Array
    offsets: Int64Array
    weights: npt.NDArray[np.float32] | None = None

    def keep(self, mask: npt.NDArray[np.bool_]) -> IdLists:
        """Those ids that `mask` has."""
        if mask.all():
            return self
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)])
        return IdLists(self.ids[mask], before[self.offsets], None if self.weights is None else self.weights[mask])


class ListEncoder(Protocol):
    """The host half of a categorical column that gives lists."""

    def __call__(self, chunk: Chunk) -> IdLists:
        """The column's ids over the chunk."""
        ...


class IdEncoder(Protocol):
    """The host half of a categorical column with a fixed number of ids per row."""

    def __call__(self, chunk: Chunk) -> Ids:
        """The column's ids over the chunk."""
        ...
