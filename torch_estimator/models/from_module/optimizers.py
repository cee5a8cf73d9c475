"""The optimizer of `Estimator.from_module`: a name, a factory, or one that was made on the module's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.models.from_module.copies import optimizers_in
from torch_estimator.optim.factories import by_name, check_evaluates_once

NamedParameters = Iterable[tuple[str, nn.Parameter]]
Trainer = torch.optim.Optimizer | LRScheduler
Factory = Callable[[NamedParameters], Any]
ModuleOptimizer = str | Factory | Trainer | Sequence[Trainer]

_RATES = {"SGD": 0.01}
_RATE = 0.001


def is_bound(optimizer: object) -> bool:
    """Whether an optimizer holds parameters already, rather than being a name or a factory."""
    if isinstance(optimizer, Sequence) and not isinstance(optimizer, str):
        return any(map(is_bound, optimizer))
    if isinstance(optimizer, LRScheduler | ReduceLROnPlateau):
        return True
    return isinstance(optimizer, torch.optim.Optimizer) and not getattr(optimizer, "unbound", False)


def factory_of(optimizer: ModuleOptimizer) -> Factory:
    """Returns the factory that a name stands for, at Keras' learning rate (SGD 0.01, others 0.001), or the one given.

    Raises:
        InvalidTypeError: It is neither.
        InvalidValueError: There is no optimizer of this name.
    """
    if isinstance(optimizer, str):
        return _of_trainable(by_name(optimizer, _RATES.get(optimizer, _RATE)))
    if not callable(optimizer):
        raise InvalidTypeError(
            "optimizer must be a name, a function from named parameters to an optimizer, or optimizers of "
            f"torch.optim made on the module's parameters, but got {optimizer!r}."
        )
    return optimizer


def bound_factory(copies: ModuleOptimizer) -> Factory:
    """Returns the factory that hands out copies of optimizers, their state where their parameters are."""

    def hand_out(named: NamedParameters) -> Any:
        for optimizer in optimizers_in(copies):
            _move_state(optimizer)
        return copies

    return hand_out


def check_bound(optimizer: Any, module: nn.Module) -> None:
    """Checks that optimizers were made on a module's parameters and can take steps given gradients alone.

    Raises:
        InvalidTypeError: There are functions among them, or one needs more than gradients.
        InvalidValueError: One holds other parameters.
    """
    given = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    for one in given:
        if not is_bound(one) or isinstance(one, Sequence):
            raise InvalidTypeError(
                f"a list of optimizers must hold optimizers made on the module's parameters, but holds {one!r}; to "
                "make several, give one function that returns them all."
            )
        if isinstance(one, ReduceLROnPlateau):
            raise InvalidTypeError(
                "ReduceLROnPlateau steps by a metric, but training here steps schedules by steps; use another schedule."
            )
    known = set(module.parameters())
    for one in optimizers_in(given):
        check_evaluates_once(one)
        if any(parameter not in known for group in one.param_groups for parameter in group["params"]):
            raise InvalidValueError(
                f"The optimizer {type(one).__name__} holds a parameter that is not one of the module "
                f"{type(module).__name__}'s; make it on module.parameters()."
            )


def _of_trainable(factory: Callable[[Any], torch.optim.Optimizer]) -> Factory:
    return partial(_make, factory)


def _make(factory: Callable[[Any], torch.optim.Optimizer], named: NamedParameters) -> torch.optim.Optimizer:
    return factory([(name, parameter) for name, parameter in named if parameter.requires_grad])


def _move_state(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = value.to(parameter.device)
