"""The settings of an optimizer's group as a step reads them: those that a schedule moves are tensors where compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]

_CYCLED = ("betas", "momentum")


class LiveGroup:
    """Keeps up with an optimizer's group.

    Args:
        group: Of the optimizer; schedules and hooks may change its numbers between steps.
        as_tensors: Whether the learning rate, and the momentum where a schedule cycles it, are 0-dimensional tensors:
            a compiled step then sees another value where a number would be another program.

    Attributes:
        values: What the rule of the optimizer is to be given.
    """

    def __init__(self, group: Group, *, as_tensors: bool) -> None:
        self._group = group
        self._seen = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        self.values: Group = dict(self._seen)
        if as_tensors and group["params"]:
            # torch's schedules that cycle the momentum leave this mark.
            cycled = _CYCLED if "max_momentum" in group else ()
            device = group["params"][0].device
            for key in self._seen.keys() & {"lr", *cycled}:
                self.values[key] = _tensors(self._seen[key], device)

    def refresh(self) -> None:
        """Takes over what has changed."""
        for key, seen in self._seen.items():
            value = self._group[key]
            if value is not seen:
                self._seen[key] = value
                self.values[key] = value if isinstance(value, Tensor) else _filled(self.values[key], value)


def _tensors(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        # Of betas the schedules cycle the first; 1 - 0.999 would be off by 1e-5 in float32.
        return (_tensors(value[0], device), *value[1:])
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float32, device=device)


def _filled(target: Any, value: Any) -> Any:
    if isinstance(target, tuple):
        return tuple(_filled(one, number) for one, number in zip(target, value, strict=True))
    return target.fill_(value) if isinstance(target, Tensor) else value
