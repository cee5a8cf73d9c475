"""Layouts of batches. A step is compiled for batches of one layout: the names, shapes, strides and dtypes of tensors.

A compiled step receives addresses only. Everything else about a batch is fixed when the step is compiled: the names
and nesting of its tensors, and the shape, strides and dtype of each.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_estimator import tree
from torch_estimator.train.batches import Batches, TensorBatch, batch_size

TensorLayout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a tensor."""

TensorLayouts = tuple[TensorLayout, ...]


class BatchLayout(NamedTuple):
    """Layout of a batch.

    Names and nesting of its tensors, and the shape, strides and dtype of each, in the order of `tree.leaves`.
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
    structure = repr(tree.map(lambda _: 0, inputs))
    layout = None if tensors is None else BatchLayout(structure, tensor_layouts(list(map(with_plain_strides, tensors))))
    return BatchBlock(batches.whole, batch_size(first.features), layout, addresses)


def step_inputs(batch: TensorBatch) -> tuple[Any, Any, Any]:
    """Return the arguments of a training step: features, labels and weights."""
    return batch.features, batch.labels, batch.weights


def flatten(value: Any) -> list[Tensor] | None:
    """Return all tensors in nested dicts, tuples and lists; None if there is another value, such as a string."""
    found = tree.leaves(value)
    return found if all(isinstance(one, Tensor) for one in found) else None


def tensor_layouts(tensors: list[Tensor]) -> TensorLayouts:
    """Return the shape, strides and dtype of each tensor."""
    return tuple([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])


def with_plain_strides(tensor: Tensor) -> Tensor:
    """Return a tensor of a batch with the strides of a new tensor in all dimensions of size 1, except that of the rows.

    No number depends on such a stride, and numpy keeps any there, such as the length of the piece of input that the
    batch is in. But operators choose the strides of their results by it, as convolutions do for images of one channel,
    so a step must be traced with the strides that it runs with.
    """
    shape, strides = tensor.shape, list(tensor.stride())
    if 1 not in shape[1:]:
        return tensor
    for dim in range(len(shape) - 1, 0, -1):
        if shape[dim] == 1:
            strides[dim] = shape[dim + 1] * strides[dim + 1] if dim + 1 < len(shape) else 1
    return tensor.as_strided(shape, strides, tensor.storage_offset())


def layouts_as_json(layouts: TensorLayouts) -> list[Any]:
    """Return layouts as nested lists, which are equal again after writing them to JSON and parsing the text."""
    return [[list(shape), list(strides), str(dtype)] for shape, strides, dtype in layouts]
