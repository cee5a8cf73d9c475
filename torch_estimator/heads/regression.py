"""Regression heads: squared error, Poisson and logistic, as in tf.estimator's regression_head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.base import Head, check_labels, check_logits
from torch_estimator.heads.labels import check_range, numeric_labels
from torch_estimator.heads.loss_fn import LossFn
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.serving import Graph, Prediction, Signature, regression, signatures_of
from torch_estimator.metrics import Buffered, Features, MeanMetrics, Metrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels

# Inverse link functions that one ONNX operator computes. They treat every element independently.
_LINKS: tuple[tuple[Callable[[Tensor], Tensor], str], ...] = ((torch.exp, "Exp"), (torch.sigmoid, "Sigmoid"))


@dataclass(frozen=True)
class RegressionHead(Head):
    """Head for regression: squared error over one logit per target.

    Labels are numbers, ``[N]`` or ``[N, label_dimension]``. The prediction is ``predictions``, float32 ``[N,
    label_dimension]``, and ``logits`` as well if there is an ``inverse_link_fn``. The metrics are ``average_loss``,
    ``prediction/mean`` and ``label/mean``.

    Args:
        label_dimension: Number of targets per example.
        weight_column: Feature that holds the examples' weights.
        loss_reduction: How the losses of a batch become the training loss: a member or its name.
        loss_fn: Function that replaces the squared error. It is called by keyword with ``labels`` and ``logits``
            (float32 [N, label_dimension]), and with ``features`` and ``loss_reduction`` if it has parameters of these
            names. It returns losses of the same shape.
        inverse_link_fn: Function from logits to predicted values; None if the logits are the values. The loss is always
            computed from the logits.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = te.RegressionHead(label_dimension=2)
    >>> logits, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 5.0]])
    >>> head.unweighted_loss(logits, labels), head.loss(logits, labels)
    (tensor([[0., 9.]]), tensor(4.5000))
    """

    label_dimension: int = 1
    weight_column: str | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    inverse_link_fn: Callable[[Tensor], Tensor] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        self._set(label_dimension=_check_label_dimension(self.label_dimension))
        if self.inverse_link_fn is not None and not callable(self.inverse_link_fn):
            raise InvalidTypeError(f"inverse_link_fn must be a function of logits, but got {self.inverse_link_fn!r}.")
        super().__post_init__()

    @property
    def logits_dimension(self) -> int:
        """Number of logits per example: one for each target."""
        return self.label_dimension

    @property
    def prediction_keys(self) -> tuple[str, ...]:
        """Keys of the predictions: ``predictions``, and ``logits`` if there is an inverse link."""
        return ("predictions",) if self.inverse_link_fn is None else ("predictions", "logits")

    @property
    def rows_are_independent(self) -> bool:
        """Whether every example is treated independently; False if the user wrote the loss or the inverse link."""
        return super().rows_are_independent and (self.inverse_link_fn is None or self._link is not None)

    @property
    def _link(self) -> str | None:
        """Name of the ONNX operator that computes the inverse link; None if no single operator does."""
        return next((kind for function, kind in _LINKS if function is self.inverse_link_fn), None)

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Return the targets, float32 [N, label_dimension]."""
        return numeric_labels(labels, dimension=self.label_dimension)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Return one loss per example and target, [N, label_dimension]."""
        check_logits(logits, self.label_dimension)
        check_labels(labels, logits, self.label_dimension)
        if self._user_loss is not None:
            return self._user_loss(labels, logits, features, width=self.label_dimension)
        return self._own_loss(logits, labels)

    def _own_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(logits, labels, reduction="none")

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Return predictions, and logits if there is an inverse link, each [N, label_dimension]."""
        check_logits(logits, self.label_dimension)
        if self.inverse_link_fn is None:
            return {"predictions": logits}
        return {"predictions": self.inverse_link_fn(logits), "logits": logits}

    def metrics(self) -> Metrics:
        """Return new metrics for one evaluation: the average loss, and the means of predictions and labels."""
        return Buffered(
            MeanMetrics(["average_loss", "prediction/mean", "label/mean"], self._averaged_values, name=self.name)
        )

    def _averaged_values(self, logits: Tensor, labels: Tensor, features: Features | None) -> list[Tensor]:
        predictions = logits if self.inverse_link_fn is None else self.inverse_link_fn(logits)
        return [self.unweighted_loss(logits, labels, features), predictions, labels]

    def signatures(self) -> dict[str, Signature]:
        """Return the signatures: regression (the default) and prediction."""
        return signatures_of(self.prediction_keys, regression=regression("predictions"))

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the computation of the predictions to an ONNX graph; see `Head.lower`."""
        link = self.inverse_link_fn
        if link is None:
            return {"predictions": logits}
        if self._link is not None:
            tensor = graph.op(self._link, logits.tensor)
            predictions = Prediction(tensor=tensor, dtype="DT_FLOAT", row_shape=logits.row_shape)
        else:
            predictions = graph.trace(lambda values: {"value": link(values)}, logits, what="inverse_link_fn")["value"]
        return {"predictions": predictions, "logits": logits}


@dataclass(frozen=True, init=False)
class PoissonRegressionHead(RegressionHead):
    """Head for counts: negative log likelihood of a Poisson distribution. The logit is the logarithm of the mean.

    Labels are numbers of at least 0, ``[N]`` or ``[N, label_dimension]``. The loss of a logit z and a label y is
    ``exp(z) - z * y``. The metrics are those of `RegressionHead`.

    The predictions are ``predictions``, which are the means, and ``logits``.

    Args:
        label_dimension: Number of targets per example.
        weight_column: Feature that holds the examples' weights.
        loss_reduction: How the losses of a batch become the training loss: a member or its name.
        compute_full_loss: Whether the loss includes the term that depends on the labels alone, Stirling's approximation
            of the logarithm of the factorial. It changes no gradient.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = te.PoissonRegressionHead(compute_full_loss=False)
    >>> logits = torch.tensor([[0.0], [2.0]])
    >>> head.predictions(logits)["predictions"]
    tensor([[1.0000],
            [7.3891]])
    >>> head.unweighted_loss(logits, labels=torch.tensor([[1.0], [7.0]]))
    tensor([[ 1.0000],
            [-6.6109]])
    """

    compute_full_loss: bool = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: str | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        if not isinstance(compute_full_loss, bool):
            raise InvalidTypeError(f"compute_full_loss must be True or False, but got {compute_full_loss!r}.")
        self._set(compute_full_loss=compute_full_loss)
        super().__init__(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            inverse_link_fn=torch.exp,
            name=name,
        )

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Return the targets, float32 [N, label_dimension]; raise RowError for a negative target."""
        return check_range(super().prepare_labels(labels), least=0)

    def _own_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.poisson_nll_loss(logits, labels, log_input=True, full=self.compute_full_loss, reduction="none")


