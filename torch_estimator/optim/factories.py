"""Optimizer factories: functions that take a model's named parameters and return its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.adagrad import Adagrad
from torch_estimator.optim.adam import Adam, AdamW
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.ftrl import Ftrl
from torch_estimator.optim.gradient_descent import GradientDescent
from torch_estimator.optim.rmsprop import RMSProp

NamedParameters = Iterable[tuple[str, nn.Parameter]]
"""Pairs of a name and a parameter, as ``module.named_parameters()`` yields them."""

Trainer = torch.optim.Optimizer | LRScheduler
"""An optimizer, or a learning-rate schedule that holds one."""

OptimizerFactory = Callable[[NamedParameters], Trainer | Sequence[Trainer]]
"""Function from named parameters to their optimizers.

An unbound optimizer of this package, an optimizer's class, or any other function can be a factory.
"""


def optimizers_of(made: Trainer | Sequence[Trainer]) -> list[torch.optim.Optimizer]:
    """Return the optimizers in the result of an optimizer factory, each once."""
    trainers = made if isinstance(made, Sequence) else [made]
    return list(dict.fromkeys(one.optimizer if isinstance(one, LRScheduler) else one for one in trainers))


_BY_NAME: dict[str, Callable[..., Optimizer]] = {
    "Adagrad": Adagrad,
    "Adam": Adam,
    "AdamW": AdamW,
    "Ftrl": Ftrl,
    "RMSProp": RMSProp,
    "SGD": GradientDescent,
}


def by_name(name: str, learning_rate: float | Tensor) -> Optimizer:
    """Return the optimizer with a given name, without parameters and with default settings except the learning rate.

    Args:
        name: ``"Adagrad"``, ``"Adam"``, ``"AdamW"``, ``"Ftrl"``, ``"RMSProp"`` or ``"SGD"``.
        learning_rate: Learning rate of the optimizer.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: No optimizer has this name, or the learning rate is negative.

    >>> te.optim.by_name("Ftrl", 0.2).defaults["lr"]
    0.2
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"An optimizer's name must be a string, but got {name!r}.")
    if name not in _BY_NAME:
        names = ", ".join(repr(known) for known in _BY_NAME)
        raise InvalidValueError(f"Unknown optimizer {name!r}; the names are {names}.")
    return _BY_NAME[name](lr=learning_rate)


def check_factory(optimizer: object, *, or_name: bool = False) -> None:
    """Raise InvalidTypeError unless `optimizer` can be called with named parameters. The message shows correct code.

    If the caller also accepts names of optimizers (`or_name`), the message mentions them.
    """
    if isinstance(optimizer, LRScheduler):
        name = type(optimizer).__name__
        raise InvalidTypeError(
            f"A schedule must be made with its optimizer, for each training anew, but got {name} of an existing one; "
            f"give a function such as lambda named: {name}(te.optim.AdamW(named, lr=0.001), ...)."
        )
    if isinstance(optimizer, torch.optim.Optimizer) and not (isinstance(optimizer, Optimizer) and optimizer.unbound):
        raise InvalidTypeError(
            "An optimizer must be given without parameters, since those of the model are made for each training anew, "
            f"but got {type(optimizer).__name__} with parameters; write {_unbound(optimizer)}."
        )
    if not callable(optimizer):
        raise InvalidTypeError(
            f"An optimizer must be {'a name or ' if or_name else ''}a function from named parameters to an optimizer, "
            "such as te.optim.Adam(lr=0.001) or functools.partial(torch.optim.Adam, lr=0.001), but got "
            f"{optimizer!r}."
        )


def _unbound(optimizer: torch.optim.Optimizer) -> str:
    """Return Python code that makes an optimizer of the same class and learning rate, but without parameters."""
    name, rate = type(optimizer).__name__, float(optimizer.defaults.get("lr", 0.001))
    if isinstance(optimizer, Optimizer):
        return f"te.optim.{name}(lr={rate:g})"
    home = "torch.optim." if type(optimizer).__module__.startswith("torch.optim") else ""
    return f"functools.partial({home}{name}, lr={rate:g})"


def check_evaluates_once(optimizer: torch.optim.Optimizer) -> None:
    """Raise InvalidTypeError for LBFGS, which evaluates the loss of a batch several times in each step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidTypeError(
            "LBFGS evaluates the loss several times a step, which training on batches does not; use another optimizer."
        )
