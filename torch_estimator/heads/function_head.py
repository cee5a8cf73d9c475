"""A model's end given as plain functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from torch_estimator.errors import InvalidValueError
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.pairs import PairCheck
from torch_estimator.heads.signature import Signature
from torch_estimator.heads.torch_losses import fitted_labels, loss_kind, reshaped_labels
from torch_estimator.metrics.named import NamedMetrics


class FunctionHead:
    """Offers what the engine asks of a head, made of the functions of an `EstimatorSpec`.

    Args:
        loss: ``loss(outputs, labels)`` -> scalar tensor; torch's own get labels of the shape and dtype they take.
        predictions: ``predictions(outputs)`` -> dict of tensors; None where the outputs are the predictions: a dict of
            them, one called ``output``, a tuple of ``output_0``, ``output_1``, …, or a dataclass or named tuple, whose
            fields name them (None is left out).
        metrics: Name -> what gives its value; see `NamedMetrics`.
    """

    name = None
    weight_column = None
    weight_columns: Mapping[str | None, str] = MappingProxyType({})
    wants_features = False
    loss_reduction = LossReduction.SUM_OVER_BATCH_SIZE
    class_names = None

    def __init__(
        self,
        loss: Callable[[Any, Any], Tensor] | None,
        predictions: Callable[[Any], Mapping[str, Tensor]] | None,
        metrics: Mapping[str, Any] | None,
    ) -> None:
        self._loss = loss
        self._predictions = predictions
        self._metrics = dict(metrics or {})
        self._kind = loss_kind(loss)
        self._check = PairCheck("The loss")

    def prepare_labels(self, labels: Any) -> Any:
        return labels

    def loss(self, logits: Any, labels: Any, weights: Tensor | None = None) -> Tensor:
        if self._loss is None:
            raise InvalidValueError("The EstimatorSpec has no loss, which training and evaluation need.")
        loss = self._computed(self._loss, logits, labels)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise InvalidValueError(f"The loss of an EstimatorSpec must return one number as a tensor, but got {got}.")
        return loss.reshape(())

    def _computed(self, loss: Callable[[Any, Any], Tensor], logits: Any, labels: Any) -> Tensor:
        if self._kind is None:
            return self._check({"outputs": logits, "labels": labels}, lambda: loss(logits, labels))
        return loss(logits, fitted_labels(self._kind, loss, logits, labels))

    def label_dims(self, logits: Any, labels: Any) -> int | None:
        """Return how many dimensions the labels have that the loss gets; None where they are no tensor."""
        labels = reshaped_labels(self._kind, logits, labels)
        return labels.dim() if isinstance(labels, Tensor) else None

    def predictions(self, logits: Any) -> dict[str, Tensor]:
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
        return predictions

    def metrics(self) -> _FunctionMetrics:
        return _FunctionMetrics(self, NamedMetrics(self._metrics))

    def signatures(self) -> dict[str, Signature]:
        return {}


def _field_names(outputs: Any) -> Sequence[str] | None:
    if dataclasses.is_dataclass(outputs):
        return [field.name for field in dataclasses.fields(outputs)]
    return getattr(outputs, "_fields", None) if isinstance(outputs, tuple) else None


class _FunctionMetrics:
    """Named metrics, given outputs in the place of predictions."""

    def __init__(self, head: FunctionHead, metrics: NamedMetrics) -> None:
        self._head = head
        self._metrics = metrics

    def update(self, logits: Any, labels: Any, weights: Tensor | None = None) -> None:
        self._metrics.update(labels, self._head.predictions(logits), self._head.label_dims(logits, labels))

    def compute(self) -> dict[str, float]:
        return self._metrics.compute()
