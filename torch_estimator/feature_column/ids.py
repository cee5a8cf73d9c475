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

    def placed(self, offset: int, padding: int) -> Int64Array:
        """Ids ``[N, slots]`` moved up by `offset`, with `padding` where there is none."""
        moved = np.where(self.table < 0, padding, self.table + offset)
        return moved if self.codes is None else moved.take(self.codes)


class IdEncoder(Protocol):
    """The host half of a categorical column."""

    def __call__(self, chunk: Chunk) -> Ids:
        """The column's ids over the chunk."""
        ...
