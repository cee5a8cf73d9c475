"""Base class of this project's optimizers: a torch optimizer whose update rule consists of functions of tensors.

The training step calls these functions itself. It can thus update only the rows of an embedding table that a batch
contains, and compile the update into one graph with the forward and the backward pass.
"""

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
"""State of one parameter by key: tensors of its shape, and 0-dimensional tensors such as a number of steps."""

Group = dict[str, Any]
"""Parameter group of a torch optimizer: its settings by name, and ``params``."""


class Optimizer(torch.optim.Optimizer, ABC):
    """A torch optimizer whose update rule consists of three functions: `init_state`, `update` and `advance`.

    `step` calls these functions. The training step calls them as well, under ``torch.no_grad()`` and inside
    ``torch.compile(fullgraph=True)``:

    * ``init_state(param, group)`` returns the state of a parameter. It is called when the parameter is added.
    * ``update(param, grad, state, group)`` changes `param` and the state in place, element by element. All tensors may
      hold only some rows of a table. The 0-dimensional entries of the state must not change here, because one training
      step may call this function for several sets of rows.
    * ``advance(state, group)`` changes the 0-dimensional entries of the state. It is called once per training step,
      after all updates.

    The learning rate is ``group["lr"]``: a float, or a 0-dimensional tensor, which may change without a recompilation.

    Without parameters an optimizer is unbound, as TensorFlow's optimizers are: it only holds settings. Calling an
    unbound optimizer with parameters returns a new optimizer of these parameters.

    A rule for parameter servers is a separate function in numpy; `torch_estimator.optim` says how to add one.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        defaults: Settings of the groups. The subclass has checked them.

    Attributes:
        slot_names: Key of the state -> name of the slot. A checkpoint stores the state of a variable as
            ``<variable>/<slot>``, as TensorFlow does.

    >>> class SignDescent(te.optim.Optimizer):
    ...     def __init__(self, params=None, lr=0.1):
    ...         super().__init__(params, {"lr": lr})
    ...     @staticmethod
    ...     def update(param, grad, state, group):
    ...         param.sub_(grad.sign() * group["lr"])
    >>> weight = torch.zeros(2, requires_grad=True)
    >>> optimizer = SignDescent(lr=0.5)([weight])
    >>> weight.grad = torch.tensor([3.0, -7.0])
    >>> optimizer.step()
    >>> weight.tolist()
    [-0.5, 0.5]
    """

    slot_names: ClassVar[dict[str, str]] = {}

    def __init__(self, params: ParamsT | None, defaults: dict[str, Any]) -> None:
        super().__init__([{"params": []}] if params is None else params, defaults)

    @property
    def unbound(self) -> bool:
        """Whether the optimizer has no parameters yet."""
        return not any(group["params"] for group in self.param_groups)

    def __call__(self, params: ParamsT) -> Self:
        """Return a new optimizer of `params` with the settings of this optimizer, which must have no parameters.

        Args:
            params: Parameters, named parameters or groups, as for every torch optimizer.

        Raises:
            InvalidTypeError: This optimizer has parameters already.
        """
        if not self.unbound:
            raise InvalidTypeError(
                f"This {type(self).__name__} has parameters already, so it cannot make an optimizer of others; make it "
                "without parameters."
            )
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        # Skip the subclass's __init__, because the settings have been checked already.
        # Clone settings that are tensors, because the two optimizers must not share a tensor.
        settings = {key: value.clone() if isinstance(value, Tensor) else value for key, value in self.defaults.items()}
        Optimizer.__init__(bound, params, settings)
        return bound

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, and create the optimizer state of its parameters."""
        # Bypass torch's wrapper of this method, because the wrapper imports the whole compiler (1 to 2 seconds).
        inherited = torch.optim.Optimizer.add_param_group
        getattr(inherited, "__wrapped__", inherited)(self, param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            self.state[param] = self.init_state(param, group)

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return the initial optimizer state of `param`: tensors of the same shape, or 0-dimensional tensors.

        Args:
            param: The parameter.
            group: Settings of the parameter group, such as ``lr``.
        """
        return {}

    @staticmethod
    @abstractmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param` and `state` in place with the gradient `grad`.

        Args:
            param: The parameter, or some rows of a table.
            grad: Its gradient, in the same shape.
            state: The state of the parameter or of these rows, by key.
            group: Settings of the parameter group, such as ``lr``.
        """

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Update the 0-dimensional entries of `state` in place at the end of a step.

        Args:
            state: The state of a parameter, by key.
            group: Settings of the parameter group, such as ``lr``.
        """
        return

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient.

        Args:
            closure: Function that computes the loss and the gradients, as for other torch optimizers.

        Returns:
            The loss that `closure` returned, or None.

        Raises:
            InvalidTypeError: This optimizer is unbound.
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


def filled_like(param: Tensor, value: float) -> Tensor:
    """Return a tensor of the shape, dtype and device of `param`, filled with a value."""
    if param.is_meta:
        # `zeros_like` and `full_like` of such a tensor import sympy, which takes a second and 35 MB.
        return torch.full(param.shape, value, dtype=param.dtype, device=param.device)
    return torch.full_like(param.detach(), value) if value else torch.zeros_like(param.detach())


def check_learning_rate(lr: float | Tensor) -> None:
    """Raise an error unless `lr` is a number or a 0-dimensional tensor, finite and not negative."""
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
    """Return the learning rate, which the user gives either as `lr` (as in torch) or as `learning_rate` (TensorFlow).

    Without a default, one of them must be given. `params`, the optimizer's first argument, must not be the learning
    rate.
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
    """Raise an error that names the bounds unless `value` is a finite number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        raise InvalidTypeError(f"{name} must be a number, but got {value!r}.")
    number = float(value)
    if math.isfinite(number) and at_least <= number <= at_most and above < number < below:
        return
    bounds = {"at least": at_least, "greater than": above, "at most": at_most, "less than": below}
    rule = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if math.isfinite(bound))
    raise InvalidValueError(f"{name} must be {rule or 'finite'}, but got {number:g}.")


__all__ = ["Group", "Optimizer", "ParamsT", "State", "check_learning_rate", "check_number", "one_learning_rate"]
