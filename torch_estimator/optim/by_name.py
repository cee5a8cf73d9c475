"""Optimizers by the names that tf.estimator's constructors take."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.adagrad import Adagrad
from torch_estimator.optim.adam import Adam
from torch_estimator.optim.adamw import AdamW
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.ftrl import Ftrl
from torch_estimator.optim.gradient_descent import GradientDescent
from torch_estimator.optim.rmsprop import RMSProp

_BY_NAME: dict[str, Callable[..., Optimizer]] = {
    "Adagrad": Adagrad,
    "Adam": Adam,
    "AdamW": AdamW,
    "Ftrl": Ftrl,
    "RMSProp": RMSProp,
    "SGD": GradientDescent,
}


def by_name(name: str, learning_rate: float | Tensor) -> Optimizer:
    """Returns the optimizer called `name`, unbound, with all else at its defaults.

    Args:
        name: ``"Adagrad"``, ``"Adam"``, ``"AdamW"``, ``"Ftrl"``, ``"RMSProp"`` or ``"SGD"``.
        learning_rate: The optimizer's learning rate.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: There is no such name, or the learning rate is negative.

    >>> import torch
    >>> optimizer = by_name("Ftrl", 0.2)([torch.zeros(3, requires_grad=True)])
    >>> optimizer.param_groups[0]["lr"]
    0.2
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"An optimizer's name must be a string, but got {name!r}.")
    if name not in _BY_NAME:
        names = ", ".join(repr(known) for known in _BY_NAME)
        raise InvalidValueError(f"Unknown optimizer {name!r}; the names are {names}.")
    return _BY_NAME[name](lr=learning_rate)