class LogisticRegressionHead(RegressionHead):
    """Head for labels from 0 to 1, such as click rates: sigmoid cross entropy over one logit per example.

    Labels are numbers, ``[N]`` or ``[N, 1]``. The metrics are those of `RegressionHead`.

    The predictions are ``predictions``, which are the probabilities, and ``logits``.

    Args:
        weight_column: Feature that holds the examples' weights.
        loss_reduction: How the losses of a batch become the training loss: a member or its name.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = te.LogisticRegressionHead()
    >>> head.predictions(torch.tensor([[0.0], [2.0]]))["predictions"]
    tensor([[0.5000],
            [0.8808]])
    >>> head.prepare_labels([0.25, 1.5])
    Traceback (most recent call last):
        ...
    torch_estimator.errors.RowError: row 1 of the batch: label 1.5 is out of range; expected a number from 0 to 1
    """

    def __init__(
        self,
        weight_column: str | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        name: str | None = None,
    ) -> None:
        super().__init__(
            weight_column=weight_column, loss_reduction=loss_reduction, inverse_link_fn=torch.sigmoid, name=name
        )

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Return the targets, float32 [N, 1]; raise RowError for a target outside 0 to 1."""
        return check_range(super().prepare_labels(labels), least=0, most=1)

    def _own_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def _check_label_dimension(dimension: int) -> int:
    if isinstance(dimension, bool) or not isinstance(dimension, (int, np.integer)):
        raise InvalidTypeError(f"label_dimension must be an integer, but got {dimension!r}.")
    if dimension < 1:
        raise InvalidValueError(f"label_dimension must be at least 1, but got {dimension}.")
    return int(dimension)
