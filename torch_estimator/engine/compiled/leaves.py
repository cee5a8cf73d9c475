"""A batch as the flat list of its tensors, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
Shapes = tuple[Layout, ...]


def leaves(value: Any) -> list[Tensor] | None:
    """The tensors of a batch in their order; None where there is anything else in it, such as strings."""
    found: list[Tensor] = []
    return found if _collect(value, found) else None


def _collect(value: Any, found: list[Tensor]) -> bool:
    if isinstance(value, Tensor):
        found.append(value)
        return True
    if isinstance(value, Mapping):
        return all(_collect(one, found) for one in value.values())
    if isinstance(value, tuple | list):
        return all(_collect(one, found) for one in value)
    return value is None


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """`value` with other tensors in the places of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: rebuilt(one, tensors) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(one, tensors) for one in value))
    if isinstance(value, tuple | list):
        return type(value)(rebuilt(one, tensors) for one in value)
    return value


def layouts(tensors: list[Tensor]) -> Shapes:
    """The layout of each: shape, strides and dtype."""
    return tuple([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])


def as_json(shapes: Shapes) -> list[Any]:
    """Layouts as JSON can hold them, and as they are when read again."""
    return [[list(shape), list(strides), str(dtype)] for shape, strides, dtype in shapes]
