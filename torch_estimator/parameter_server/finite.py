"""A server's check of each push: only finite gradients and settings are applied."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.messages import Push
from torch_estimator.parameter_server.plan import ServerPlan

_BLOCK = 1 << 16


class NotFiniteGradientError(ClusterError):
    """The gradient of a variable is NaN or infinite.

    Attributes:
        variable: Its name.
    """

    def __init__(self, variable: str) -> None:
        super().__init__(f"The gradient of {variable} is NaN or infinite.")
        self.variable = variable


def check_finite(push: Push, plan: ServerPlan) -> None:
    """Check a push before anything of it is applied.

    Raises:
        NotFiniteGradientError: A gradient is NaN or infinite.
        ClusterError: A setting is.
    """
    numbers = push.numbers.tolist()
    if not all(map(math.isfinite, numbers)):
        moving = [(group.rule, key) for group in plan.groups for key in group.moving]
        rule, key, number = next(
            (*setting, number) for setting, number in zip(moving, numbers, strict=True) if not math.isfinite(number)
        )
        raise ClusterError(
            f"{key} of {rule} came as {number}, but settings of optimizers must be finite; see the schedule of {key}."
        )
    # One look at all of them takes a few microseconds; one at each variable would take as many times that.
    if push.gradients is not None and _is_finite(push.gradients):
        return
    for variable, gradient in _by_variable(push, plan):
        if not _is_finite(gradient.reshape(-1)):
            raise NotFiniteGradientError(variable)


def _is_finite(numbers: np.ndarray) -> bool:
    """Return whether all numbers are, block by block: what numpy notes of a block stays in the processor's cache."""
    return all(np.isfinite(numbers[at : at + _BLOCK]).all() for at in range(0, len(numbers), _BLOCK))


def _by_variable(push: Push, plan: ServerPlan) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of variables and the gradients that would be applied to them."""
    at = 0
    for one, present in zip(plan.dense, push.present.tolist(), strict=True):
        if present:
            yield one.name, push.dense[at : at + one.size]
        at += one.size
    for table, (_, gradients) in zip(plan.tables, push.tables, strict=True):
        yield table.name, gradients
