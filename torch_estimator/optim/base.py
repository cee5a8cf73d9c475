"""What the optimizers here have in common: rules that work on whole parameters and on gathered rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torch_estimator.errors import InvalidTypeError, InvalidValueError

State = dict[str, Tensor]
Group = dict[str, Any]


class Optimizer(torch.optim.Optimizer, ABC):
    """A `torch.optim.Optimizer` whose rule can also be had as three functions of tensors.

    `step()` is made of them, and an engine may call them itself, under ``torch.no_grad()`` and inside
    ``torch.compile(fullgraph=True)``:

    * ``init_state(param, group)`` makes the state of one parameter; called when the parameter is added.
    * ``update(param, grad, state, group)`` changes `param` and the elementwise entries of `state` in place.
      It treats every element by itself, so all may be rows gathered from the whole. It only reads the
      0-dimensional entries, so it may be called for several sets of rows in one step.
    * ``advance(state, group)`` moves the 0-dimensional entries on; once a step, after all of its updates.

    `slot_names` gives, for every key of the state, the name that follows the variable's in TensorFlow's
    checkpoints. The learning rate is ``group["lr"]``: a float, or a 0-dimensional tensor, which may change
    without a recompilation.
    """

    slot_names: ClassVar[dict[str, str]] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does, and makes the state of its parameters at once."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            self.state[param] = self.init_state(param, group)

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Returns the state of `param` before the first step: tensors of its shape, or 0-dimensional ones."""
        return {}

    @staticmethod
    @abstractmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Applies `grad` to `param` and `state`, in place."""

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Moves the scalars of `state` on by one step, in place."""
        return

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient.

        Args:
            closure: Computes the loss and the gradients anew, as for other torch optimizers.

        Returns:
            What `closure` returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        state = self.state[param]
                        self.update(param, param.grad, state, group)
                        self.advance(state, group)
        return loss


def check_learning_rate(lr: float | Tensor) -> None:
    """Raises unless `lr` is a finite number that is not negative, or a tensor without dimensions."""
    if isinstance(lr, Tensor) and lr.dim() != 0:
        raise InvalidValueError(
            f"lr must be a number or a tensor without dimensions, but got a tensor of shape {list(lr.shape)}."
        )
    check_number("lr", lr, at_least=0.0)


def check_number(
    name: str,
    value: float | Tensor,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raises unless `value` is a finite number within the bounds given; the message says them."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        raise InvalidTypeError(f"{name} must be a number, but got {value!r}.")
    number = float(value)
    if math.isfinite(number) and at_least <= number <= at_most and above < number < below:
        return
    bounds = {"at least": at_least, "greater than": above, "at most": at_most, "less than": below}
    rule = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if math.isfinite(bound))
    raise InvalidValueError(f"{name} must be {rule or 'finite'}, but got {number:g}.")


__all__ = ["Group", "Optimizer", "ParamsT", "State", "check_learning_rate", "check_number"]
