"""Lists of different lengths that a caller gives, as the padded tensors onnxruntime takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.feeds import PADDING, Array, as_tensor
from torch_estimator.export.signatures import NUMPY_TYPES, TensorInfo


@dataclasses.dataclass(frozen=True, slots=True)
class ListFeed:
    """Lists as an array.

    Attributes:
        tensor: ``[rows, n]``, n being at least 1.
        lengths: int64 ``[rows]``; those of an array are its width.
    """

    tensor: Array
    lengths: npt.NDArray[np.int64]


def as_lists(name: str, value: Any, info: TensorInfo) -> ListFeed:
    """Returns rows of lists as an array; a bare value is a list of one, None an empty list.

    Raises:
        InvalidValueError: Something is of another type, or nested deeper.
    """
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1]:
        flat = as_tensor(name, value.reshape(-1), _plain(info))
        return ListFeed(flat.reshape(value.shape), np.full(len(value), value.shape[1], np.int64))
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise InvalidValueError(f"Input {name} is the single value {value!r}; give a list of lists, one per row.")
    rows = [_row(row) for row in value]
    if any(isinstance(item, (list, tuple, np.ndarray)) for row in rows for item in row):
        raise InvalidValueError(f"Input {name} takes a list of values per row, but has lists of lists.")
    padding = PADDING[info.dtype]
    items = [padding if item is None else item for row in rows for item in row]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    tensor = np.full((len(rows), lengths.max(initial=1)), padding, dtype=NUMPY_TYPES[info.dtype])
    if items:
        tensor[np.arange(tensor.shape[1]) < lengths[:, None]] = as_tensor(name, items, _plain(info))
    return ListFeed(tensor, lengths)


def matched(feeds: Mapping[str, ListFeed], infos: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """Returns the arrays by input; where lists must be as long as others, their arrays are equally wide.

    Raises:
        InvalidValueError: They are not as long.
    """
    for name, feed in feeds.items():
        other = infos[name].lengths_of
        if other is None or other not in feeds or len(feeds[other].lengths) != len(feed.lengths):
            continue
        wrong = np.flatnonzero(feed.lengths != feeds[other].lengths)
        if len(wrong):
            row = int(wrong[0])
            where = f" in row {row} (from 0)" if len(feed.lengths) > 1 else ""
            raise InvalidValueError(
                f"Input {name} has {feed.lengths[row]} values{where}, but {other}, whose weights they are, has "
                f"{feeds[other].lengths[row]}."
            )
    return {name: feed.tensor for name, feed in feeds.items()}


def _row(row: Any) -> list[Any]:
    if row is None:
        return []
    return list(row) if isinstance(row, (list, tuple, np.ndarray)) else [row]


def _plain(info: TensorInfo) -> TensorInfo:
    return dataclasses.replace(info, shape=(-1,))
