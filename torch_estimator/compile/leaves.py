"""A batch as the flat list of its tensors, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_estimator import tree

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
Layouts = tuple[Layout, ...]


class Shapes(NamedTuple):
    """What a compiled step is for.

    Attributes:
        structure: Where the tensors of a batch are in it: names in their order, nesting, and what there is none of.
        layouts: Of the tensors.
    """

    structure: str
    layouts: Layouts

    def as_json(self) -> list[Any]:
        """Returns it as JSON can hold it, and as it is when read again."""
        return [self.structure, as_json(self.layouts)]


def shapes(value: Any, tensors: list[Tensor]) -> Shapes:
    """Describes a batch whose `leaves` are these tensors."""
    return Shapes(json.dumps(_structure(value)), layouts(tensors))


def _structure(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {"names": [[repr(key), _structure(one)] for key, one in value.items()]}
    if isinstance(value, tuple | list):
        return {type(value).__qualname__: [_structure(one) for one in value]}
    return None if value is None else 0


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
    return tree.map(lambda one: next(tensors) if isinstance(one, Tensor) else one, value)


def layouts(tensors: list[Tensor]) -> Layouts:
    """The layout of each: shape, strides and dtype."""
    return tuple([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])


def as_json(layouts: Layouts) -> list[Any]:
    """Layouts as JSON can hold them, and as they are when read again."""
    return [[list(shape), list(strides), str(dtype)] for shape, strides, dtype in layouts]
