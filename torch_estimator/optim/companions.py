"""Companions of optimizers: objects that keep more state for the parameters of an optimizer, such as moving averages.

The state is not part of the optimizer's own, because optimizers of torch take every tensor there for theirs. A
companion is an `Optimizer` itself, so that checkpoints hold its state as slots, but it updates no parameters. The
training step looks up the companions of its optimizers, and updates their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torch_estimator.optim.base import Optimizer

AVERAGE = "ExponentialMovingAverage"
"""Slot of the moving average of a variable; the name is TensorFlow's."""

UPDATES = "ExponentialMovingAverage_updates"
"""Slot of the number of updates of a moving average."""

SUM = "accumulated"
"""Slot of the sum of the gradients of a variable."""

TOUCHED = "accumulated_mask"
"""Slot of a number that is 1 if there is a gradient in the sum; for a table by rows, a mask of the table's shape."""

_SLOTS = (AVERAGE, UPDATES, SUM, TOUCHED)


class Companion(Optimizer):
    """Base class of companions. It is made on the trainable parameters of the optimizer that it belongs to."""

    def start_over(self) -> None:
        """Set the state to its initial value for the current parameters; called when these were restored."""
        for group in self.param_groups:
            for parameter in group["params"]:
                for key, value in self.init_state(parameter, group).items():
                    self.state[parameter][key].copy_(value)


# Maps each optimizer to its companions, because torch's optimizers cannot store them.
_COMPANIONS: WeakKeyDictionary[torch.optim.Optimizer, list[Companion]] = WeakKeyDictionary()


def accompany(optimizer: torch.optim.Optimizer, make: Callable[[list[Tensor]], Companion]) -> bool:
    """Make a companion of an optimizer from its trainable parameters; return False if it has none."""
    params = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    if params:
        _COMPANIONS.setdefault(optimizer, []).append(make(params))
    return bool(params)


def companions_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[Companion]:
    """Return the companions of some optimizers."""
    return [companion for one in optimizers for companion in _COMPANIONS.get(one, ())]


def with_companions(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[torch.optim.Optimizer, ...]:
    """Return optimizers, followed by their companions."""
    return (*optimizers, *companions_of(optimizers))


def is_of_companion(slot: str) -> bool:
    """Return whether the name of a slot in a checkpoint is that of a companion's state.

    Such slots are optional: a run with companions may go on with a checkpoint of a run without them, and vice versa.
    """
    return slot.rpartition("/")[2] in _SLOTS
