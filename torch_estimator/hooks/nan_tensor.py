"""Checks for NaN and infinity: a loss or a trained variable that is not finite ends training, and is not saved."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from torch_estimator.checkpoint.sharded_tensors import to_local
from torch_estimator.errors import InvalidTypeError, NanLossDuringTrainingError
from torch_estimator.hooks.hook import Hook, RunContext

logger = logging.getLogger("torch_estimator")


class NanTensorHook(Hook):
    """Hook that decides whether a training loss of NaN or infinity is an error.

    Training checks the loss without this hook as well and raises `NanLossDuringTrainingError`. The same happens if a
    trained variable is NaN or infinite when it is to be saved. In both cases the last checkpoint has finite weights.

    Args:
        fail_on_nan_loss: If False, training ends with a line in the log instead of an error, and
            ``train_and_evaluate`` evaluates and exports the last checkpoint.

    Raises:
        InvalidTypeError: The argument is not a bool, for example the tensor that tf.estimator's hook takes.

    >>> estimator = te.BaselineRegressor("memory://NanTensorHook")
    >>> data = {"x": [1.0]}, [1e30]
    >>> hook = te.NanTensorHook(fail_on_nan_loss=False)
    >>> estimator = estimator.train(lambda: data, steps=10, hooks=[hook])
    >>> estimator.get_variable_value("global_step")
    array(0)
    """

    every_n_steps = None

    def __init__(self, fail_on_nan_loss: bool = True) -> None:
        if not isinstance(fail_on_nan_loss, bool):
            raise InvalidTypeError(
                f"NanTensorHook watches the training loss and takes only fail_on_nan_loss, True or False, but got "
                f"{fail_on_nan_loss!r}."
            )
        self._fail = fail_on_nan_loss

    def begin(self, context: RunContext) -> None:
        context.fail_on_nan_loss = self._fail


class NotFinite(Exception):
    """Error for a trained variable that contains NaN (`is_nan`) or infinity."""

    def __init__(self, name: str, is_nan: bool) -> None:
        super().__init__(name, is_nan)
        self.name = name
        self.is_nan = is_nan


def check_finite(variables: Mapping[str, Tensor]) -> None:
    """Check that variables are finite; of a sharded variable, check only the rows that this process holds.

    Raise `NotFinite`, which names the first variable that is not.
    """
    for name, variable in variables.items():
        numbers = to_local(variable)
        # Parameter servers check what they hold, which is on the device "meta" here.
        if not numbers.numel() or numbers.is_meta:
            continue
        if numbers.is_complex():
            numbers = torch.view_as_real(numbers)
        # The minimum and the maximum are enough, because both are NaN if any element is NaN.
        least, most = map(float, torch.aminmax(numbers))
        if not (math.isfinite(least) and math.isfinite(most)):
            raise NotFinite(name, math.isnan(least))


def end_for_loss(context: RunContext, loss: float, in_batch: str | None = None) -> None:
    """End training because a loss is NaN or infinite: raise an error, or only log the reason.

    `in_batch` says what is not finite in its batch; it is empty if nothing is, and None if that is not known.
    """
    if in_batch:
        cause = f"in its batch, {in_batch}: give missing numbers a value, or leave such rows out"
    else:
        cause = "try a smaller learning rate or look for invalid values in the input"
        if in_batch is not None:
            cause = (
                "try a smaller learning rate, or look for operations of the model whose result is not finite, such as "
                "log at 0: the numbers that this process has read for it are finite"
            )
    _end(
        context,
        f"The loss became {_word(math.isnan(loss))} at global step {context.global_step}; {cause}. "
        "The last checkpoint holds the state before it.",
    )


def end_for_variable(context: RunContext, found: NotFinite) -> None:
    """End training because a trained variable is not finite: raise an error, or only log the reason."""
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
