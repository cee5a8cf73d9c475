"""Copies of a module together with the optimizers and schedules that were made on its parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from torch_estimator.errors import InvalidTypeError
from torch_estimator.files import reason

_COPIED_BY_TORCH = ("defaults", "state", "param_groups", "step")


def copied(module: nn.Module, *parts: Any) -> tuple[Any, ...]:
    """Returns copies of a module and of what belongs to it; what they shared, the copies share.

    Args:
        module: With its parameters and buffers.
        parts: Optimizers on its parameters, schedules, lists of them, or anything else.

    Raises:
        InvalidTypeError: The module holds something that Python cannot copy.
    """
    memo: dict[int, Any] = {}
    try:
        copies = copy.deepcopy((module, *parts), memo)
        for optimizer in optimizers_in(parts):
            _complete(optimizer, memo)
    except Exception as error:
        raise InvalidTypeError(
            f"The module {type(module).__name__} cannot be copied, which each training and evaluation needs "
            f"({type(error).__name__}: {reason(error)}); give Estimator a model_fn that makes it instead."
        ) from error
    return copies


def optimizers_in(value: Any) -> Iterator[torch.optim.Optimizer]:
    """Yields the optimizers among optimizers, schedules and lists of them."""
    if isinstance(value, LRScheduler):
        yield value.optimizer
    elif isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from optimizers_in(part)


def _complete(original: torch.optim.Optimizer, memo: dict[int, Any]) -> None:
    """Adds what torch leaves out when it copies an optimizer: attributes of its own kind, and a schedule's mark."""
    made: torch.optim.Optimizer = memo[id(original)]
    for name, value in vars(original).items():
        if name not in _COPIED_BY_TORCH:
            setattr(made, name, copy.deepcopy(value, memo))
    if hasattr(original.step, "_wrapped_by_lr_sched"):
        # A schedule's copy looks for these marks and warns where they are missing.
        step = type(made).step

        @wraps(step)
        def wrapped(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._opt_called = True  # type: ignore[attr-defined]
            return step(self, *args, **kwargs)

        wrapped._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        made.step = MethodType(wrapped, made)  # type: ignore[method-assign]
