"""Checks of a training: its losses and variables are finite, and its loss reads no foreign parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from torch_estimator.checkpoint.sharded_tensors import own
from torch_estimator.errors import InvalidValueError, NanLossDuringTrainingError
from torch_estimator.hooks.run_context import RunContext

logger = logging.getLogger("torch_estimator")


class NotFinite(Exception):
    """A trained variable holds NaN or infinity.

    Args:
        name: Name of the variable.
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


def check_leaves(loss: Tensor, module: nn.Module) -> None:
    """Raise where a loss depends on a parameter that requires gradients and is not one of the module's.

    Such a parameter gets no update and is in no checkpoint. `Estimator.from_module` trains a copy of the module that it
    is given: a penalty that reads the weights of the original would have no effect.

    Args:
        loss: A scalar whose graph has not been freed yet.
        module: The trained module.

    Raises:
        InvalidValueError: There is such a parameter.
    """
    known = set(module.parameters())
    for leaf in _leaves(loss):
        # FullyShardedStrategy computes with gathered parameters, whose memory is free again after the forward pass.
        if isinstance(leaf, nn.Parameter) and leaf not in known and leaf.untyped_storage().size():
            raise InvalidValueError(
                f"The loss depends on a parameter of shape {list(leaf.shape)} that is not one of the trained module's, "
                "so it would never be trained or saved (from_module trains a copy of its module); return what the loss "
                "needs from the module, or use a model_fn whose loss reads the module that it returns, or freeze the "
                "parameter with requires_grad_(False)."
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors at the ends of a loss's graph that accumulate gradients."""
    if loss.grad_fn is None:
        yield loss
        return
    nodes, seen = [loss.grad_fn], {loss.grad_fn}
    while nodes:
        node = nodes.pop()
        # Only nodes of the kind AccumulateGrad have this attribute.
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        new = {following for following, _ in node.next_functions if following is not None} - seen
        nodes += new
        seen |= new
