"""Regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads import signature
from torch_estimator.heads.base import Head, Metrics, check_labels, check_logits, check_name, weight_key
from torch_estimator.heads.labels import numeric_labels
from torch_estimator.heads.loss_fn import Features, LossFn, UnweightedLoss, unweighted_loss
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.metrics import Buffered, RegressionMetrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class RegressionHead(Head):
    """Squared error over one logit per target.

    Args:
        label_dimension: Targets per example.
        weight_column: Feature that holds the examples' weights.
        loss_reduction: How the losses of a batch become the training loss; a member or its name.
        loss_fn: Called with ``labels`` and ``logits`` (float32 [N, label_dimension]) by keyword, and with
            ``features`` and ``loss_reduction`` if it names those; returns losses of the same shape. Replaces
            the squared error.
        inverse_link_fn: From logits to predicted values, where these differ; the loss is of the logits.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> RegressionHead().prepare_labels(np.array([1, 2])).tolist()
    [[1.0], [2.0]]
    """

    label_dimension: int = 1
    weight_column: str | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    inverse_link_fn: Callable[[Tensor], Tensor] | None = None
    name: str | None = None
    _unweighted_loss: UnweightedLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        reduction = LossReduction.of(self.loss_reduction)
        dimension = _check_label_dimension(self.label_dimension)
        if self.inverse_link_fn is not None and not callable(self.inverse_link_fn):
            raise InvalidTypeError(f"inverse_link_fn must be a function of logits, but got {self.inverse_link_fn!r}.")
        loss = unweighted_loss(self.loss_fn, reduction, width=dimension, default=_squared_error)
        checked = {
            "label_dimension": dimension,
            "weight_column": weight_key(self.weight_column),
            "loss_reduction": reduction,
            "_unweighted_loss": loss,
        }
        for attribute, value in checked.items():
            object.__setattr__(self, attribute, value)

    @property
    def logits_dimension(self) -> int:
        """The label dimension."""
        return self.label_dimension

    @property
    def prediction_keys(self) -> tuple[str, ...]:
        """``predictions``, and ``logits`` if there is an inverse link."""
        return ("predictions",) if self.inverse_link_fn is None else ("predictions", "logits")

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Returns the targets, float32 [N, label_dimension]."""
        return numeric_labels(labels, dimension=self.label_dimension)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Returns one loss per example and target, [N, label_dimension]."""
        check_logits(logits, self.label_dimension)
        check_labels(labels, logits, self.label_dimension)
        return self._unweighted_loss(labels, logits, features)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns predictions, and logits if there is an inverse link, each [N, label_dimension]."""
        check_logits(logits, self.label_dimension)
        if self.inverse_link_fn is None:
            return {"predictions": logits}
        return {"predictions": self.inverse_link_fn(logits), "logits": logits}

    def metrics(self) -> Metrics:
        """Returns fresh `RegressionMetrics`."""
        return Buffered(
            RegressionMetrics(
                unweighted_loss=self._unweighted_loss,
                predict=self.inverse_link_fn or _identity,
                name=self.name,
            )
        )

    def signatures(self) -> dict[str, signature.Signature]:
        """Returns regression (the default) and prediction."""
        return {
            signature.SERVING_DEFAULT: signature.regression("predictions"),
            "regression": signature.regression("predictions"),
            "predict": signature.prediction(self.prediction_keys),
        }


def _squared_error(labels: Tensor, logits: Tensor) -> Tensor:
    return F.mse_loss(logits, labels, reduction="none")


def _identity(logits: Tensor) -> Tensor:
    return logits


def _check_label_dimension(dimension: int) -> int:
    if isinstance(dimension, bool) or not isinstance(dimension, (int, np.integer)):
        raise InvalidTypeError(f"label_dimension must be an integer, but got {dimension!r}.")
    if dimension < 1:
        raise InvalidValueError(f"label_dimension must be at least 1, but got {dimension}.")
    return int(dimension)
