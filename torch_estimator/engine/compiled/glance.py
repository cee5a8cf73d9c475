"""Noticing cheaply that somebody has changed a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_HOLDERS = frozenset({list, tuple, set})


class Glance:
    """What can be seen of a module, and of those in it, without looking closely.

    Two are equal where no attribute, parameter, buffer or hook was set or removed in between, nor anything in an
    attribute that is a list, tuple, dict or set. What lies deeper, or outside, they do not see.
    """

    def __init__(self, module: nn.Module) -> None:
        self._seen: list[Any] = []
        # Kept, so that nothing new can be taken for it because it lies in the same place.
        self._things: list[Any] = []
        for part in module.modules():
            attributes = vars(part)
            self._seen += attributes
            for value in attributes.values():
                if isinstance(value, dict):
                    self._seen += value
                    self._look(value.values())
                elif type(value) in _HOLDERS:
                    self._look(value)
                else:
                    self._look((value,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glance) and self._seen == other._seen

    __hash__ = None  # type: ignore[assignment]  # what it was taken of changes

    def _look(self, values: Any) -> None:
        for value in values:
            if type(value) in _PLAIN:
                self._seen.append(value)
            else:
                self._seen.append(id(value))
                self._things.append(value)
                if isinstance(value, Tensor):
                    self._seen.append(value.requires_grad)
