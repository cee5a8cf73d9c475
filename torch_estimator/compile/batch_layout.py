"""Layouts of batches. A step is compiled for batches of one layout: the names, shapes, strides and dtypes of tensors.

A compiled step receives addresses only. Everything else about a batch is fixed when the step is compiled: the names
and nesting of its tensors, and the shape, strides and dtype of each.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_estimator.train.batches import Batches, TensorBatch, batch_size

TensorLayout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a tensor."""

TensorLayouts = tuple[TensorLayout, ...]


class BatchLayout(NamedTuple):
    """Layout of a batch: names and nesting of its tensors, and the shape, strides and dtype of each.

    Attributes:
        structure: JSON that says where each tensor is in the batch: names in their order, nesting, and what is None.
        tensors: The layout of each tensor, in the order of `flatten`.
    """

    structure: str
    tensors: TensorLayouts

    def as_json(self) -> list[Any]:
        """Return the layout in values that JSON can represent. Equal layouts give equal values."""
        return [self.structure, layouts_as_json(self.tensors)]


class BatchBlock(NamedTuple):
    """Batches of equal layout that follow each other in one piece of memory.

    Attributes:
        whole: All rows of these batches.
        rows: Number of rows in one batch.
        layout: Layout of one batch; None if it holds anything other than tensors, such as strings.
        addresses: int64 ``[tensors]``, the memory addresses of the first batch's tensors.
    """

    whole: TensorBatch
    rows: int
    layout: BatchLayout | None
    addresses: np.ndarray


def block_of(batches: Batches) -> BatchBlock:
    """Return the memory block that contains the batches, with the layout and the addresses of its first batch."""
    first = dataclasses.replace(batches, start=0, count=1).batch(0)
    inputs = step_inputs(first)
    tensors = flatten(inputs)
    addresses = np.array([tensor.data_ptr() for tensor in tensors or ()], np.int64)
    layout = None if tensors is None else layout_of(inputs, tensors)
    return BatchBlock(batches.whole, batch_size(first.features), layout, addresses)


def step_inputs(batch: TensorBatch) -> tuple[Any, Any, Any]:
    """Return the arguments of a training step: features, labels and weights."""
    return batch.features, batch.labels, batch.weights


def layout_of(value: Any, tensors: list[Tensor]) -> BatchLayout:
    """Return the layout of the tensors in nested dicts, tuples and lists.

    Args:
        value: A tensor, or nested dicts, tuples and lists of tensors.
        tensors: What `flatten` returns for this value.
    """
    return BatchLayout(json.dumps(_structure(value)), tensor_layouts(tensors))


def flatten(value: Any) -> list[Tensor] | None:
    """Return all tensors in nested dicts, tuples and lists; None if there is another value, such as a string."""
    found: list[Tensor] = []
    return found if _collect(value, found) else None


def unflatten(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a copy of nested dicts, tuples and lists with new tensors, given in the order of `flatten`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: unflatten(one, tensors) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(unflatten(one, tensors) for one in value))
    if isinstance(value, tuple | list):
        return type(value)(unflatten(one, tensors) for one in value)
    return value


def tensor_layouts(tensors: list[Tensor]) -> TensorLayouts:
    """Return the shape, strides and dtype of each tensor.

    After the rows, the stride of a dimension of size 1 is given as 1: nothing depends on it, and numpy keeps any number
    there, such as the length of the piece of input that the batch is in.
    """
    return tuple([(tensor.shape, _strides(tensor), tensor.dtype) for tensor in tensors])


def _strides(tensor: Tensor) -> tuple[int, ...]:
    strides, shape = tensor.stride(), tensor.shape
    if 1 not in shape[1:]:
        return strides
    return strides[:1] + tuple(
        [1 if size == 1 else stride for size, stride in zip(shape[1:], strides[1:], strict=True)]
    )


def layouts_as_json(layouts: TensorLayouts) -> list[Any]:
    """Return layouts as nested lists, which are equal again after writing them to JSON and parsing the text."""
    return [[list(shape), list(strides), str(dtype)] for shape, strides, dtype in layouts]


def _structure(value: Any) -> Any:
    """Return a nested value with 0 in place of each tensor, in values that JSON can represent."""
    if isinstance(value, Mapping):
        return {"names": [[repr(key), _structure(one)] for key, one in value.items()]}
    if isinstance(value, tuple | list):
        return {type(value).__qualname__: [_structure(one) for one in value]}
    return None if value is None else 0


def _collect(value: Any, found: list[Tensor]) -> bool:
    """Append the tensors of a nested value to a list; return False at anything that is neither a tensor nor None."""
    if isinstance(value, Tensor):
        found.append(value)
        return True
    if isinstance(value, Mapping):
        return all(_collect(one, found) for one in value.values())
    if isinstance(value, tuple | list):
        return all(_collect(one, found) for one in value)
    return value is None
