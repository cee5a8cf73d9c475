"""Optimizers for `Estimator.from_module`: a name, a factory, or a bound optimizer made on the module's parameters.

A bound optimizer is copied together with the module, because every training starts from copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.files import reason
from torch_estimator.optim.factories import by_name, check_evaluates_once

NamedParameters = Iterable[tuple[str, nn.Parameter]]
Trainer = torch.optim.Optimizer | LRScheduler
Factory = Callable[[NamedParameters], Any]
ModuleOptimizer = str | Factory | Trainer | Sequence[Trainer]

# Default learning rates of optimizers that are given by name, as in Keras.
_RATES = {"SGD": 0.01}
_RATE = 0.001

_COPIED_BY_TORCH = ("defaults", "state", "param_groups", "step")


def is_bound(optimizer: object) -> bool:
    """Return whether the argument is or contains an optimizer or schedule that was made on parameters."""
    if isinstance(optimizer, Sequence) and not isinstance(optimizer, str):
        return any(map(is_bound, optimizer))
    if isinstance(optimizer, LRScheduler | ReduceLROnPlateau):
        return True
    return isinstance(optimizer, torch.optim.Optimizer) and not getattr(optimizer, "unbound", False)


def factory_of(optimizer: ModuleOptimizer) -> Factory:
    """Return an optimizer factory for a name, with Keras' default learning rate. Return a function unchanged.

    The learning rate is 0.01 for SGD, otherwise 0.001.
    """
    if isinstance(optimizer, str):
        return partial(_make_for_trainable, by_name(optimizer, _RATES.get(optimizer, _RATE)))
    if not callable(optimizer):
        raise InvalidTypeError(
            "optimizer must be a name, a function from named parameters to an optimizer, or optimizers of "
            f"torch.optim made on the module's parameters, but got {optimizer!r}."
        )
    return optimizer


def _make_for_trainable(
    factory: Callable[[Any], torch.optim.Optimizer], named: NamedParameters
) -> torch.optim.Optimizer:
    return factory([(name, parameter) for name, parameter in named if parameter.requires_grad])


def bound_factory(copies: ModuleOptimizer) -> Factory:
    """Return an optimizer factory that ignores the parameters it gets, and returns the given bound optimizers.

    It first moves their state to the device of the parameters, since the module may have moved after the copy.
    """

    def make(named: NamedParameters) -> Any:
        for optimizer in optimizers_in(copies):
            _move_state(optimizer)
        return copies

    return make


def _move_state(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = value.to(parameter.device)


def check_bound(optimizer: Any, module: nn.Module) -> None:
    """Reject LBFGS (needs a closure), ReduceLROnPlateau (needs a metric), and optimizers of another module."""
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


def optimizers_in(value: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield every optimizer in `value`: an optimizer, a schedule (its optimizer), or nested lists of these."""
    if isinstance(value, LRScheduler):
        yield value.optimizer
    elif isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from optimizers_in(part)


def copy_together(module: nn.Module, *parts: Any) -> tuple[Any, ...]:
    """Return deep copies of a module and of objects that refer to it, for example its optimizers.

    The copied objects refer to the copied module.
    """
    memo: dict[int, Any] = {}
    try:
        copies = copy.deepcopy((module, *parts), memo)
        for optimizer in optimizers_in(parts):
            _complete_copy(optimizer, memo)
        for parameter in module.parameters():
            _copy_hooks(parameter, memo)
    except Exception as error:
        raise InvalidTypeError(
            f"The module {type(module).__name__} cannot be copied, which each training and evaluation needs "
            f"({type(error).__name__}: {reason(error)}); give Estimator a model_fn that makes it instead."
        ) from error
    return copies


def _copy_hooks(parameter: nn.Parameter, memo: dict[int, Any]) -> None:
    """Register copies of a parameter's hooks, which torch omits. The copy of a method has the copied module."""
    made: nn.Parameter = memo[id(parameter)]
    # torch registers no hooks for a frozen parameter, which has no gradient.
    if parameter.requires_grad:
        for hook in (parameter._backward_hooks or {}).values():
            made.register_hook(copy.deepcopy(hook, memo))  # type: ignore[no-untyped-call]
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            made.register_post_accumulate_grad_hook(copy.deepcopy(hook, memo))  # type: ignore[no-untyped-call]


def _complete_copy(original: torch.optim.Optimizer, memo: dict[int, Any]) -> None:
    """Add what torch omits from an optimizer's copy: attributes of subclasses, and a schedule's wrapper of `step`."""
    made: torch.optim.Optimizer = memo[id(original)]
    for name, value in vars(original).items():
        if name not in _COPIED_BY_TORCH:
            setattr(made, name, copy.deepcopy(value, memo))
    if hasattr(original.step, "_wrapped_by_lr_sched"):
        # A schedule wraps `step` to detect that the schedule is stepped before the optimizer.
        # Wrap the copy's `step` again, because the schedule warns if the wrapper is missing.
        step = type(made).step

        @wraps(step)
        def wrapped(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._opt_called = True  # type: ignore[attr-defined]
            return step(self, *args, **kwargs)

        wrapped._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        made.step = MethodType(wrapped, made)  # type: ignore[method-assign]
