"""Settings of an optimizer's parameter group. Schedules and hooks may change some of them between steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]

_CYCLED = ("betas", "momentum")
_NOT_SETTINGS = ("params", "param_names")


class LiveGroup:
    """View of an optimizer's parameter group, from which a training step reads the settings.

    A step in Python reads the group itself. In a compiled step, every number that was read while it was traced is a
    constant, so another value would need another compilation. Therefore a compiled step gets settings that often change
    as scalar tensors: the learning rate, the weight decay, and the momentum if one of torch's schedules cycles it.

    Args:
        group: The group of the optimizer. Schedules and hooks may change its numbers between steps.
        of_torch: Whether the optimizer is one of `torch.optim`. Those read their settings from the group only, so the
            tensors are put into the group itself instead of a copy.

    Attributes:
        MOVING: Keys of all settings that may be tensors in a compiled step.
        tensors: The tensors in place of numbers; empty if the group has its numbers.
        values: The group to pass to the optimizer's update; in a compiled step it has tensors in place of numbers.
    """

    MOVING = ("lr", "weight_decay", *_CYCLED)

    def __init__(self, group: Group, *, of_torch: bool = False) -> None:
        self._group = group
        self._of_torch = of_torch
        self.values: Group = group
        self.tensors: list[Tensor] = []
        self._filled: list[float] = []
        self._fixed: tuple[Any, ...] = ()

    def is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether this group still belongs to the optimizer; ``load_state_dict`` makes new groups."""
        return any(group is self._group for group in optimizer.param_groups)

    def numbers(self) -> list[float]:
        """Return the current values of the settings that become tensors in a compiled step."""
        return [float(_read(self._group, key)) for key in self._moving()]

    def holds_tensors(self) -> bool:
        """Return whether the user has set the learning rate, weight decay, momentum or betas to a tensor."""
        return any(isinstance(_read(self._group, key), Tensor) for key in self.MOVING if key in self._group)

    def use_tensors(self) -> list[Tensor]:
        """Replace numbers in `values` by scalar tensors; return the tensors in the order of the method `numbers`."""
        params = self._group["params"]
        device = params[0].device if params and not params[0].is_meta else torch.device("cpu")
        self._filled, self._fixed = self.numbers(), self.fixed()
        self.tensors = [torch.tensor(number, dtype=torch.float32, device=device) for number in self._filled]
        self.values = self._group if self._of_torch else dict(self._group)
        for key, tensor in zip(self._moving(), self.tensors, strict=True):
            # Only the first beta becomes a tensor, because schedules cycle only the first one.
            # The second beta stays a Python number: with a float32 tensor, 1 - 0.999 would be off by 1e-5.
            self.values[key] = (tensor, *self._group[key][1:]) if key == "betas" else tensor
        return self.tensors

    def refresh(self) -> None:
        """Copy the current settings of the group into the tensors, if `use_tensors` has made any."""
        if not self.tensors:
            return
        numbers, fixed = self.numbers(), self.fixed()
        if fixed != self._fixed:
            self.use_tensors()
        elif numbers != self._filled:
            for tensor, number in zip(self.tensors, numbers, strict=True):
                tensor.fill_(number)
            self._filled = numbers

    def fixed(self) -> tuple[Any, ...]:
        """Return what a compiled step takes as constant: which settings are tensors, and the values of the rest."""
        moving = self._moving()
        return tuple(moving), *(
            (key, value[1:] if key == "betas" and key in moving else value)
            for key, value in self._group.items()
            if key not in _NOT_SETTINGS and (key not in moving or key == "betas")
        )

    def _moving(self) -> list[str]:
        """Return the keys of the settings that become tensors in a compiled step, in the order of `numbers`."""
        # Include the momentum only if a schedule cycles it. Such a schedule adds ``max_momentum`` to the group.
        # A weight decay of 0 stays a constant, because optimizers then skip a part of the update.
        cycled = _CYCLED if "max_momentum" in self._group else ()
        decay = ("weight_decay",) if self._group.get("weight_decay") else ()
        wanted = ("lr", *decay, *cycled)
        return [key for key in wanted if key in self._group and not isinstance(_read(self._group, key), Tensor)]


def _read(group: Group, key: str) -> Any:
    """Return the value of a setting; of a pair of betas, return the first."""
    value = group[key]
    return value[0] if key == "betas" else value
