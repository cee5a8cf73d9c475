"""The settings of an optimizer's group, some of which schedules and hooks move between steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]

_CYCLED = ("betas", "momentum")
_NOT_SETTINGS = ("params", "param_names")


class LiveGroup:
    """An optimizer's group as a step reads it.

    An eager step reads the group itself. A compiled one is another program for another number, so what may move is a
    0-dimensional tensor there: the learning rate and the weight decay, and the momentum where torch's schedules cycle
    it.

    Args:
        group: Of the optimizer; schedules and hooks may change its numbers between steps.
        of_torch: Whether the optimizer is one of `torch.optim`, which read nothing but the group itself.

    Attributes:
        MOVING: The keys of settings that may be tensors; `fixed` tells of those that are not.
        values: What the rule of the optimizer is to be given.
    """

    MOVING = ("lr", "weight_decay", *_CYCLED)

    def __init__(self, group: Group, *, of_torch: bool = False) -> None:
        self._group = group
        self._of_torch = of_torch
        self.values: Group = group
        self._tensors: list[Tensor] = []
        self._filled: list[float] = []
        self._fixed: tuple[Any, ...] = ()

    def is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer still has this group; `load_state_dict` gives it others."""
        return any(group is self._group for group in optimizer.param_groups)

    def numbers(self) -> list[float]:
        """The numbers that may move, as they are now."""
        return [float(_read(self._group, key)) for key in self._moving()]

    def holds_tensors(self) -> bool:
        """Whether somebody has made a tensor of a setting that may move."""
        return any(isinstance(_read(self._group, key), Tensor) for key in self.MOVING if key in self._group)

    def use_tensors(self) -> list[Tensor]:
        """From now on the rule sees tensors; returns them, in the order of `numbers`."""
        params = self._group["params"]
        device = params[0].device if params else torch.device("cpu")
        self._filled, self._fixed = self.numbers(), self.fixed()
        self._tensors = [torch.tensor(number, dtype=torch.float32, device=device) for number in self._filled]
        self.values = self._group if self._of_torch else dict(self._group)
        for key, tensor in zip(self._moving(), self._tensors, strict=True):
            # Of betas the schedules cycle the first; 1 - 0.999 would be off by 1e-5 in float32.
            self.values[key] = (tensor, *self._group[key][1:]) if key == "betas" else tensor
        return self._tensors

    def refresh(self) -> None:
        """Takes over what has changed, into the tensors where there are any."""
        if not self._tensors:
            return
        numbers, fixed = self.numbers(), self.fixed()
        if fixed != self._fixed:
            self.use_tensors()
        elif numbers != self._filled:
            for tensor, number in zip(self._tensors, numbers, strict=True):
                tensor.fill_(number)
            self._filled = numbers

    def fixed(self) -> tuple[Any, ...]:
        """All other settings, which a compiled step has in it, and which are not among them."""
        moving = self._moving()
        return tuple(moving), *(
            (key, value[1:] if key == "betas" and key in moving else value)
            for key, value in self._group.items()
            if key not in _NOT_SETTINGS and (key not in moving or key == "betas")
        )

    def _moving(self) -> list[str]:
        # Schedules that cycle the momentum leave this mark. A decay of 0 is left out of the computation.
        cycled = _CYCLED if "max_momentum" in self._group else ()
        decay = ("weight_decay",) if self._group.get("weight_decay") else ()
        wanted = ("lr", *decay, *cycled)
        return [key for key in wanted if key in self._group and not isinstance(_read(self._group, key), Tensor)]


def _read(group: Group, key: str) -> Any:
    value = group[key]
    return value[0] if key == "betas" else value
