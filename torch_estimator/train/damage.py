"""Numbers that are NaN or infinite: they end a training and are never saved."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from torch_estimator.checkpoint.sharded_tensors import own
from torch_estimator.errors import NanLossDuringTrainingError
from torch_estimator.hooks.run_context import RunContext

logger = logging.getLogger("torch_estimator")


class NotFinite(Exception):
    """A trained variable holds NaN or infinity.

    Args:
        name: Of the variable.
        is_nan: Whether it holds NaN.
    """

    def __init__(self, name: str, is_nan: bool) -> None:
        super().__init__(name, is_nan)
        self.name = name
        self.is_nan = is_nan


def check_finite(variables: Mapping[str, Tensor]) -> None:
    """Raise `NotFinite` for the first variable that holds NaN or infinity, in the rows that this process has of it."""
    for name, variable in variables.items():
        numbers = own(variable)
        if not numbers.numel():
            continue
        if numbers.is_complex():
            numbers = torch.view_as_real(numbers)
        # One pass without a copy; both ends are NaN where any element is.
        least, most = map(float, torch.aminmax(numbers))
        if not (math.isfinite(least) and math.isfinite(most)):
            raise NotFinite(name, math.isnan(least))


def end_for_loss(context: RunContext, loss: float) -> None:
    """End the training for a loss that is NaN or infinite.

    Raises:
        NanLossDuringTrainingError: `context.fail_on_nan_loss` is true.
    """
    _end(
        context,
        f"The loss became {_word(math.isnan(loss))} at global step {context.global_step}; try a smaller learning rate "
        "or look for invalid values in the input. The last checkpoint holds the state before it.",
    )


def end_for_variable(context: RunContext, found: NotFinite) -> None:
    """End the training instead of saving a trained variable that is not finite.

    Raises:
        NanLossDuringTrainingError: `context.fail_on_nan_loss` is true.
    """
    if not context.global_step:
        _end(
            context,
            f"The trained variable {found.name!r} is {_word(found.is_nan)} before the first step; give it finite "
            "initial values, or, where it is a constant such as a mask, make it a buffer or freeze it with "
            "requires_grad_(False).",
        )
        return
    _end(
        context,
        f"The trained variable {found.name!r} is {_word(found.is_nan)} at global step {context.global_step}, "
        "so this step is not saved; try a smaller learning rate, or look for invalid values in the input and for "
        "operations whose gradient is not finite, such as sqrt at 0. The checkpoint before it stays the newest.",
    )


def _end(context: RunContext, message: str) -> None:
    context.damaged = True
    if context.fail_on_nan_loss:
        raise NanLossDuringTrainingError(message)
    logger.error("%s Training ends.", message)


def _word(is_nan: bool) -> str:
    return "NaN" if is_nan else "infinite"
