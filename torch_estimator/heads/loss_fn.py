"""A head's own loss, or one given by its user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.pairs import PairCheck

LossFn = Callable[..., Tensor]
Features = Mapping[str, Any]

_ARGUMENTS = ("labels", "logits", "features", "loss_reduction")


class UnweightedLoss(Protocol):
    """From labels [N, D'] and logits [N, D] to losses [N, width]."""

    def __call__(self, labels: Tensor, logits: Tensor, features: Features | None = None) -> Tensor: ...


def unweighted_loss(
    loss_fn: LossFn | None, reduction: LossReduction, *, width: int, default: Callable[[Tensor, Tensor], Tensor]
) -> UnweightedLoss:
    """Returns the function from (labels [N, D'], logits [N, D]) to losses [N, width] that a head is to use.

    Args:
        loss_fn: The user's ``loss_fn(labels, logits)``, called by keyword; it may take ``features`` and
            ``loss_reduction``, too. None chooses `default`.
        reduction: What `loss_fn` is given as ``loss_reduction`` if it asks for it.
        width: Losses per example that it must return.
        default: The head's own loss.

    Raises:
        InvalidTypeError: `loss_fn` cannot be called.
        InvalidValueError: `loss_fn` lacks an argument or has another one.
    """
    if loss_fn is None:
        return partial(_default_loss, default)
    names = _argument_names(loss_fn)
    keywords = {"loss_reduction": reduction} if "loss_reduction" in names else {}
    bound = partial(loss_fn, **keywords)
    return partial(_checked_loss, bound, width, "features" in names, PairCheck("The loss_fn"))


def wants_features(loss_fn: LossFn | None) -> bool:
    """Whether a loss_fn names ``features``."""
    return loss_fn is not None and "features" in _argument_names(loss_fn)


def _argument_names(loss_fn: LossFn) -> list[str]:
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


def _default_loss(
    function: Callable[[Tensor, Tensor], Tensor], labels: Tensor, logits: Tensor, features: Features | None = None
) -> Tensor:
    return function(labels, logits)


def _checked_loss(
    loss_fn: LossFn,
    width: int,
    with_features: bool,
    check: PairCheck,
    labels: Tensor,
    logits: Tensor,
    features: Features | None = None,
) -> Tensor:
    if with_features and features is None:
        raise InvalidValueError("loss_fn takes features, but the head was called without them.")
    arguments: dict[str, Any] = {"labels": labels, "logits": logits}
    if with_features:
        arguments["features"] = features
    losses = check(arguments, lambda: loss_fn(**arguments))
    expected = (*logits.shape[:-1], width)
    if losses.shape != expected:
        raise InvalidValueError(
            f"loss_fn must return one loss per example and output, of shape {list(expected)}, "
            f"but it returned shape {list(losses.shape)}."
        )
    return losses
