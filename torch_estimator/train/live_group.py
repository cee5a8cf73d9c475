"""Settings of an optimizer's parameter group, some of which schedules and hooks move between steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]

_CYCLED = ("betas", "momentum")
_NOT_SETTINGS = ("params", "param_names")


class LiveGroup:
    """A parameter group of an optimizer, as a training step reads it.

    A step in Python reads the group itself. A compiled step has the numbers that it read while it was traced as
    constants, so another number would need another compilation. Therefore it gets settings that may move as tensors
    without dimensions: the learning rate, the weight decay, and the momentum if one of torch's schedules cycles it.

    Args:
        group: The group of the optimizer. Schedules and hooks may change its numbers between steps.
        of_torch: Whether the optimizer is one of `torch.optim`, which read their settings from the group only.

    Attributes:
        MOVING: Keys of all settings that may be tensors in a compiled step.
        values: The group to give to the optimizer's update, with tensors in place of numbers in a compiled step.
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
        """Return whether the optimizer still has this group; ``load_state_dict`` replaces the groups."""
        return any(group is self._group for group in optimizer.param_groups)

    def numbers(self) -> list[float]:
        """Return the present values of the settings that may move."""
        return [float(_read(self._group, key)) for key in self._moving()]

    def holds_tensors(self) -> bool:
        """Return whether the user has set a tensor where a number may move."""
        return any(isinstance(_read(self._group, key), Tensor) for key in self.MOVING if key in self._group)

    def use_tensors(self) -> list[Tensor]:
        """Put tensors into `values` from now on; return them in the order of `numbers`."""
        params = self._group["params"]
        device = params[0].device if params else torch.device("cpu")
        self._filled, self._fixed = self.numbers(), self.fixed()
        self._tensors = [torch.tensor(number, dtype=torch.float32, device=device) for number in self._filled]
        self.values = self._group if self._of_torch else dict(self._group)
        for key, tensor in zip(self._moving(), self._tensors, strict=True):
            # Schedules cycle the first of two betas. The second stays a Python number: as a float32 tensor,
            # 1 - 0.999 would be off by 1e-5.
            self.values[key] = (tensor, *self._group[key][1:]) if key == "betas" else tensor
        return self._tensors

    def refresh(self) -> None:
        """Copy the present settings of the group into the tensors, if there are any."""
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
        """Return the settings that are constants in a compiled step, and the keys of those that are not."""
        moving = self._moving()
        return tuple(moving), *(
            (key, value[1:] if key == "betas" and key in moving else value)
            for key, value in self._group.items()
            if key not in _NOT_SETTINGS and (key not in moving or key == "betas")
        )

    def _moving(self) -> list[str]:
        """Return the keys of the settings that may move, in the order of `numbers`."""
        # A schedule that cycles the momentum adds ``max_momentum`` to the group. With a weight decay of 0 optimizers
        # skip a part of the update, so it stays a constant.
        cycled = _CYCLED if "max_momentum" in self._group else ()
        decay = ("weight_decay",) if self._group.get("weight_decay") else ()
        wanted = ("lr", *decay, *cycled)
        return [key for key in wanted if key in self._group and not isinstance(_read(self._group, key), Tensor)]


def _read(group: Group, key: str) -> Any:
    """Return the value of a setting that may move; of two betas it is the first."""
    value = group[key]
    return value[0] if key == "betas" else value
