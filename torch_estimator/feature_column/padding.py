"""Lists of ids on their way from the input thread to a batch: Arrow lists, which can be cut and joined, then arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.feature_column.ids import IdLists


def id_lists(found: IdLists, offset: int) -> tuple[pa.Array, pa.Array | None]:
    """Ids moved up by `offset`, and their weights, as Arrow lists; what is no id is left out with its weight.

    They are large lists, which pass through the pipeline as they are: it pads plain lists, those of raw columns.
    """
    kept = found.keep(found.ids >= 0)
    offsets = arrow.from_numpy(kept.offsets)
    ids = pa.LargeListArray.from_arrays(offsets, arrow.from_numpy(kept.ids + offset))
    if kept.weights is None:
        return ids, None
    return ids, pa.LargeListArray.from_arrays(offsets, arrow.from_numpy(kept.weights))


def padded_lists(lists: pa.Array, padding: Any) -> npt.NDArray[Any]:
    """Lists of numbers as an array ``[N, L]`` of the type of `padding`, which fills the rows up.

    L is the length of the longest row rounded up to a power of two: few shapes arise, and each may be compiled.

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
