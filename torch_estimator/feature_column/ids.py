"""Ids of a categorical column for some rows of data, and their conversion to arrays for the model.

`Ids` holds the ids of a column with a fixed number of ids per row, and `IdLists` those of a column with any number of
ids or with weights. Lists of ids are Arrow lists in the input pipeline, which can be cut and joined like any column,
and become padded arrays when a batch is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.feature_column.raw_values import Codes

Int64Array: TypeAlias = npt.NDArray[np.int64]

NOT_IN_VOCABULARY = -1
"""Id of a value that a column does not know. A cross hashes this id like any other."""

MISSING = -2
"""Id of a missing value. A cross with a missing value has no id."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids ``[N, slots]``: N rows of `slots` ids, stored as they are, or as distinct ids and indices into them.

    Attributes:
        table: The ids themselves, int64 ``[N, slots]``, if `codes` is None; else the distinct ids, int64 ``[M]``.
            Negative numbers are `NOT_IN_VOCABULARY` and `MISSING`.
        codes: Positions in `table`, ``[N, slots]``, or None.
    """

    table: Int64Array
    codes: Codes | None

    def place(self, slots: Int64Array, offset: int, padding: int) -> None:
        """Write the ids into this column's part of a tensor that holds the ids of several columns.

        Args:
            slots: The column's part of the tensor, transposed, int64 ``[slots, N]``.
            offset: Number added to every id.
            padding: Id that is written for a value without an id.
        """
        moved = np.where(self.table < 0, padding, self.table + offset)
        if self.codes is None:
            slots[:] = moved.T
            return
        for slot, codes in zip(slots, self.codes.T, strict=True):
            # Use the mode "clip" for speed: the default mode writes into a buffer first and then copies it.
            # Codes are never out of range, so clipping changes nothing.
            moved.take(codes, out=slot, mode="clip")


@dataclass(frozen=True, slots=True)
class IdLists:
    """One list of ids for each row, of any length, with or without a weight for each id.

    Attributes:
        ids: The ids of all rows, one row after the other; `NOT_IN_VOCABULARY` and `MISSING` are no ids.
        offsets: int64 ``[N + 1]``; the ids of row i are at ``offsets[i]`` to ``offsets[i + 1]``.
        weights: One float32 for each id, or None.
    """

    ids: Int64Array
    offsets: Int64Array
    weights: npt.NDArray[np.float32] | None = None

    def keep(self, mask: npt.NDArray[np.bool_]) -> IdLists:
        """Return the lists with only the ids for which `mask` is True."""
        if mask.all():
            return self
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)])
        return IdLists(self.ids[mask], before[self.offsets], None if self.weights is None else self.weights[mask])

    def to_arrow(self, offset: int) -> tuple[pa.Array, pa.Array | None]:
        """Return the ids, each plus `offset`, and their weights or None, as Arrow arrays with one list per row.

        Values without an id are left out together with their weights. The lists are Arrow's *large* lists, because the
        input pipeline takes plain lists for raw columns and pads them.
        """
        kept = self.keep(self.ids >= 0)
        offsets = arrow.from_numpy(kept.offsets)
        ids = pa.LargeListArray.from_arrays(offsets, arrow.from_numpy(kept.ids + offset))
        if kept.weights is None:
            return ids, None
        return ids, pa.LargeListArray.from_arrays(offsets, arrow.from_numpy(kept.weights))


def padded_lists(lists: pa.Array, padding: Any) -> npt.NDArray[Any]:
    """Return Arrow lists of numbers as an array ``[N, L]``, with short lists filled up with `padding`.

    L is the length of the longest row, rounded up to a power of two so that there are few different lengths. A compiled
    training step is compiled anew for every L. `padding` is a numpy number, which also gives the type of the array.

    >>> padded_lists(pa.array([[5], [], [1, 2, 3]], pa.large_list(pa.int64())), np.int64(9))
    array([[5, 9, 9, 9],
           [9, 9, 9, 9],
           [1, 2, 3, 9]])
    """
    offsets = lists.offsets.to_numpy()
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=1))
    result = np.full((len(lists), 1 << (longest - 1).bit_length()), padding)
    values = lists.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
    result[np.arange(result.shape[1]) < lengths[:, None]] = values
    return result
