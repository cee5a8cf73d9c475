"""Conversion of the result of an input_fn to a Dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from torch_estimator.data.chunk import as_pair
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.sources.memory import (
    frame_columns,
    is_frame,
    is_series,
    memory_source,
    pair_of,
    series_column,
    table_columns,
    table_of,
)
from torch_estimator.errors import InvalidTypeError


def to_dataset(value: Any, *, repeat_single_batch: bool) -> Dataset:
    """Convert the result of an input_fn to a Dataset of batches.

    Args:
        value: A Dataset; a torch DataLoader or any other iterable of batches; or a single batch, which is features (a
            dict of columns, an array, a DataFrame, a table in Arrow's format), a pair (features, labels) or a
            TensorDataset of these.
        repeat_single_batch: Whether a single batch is repeated without end, as tf.estimator does in training.

    Raises:
        InvalidValueError: A tuple or list does not have two elements.
        InvalidTypeError: The value is none of these.

    >>> data = te.data.to_dataset(({"x": [1.0, 2.0]}, [0, 1]), repeat_single_batch=False)
    >>> [labels.tolist() for features, labels in data]
    [[0, 1]]
    """
    if isinstance(value, Dataset):
        return value
    table = table_of(value)
    if table is None and _is_iterable_of_batches(value):
        return Dataset.from_iterable(value)
    if isinstance(value, TensorDataset):
        value = pair_of(value)
    features, labels = as_pair(value if table is None else table_columns(table))
    if features is None:
        raise _unusable(value)
    source = memory_source(_columns(features), _columns(labels, "labels"))
    data = Dataset(source).batch(source.rows)
    return data.repeat() if repeat_single_batch else data


def _is_iterable_of_batches(value: Any) -> bool:
    if isinstance(value, DataLoader):
        return True
    if isinstance(value, Mapping | tuple | list | str | bytes) or _is_array(value):
        return False
    return hasattr(value, "__iter__")


def _columns(value: Any, name: str | None = None) -> Any:
    if is_frame(value):
        return frame_columns(value)
    if (table := table_of(value)) is not None:
        return table_columns(table)
    if is_series(value):
        return series_column(value, str(value.name))
    if hasattr(value, "__arrow_c_stream__"):
        return pa.chunked_array(value)
    if isinstance(value, Mapping):
        return {key: _columns(column, str(key)) for key, column in value.items()}
    if isinstance(value, tuple):
        return tuple(_columns(column, name) for column in value)
    if value is None or _is_array(value) or isinstance(value, list):
        # Return arrays unchanged, since `memory_source` converts them to columns.
        return value
    raise _unusable(value)


def _unusable(value: Any) -> InvalidTypeError:
    if isinstance(value, TorchDataset):
        return InvalidTypeError(
            f"input_fn must return batches, but returned the rows of a torch {type(value).__name__}; return "
            "DataLoader(dataset, batch_size=…, shuffle=…)."
        )
    return InvalidTypeError(
        f"input_fn must return a Dataset, a pair (features, labels), features, or an iterable of batches, but "
        f"returned {value!r}."
    )


def _is_array(value: Any) -> bool:
    kinds = np.ndarray | torch.Tensor | pa.Array | pa.ChunkedArray
    return isinstance(value, kinds) or is_frame(value) or is_series(value)
