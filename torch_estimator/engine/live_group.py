"""The settings of an optimizer's group as a step reads them: those that a schedule moves are tensors where compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]

_CYCLED = ("betas", "momentum")
_MOVABLE = ("lr", "weight_decay", *_CYCLED)


class LiveGroup:
    """Keeps up with an optimizer's group.

    A compiled step sees another value where it would have to be another program for another number. So the learning
    rate is a 0-dimensional tensor there, the momentum is where torch's schedules cycle it, and what else may be moved
    becomes one when it has been.

    Args:
        group: Of the optimizer; schedules and hooks may change its numbers between steps.
        as_tensors: Whether the step is compiled.

    Attributes:
        values: What the rule of the optimizer is to be given.
    """

    def __init__(self, group: Group, *, as_tensors: bool) -> None:
        self._group = group
        self._seen = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        self._device = group["params"][0].device if as_tensors and group["params"] else None
        # Schedules that cycle the momentum leave this mark.
        moved = ("lr", *_CYCLED) if "max_momentum" in group else ("lr",)
        self.values: Group = {key: self._tensors(value) if key in moved else value for key, value in self._seen.items()}

    def refresh(self) -> None:
        """Takes over what has changed."""
        for key, seen in self._seen.items():
            value = self._group[key]
            if value is not seen:
                self._seen[key] = value
                if not _fill(self.values[key], value):
                    self.values[key] = self._tensors(value) if key in _MOVABLE else value

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, tuple):
            # Of betas the schedules cycle the first; 1 - 0.999 would be off by 1e-5 in float32.
            return (self._tensors(value[0]), *value[1:])
        if self._device is None or isinstance(value, Tensor):
            return value
        return torch.tensor(float(value), dtype=torch.float32, device=self._device)


def _fill(target: Any, value: Any) -> bool:
    """Sets the tensors of `target`; returns whether that was all there is to do."""
    if isinstance(value, tuple) and isinstance(target, tuple):
        return target[1:] == value[1:] and _fill(target[0], value[0])
    if isinstance(target, Tensor) and not isinstance(value, Tensor):
        target.fill_(value)
        return True
    return False
