"""Wrapper of a user's loss function that replaces the loss of a head."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.metrics import Features
from torch_estimator.metrics.broadcast_check import BroadcastCheck

LossFn = Callable[..., Tensor]
"""Function of ``labels`` and ``logits``, called by keyword; it may also take ``features`` and ``loss_reduction``."""

_ARGUMENTS = ("labels", "logits", "features", "loss_reduction")


class UserLoss:
    """Callable that runs a user's loss function, and checks its parameters and its results.

    The function gets `reduction` as ``loss_reduction`` and the features if it takes them.
    """

    def __init__(self, loss_fn: LossFn, reduction: LossReduction) -> None:
        names = _argument_names(loss_fn)
        self._loss_fn = partial(loss_fn, loss_reduction=reduction) if "loss_reduction" in names else loss_fn
        self._check = BroadcastCheck("The loss_fn")
        self.wants_features = "features" in names

    def __call__(self, labels: Tensor, logits: Tensor, features: Features | None, *, width: int) -> Tensor:
        """Call the user's function with the batch's labels and logits [N, D]; return the losses, [N, width].

        The labels are as the head prepares them. `features` is None only if the function does not take them.
        """
        arguments: dict[str, Any] = {"labels": labels, "logits": logits}
        if self.wants_features:
            if features is None:
                raise InvalidValueError("loss_fn takes features, but the head was called without them.")
            arguments["features"] = features
        losses = self._check(arguments, lambda: self._loss_fn(**arguments))
        expected = (*logits.shape[:-1], width)
        if losses.shape != expected:
            raise InvalidValueError(
                f"loss_fn must return one loss per example and output, of shape {list(expected)}, "
                f"but it returned shape {list(losses.shape)}."
            )
        return losses


def _argument_names(loss_fn: LossFn) -> list[str]:
    """Return the names of a loss function's free arguments; raise an error if they are not allowed."""
    if not callable(loss_fn):
        raise InvalidTypeError(f"loss_fn must be a function of labels and logits, but got {loss_fn!r}.")
    bound = loss_fn.keywords if isinstance(loss_fn, partial) else {}
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(loss_fn).parameters.values()
    names = [p.name for p in parameters if p.kind not in kinds and p.name not in bound]
    for required in ("labels", "logits"):
        if required not in names:
            raise InvalidValueError(
                f"loss_fn must contain argument: {required}; given arguments: {', '.join(names) or 'none'}."
            )
    unexpected = [name for name in names if name not in _ARGUMENTS]
    if unexpected:
        raise InvalidValueError(
            f"loss_fn has unexpected args: {unexpected}; it may take {', '.join(_ARGUMENTS)}, and anything "
            "else must be bound with functools.partial."
        )
    return names
