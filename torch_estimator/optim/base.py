"""What the optimizers here have in common: rules that work on whole parameters and on gathered rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, overload

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

    Made without parameters it is unbound, as TensorFlow's optimizers are: only a setting, which makes an optimizer of
    its own kind whenever it is called with parameters.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        defaults: Settings of the groups, checked.

    >>> import torch
    >>> from torch_estimator.optim import Adagrad
    >>> factory = Adagrad(lr=0.1)
    >>> factory([torch.zeros(3, requires_grad=True)]).param_groups[0]["lr"]
    0.1
    """

    slot_names: ClassVar[dict[str, str]] = {}

    def __init__(self, params: ParamsT | None, defaults: dict[str, Any]) -> None:
        super().__init__([{"params": []}] if params is None else params, defaults)

    @property
    def unbound(self) -> bool:
        """Whether it has no parameters yet."""
        return not any(group["params"] for group in self.param_groups)

    def __call__(self, params: ParamsT) -> Self:
        """Returns an optimizer of `params` with these settings; only an unbound one can.

        Raises:
            InvalidTypeError: It has parameters of its own.
        """
        if not self.unbound:
            raise InvalidTypeError(
                f"This {type(self).__name__} has parameters already, so it cannot make an optimizer of others; make it "
                "without parameters."
            )
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        # The settings have been checked; a tensor among them must not be shared.
        settings = {key: value.clone() if isinstance(value, Tensor) else value for key, value in self.defaults.items()}
        Optimizer.__init__(bound, params, settings)
        return bound

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does, and makes the state of its parameters at once."""
        # What torch wraps around it would import its whole compiler, a second or two before the first step.
        inherited = torch.optim.Optimizer.add_param_group
        getattr(inherited, "__wrapped__", inherited)(self, param_group)
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

        Raises:
            InvalidTypeError: It is unbound.
        """
        if self.unbound:
            raise InvalidTypeError(f"This {type(self).__name__} has no parameters yet; call it with them first.")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        state = self.state[param]
                        grad = param.grad.to_dense() if param.grad.is_sparse else param.grad
                        self.update(param, grad, state, group)
                        self.advance(state, group)
        return loss


def check_learning_rate(lr: float | Tensor) -> None:
    """Raises unless `lr` is a finite number that is not negative, or a tensor without dimensions."""
    if isinstance(lr, Tensor) and lr.dim() != 0:
        raise InvalidValueError(
            f"lr must be a number or a tensor without dimensions, but got a tensor of shape {list(lr.shape)}."
        )
    check_number("lr", lr, at_least=0.0)


def one_learning_rate(
    optimizer: type[Optimizer],
    params: ParamsT | None,
    lr: float | Tensor | None,
    learning_rate: float | Tensor | None,
    *,
    default: float | None = None,
) -> float | Tensor:
    """Returns the one of torch's `lr` and TensorFlow's `learning_rate` that was given, checked, or the default.

    Raises:
        InvalidValueError: Both were given, or none where there is no default, or it is out of range.
        InvalidTypeError: It was given in the place of `params`.
    """
    name = optimizer.__name__
    if isinstance(params, int | float):
        raise InvalidTypeError(f"{name} takes its parameters first, but got {params!r}; write {name}(lr={params!r}).")
    if lr is not None and learning_rate is not None:
        raise InvalidValueError(
            f"lr and learning_rate are two names of one setting, but got lr={lr} and learning_rate={learning_rate}; "
            "give one of them."
        )
    given = next((rate for rate in (lr, learning_rate, default) if rate is not None), None)
    if given is None:
        raise InvalidValueError(f"{name} needs a learning rate, but got none; write {name}(lr=0.1), for instance.")
    check_learning_rate(given)
    return given


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


__all__ = ["Group", "Optimizer", "ParamsT", "State", "check_learning_rate", "check_number", "one_learning_rate"]
