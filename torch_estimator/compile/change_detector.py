"""Noticing cheaply that somebody has changed a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_HOLDERS = frozenset({list, tuple, set})
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_DEEPEST = 2


class Glance:
    """What can be seen of modules, optimizers and functions, and of what they hold, without looking closely.

    Two are equal where no attribute, parameter, buffer or hook was set or removed in between, nor anything in the
    containers and objects that lie in attributes, some levels deep. What lies outside, such as a global, they do not
    see, nor which numbers are in a tensor.
    """

    def __init__(self, *things: Any) -> None:
        self._seen: list[Any] = []
        # Kept, so that nothing new can be taken for it because it lies in the same place.
        self._things: list[Any] = []
        self._met: set[int] = set()
        for thing in things:
            self._look(thing, 0)
            for held in _held(thing):
                self._look(held, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glance) and self._seen == other._seen

    __hash__ = None  # type: ignore[assignment]  # what it was taken of changes

    def _look(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._seen.append(value)
            return
        place = id(value)
        self._seen.append(place)
        if place in self._met:
            return
        self._met.add(place)
        self._things.append(value)
        if isinstance(value, Tensor):
            self._seen += (value.requires_grad, value.stride() if not value.is_sparse else None)
            return
        if isinstance(value, Optimizer):
            # What a group holds moves by itself, and is compared otherwise.
            self._seen += map(id, value.param_groups)
            self._things += value.param_groups
            self._look(value.state, depth)
            return
        # However deep modules lie in each other, all of them count.
        depth = 0 if isinstance(value, nn.Module) else depth + 1
        if depth > _DEEPEST or isinstance(value, _OPAQUE):
            return
        if isinstance(value, dict):
            for key, one in value.items():
                self._look(key, depth)
                self._look(one, depth)
        elif kind in _HOLDERS:
            for one in value:
                self._look(one, depth)
        else:
            for name, one in getattr(value, "__dict__", {}).items():
                self._seen.append(name)
                self._look(one, depth)


def _held(function: Any) -> Iterator[Any]:
    """What a method is bound to and what a function closes over."""
    if isinstance(function, MethodType):
        yield function.__self__
    for cell in getattr(function, "__closure__", None) or ():
        # A cell is empty before its variable is set.
        with suppress(ValueError):
            yield cell.cell_contents
