"""Head made of the plain functions of an `EstimatorSpec`: a loss, predictions and metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.serving import Graph, Prediction, Signature
from torch_estimator.heads.torch_losses import fitted_labels, loss_kind, reshaped_labels
from torch_estimator.metrics.batch_arguments import LOSS_ARGUMENTS, batch_arguments
from torch_estimator.metrics.broadcast_check import BroadcastCheck
from torch_estimator.metrics.named import NamedMetrics, metric_arguments


class FunctionHead:
    """Head that calls the functions of an `EstimatorSpec`. Training uses it in place of a `Head`.

    Args:
        loss: ``loss(outputs, labels)`` -> scalar tensor. Losses of torch get labels of the shape and dtype they need.
            Other functions may also name ``weights``, ``features`` and ``module``.
        predictions: ``predictions(outputs)`` -> dict of tensors. None takes the outputs themselves: a dict is
            unchanged, a single tensor becomes ``output``, and a tuple ``output_0``, ``output_1`` and so on. A dataclass
            or a named tuple becomes a dict of its fields, without those that are None.
        metrics: Name -> function or metric object; see `NamedMetrics`.
        weight_column: Feature that holds the examples' weights, for functions that name ``weights``; or None.

    Attributes:
        weight_columns: The weight column as heads name theirs: its name has the key None.
        wants_features: Whether a function names ``features``, the columns of numbers of the input by name.
        wants_module: Whether the loss names ``module``, the module that computed the outputs.
    """

    name = None
    loss_reduction = LossReduction.SUM_OVER_BATCH_SIZE
    class_names = None

    def __init__(
        self,
        loss: Callable[..., Tensor] | None,
        predictions: Callable[[Any], Mapping[str, Tensor]] | None,
        metrics: Mapping[str, Any] | None,
        weight_column: str | None = None,
    ) -> None:
        self._loss = loss
        self._kind = loss_kind(loss)
        self._predictions = predictions
        self._metrics = dict(metrics or {})
        self.weight_column = weight_column
        self.weight_columns: Mapping[str | None, str] = {} if weight_column is None else {None: weight_column}
        weighted = weight_column is not None
        # Losses of torch have no such arguments, and some cannot be inspected.
        own_loss = loss if self._kind is None else None
        self._loss_names = batch_arguments("The loss", own_loss, LOSS_ARGUMENTS, weighted=weighted)
        named = {*self._loss_names, *metric_arguments(self._metrics, weighted=weighted)}
        self.wants_features = "features" in named
        self.wants_module = "module" in self._loss_names
        if weighted and loss is not None and "weights" not in named:
            raise InvalidValueError(
                f"weight_column is {weight_column!r}, but neither the loss nor a metric takes weights; give one an "
                "argument of this name, or leave weight_column out."
            )
        self._check = BroadcastCheck("The loss")

    def prepare_labels(self, labels: Any) -> Any:
        """Return the labels unchanged."""
        return labels

    def loss(
        self,
        logits: Any,
        labels: Any,
        weights: Tensor | None = None,
        features: Mapping[str, Tensor] | None = None,
        module: nn.Module | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar. The function gets those of the last three arguments that it names."""
        loss_fn = self._loss
        if loss_fn is None:
            raise InvalidValueError("The EstimatorSpec has no loss, which training and evaluation need.")
        if self._kind is None:
            further = {"weights": weights, "features": features, "module": module}
            named = {name: further[name] for name in self._loss_names}
            of_rows = {name: value for name, value in named.items() if name != "module"}
            arguments = {"outputs": logits, "labels": labels, **of_rows}
            loss = self._check(arguments, lambda: loss_fn(logits, labels, **named))
        else:
            loss = loss_fn(logits, fitted_labels(self._kind, loss_fn, logits, labels))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise InvalidValueError(f"The loss of an EstimatorSpec must return one number as a tensor, but got {got}.")
        return loss.reshape(())

    def label_dims(self, logits: Any, labels: Any) -> int | None:
        """Return the number of dimensions of the labels that the loss gets, or None if the labels are not a tensor."""
        labels = reshaped_labels(self._kind, logits, labels)
        return labels.dim() if isinstance(labels, Tensor) else None

    def predictions(self, logits: Any) -> dict[str, Tensor]:
        """Return the predictions of a batch by name."""
        if self._predictions is not None:
            return dict(self._predictions(logits))
        if isinstance(logits, Mapping):
            return dict(logits)
        if (names := _field_names(logits)) is not None:
            fields = {name: getattr(logits, name) for name in names}
            return {name: value for name, value in fields.items() if value is not None}
        if isinstance(logits, tuple | list):
            return {f"output_{place}": output for place, output in enumerate(logits)}
        return {"output": logits}

    def decode(self, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the predictions unchanged, since all of them are numeric."""
        return predictions

    def metrics(self) -> _FunctionMetrics:
        """Return new metrics for one evaluation."""
        return _FunctionMetrics(self, NamedMetrics(self._metrics, weighted=self.weight_column is not None))

    def signatures(self) -> dict[str, Signature]:
        """Return no signatures. The export then has a single signature with all outputs of the graph."""
        return {}

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the predictions to an ONNX graph through torch's exporter; see `Head.lower`."""
        return graph.trace(self.predictions, logits, what=f"the predictions of {type(self).__name__}")


def _field_names(outputs: Any) -> Sequence[str] | None:
    """Return the names of the fields of a dataclass or a named tuple, or None for anything else."""
    if dataclasses.is_dataclass(outputs):
        return [field.name for field in dataclasses.fields(outputs)]
    return getattr(outputs, "_fields", None) if isinstance(outputs, tuple) else None


class _FunctionMetrics:
    """Metrics of a `FunctionHead`. The head converts a model's outputs to the predictions that the metrics take."""

    def __init__(self, head: FunctionHead, metrics: NamedMetrics) -> None:
        self._head = head
        self._metrics = metrics

    def update(
        self,
        logits: Any,
        labels: Any,
        weights: Tensor | None = None,
        features: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a batch of model outputs (`logits`) and labels, with the weights and features that a function names."""
        predictions, dims = self._head.predictions(logits), self._head.label_dims(logits, labels)
        self._metrics.update(labels, predictions, dims, {"weights": weights, "features": features})

    def compute(self) -> dict[str, float]:
        """Return every metric over all batches so far."""
        return self._metrics.compute()
