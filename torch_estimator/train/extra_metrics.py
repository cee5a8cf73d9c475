"""The metrics of `add_metrics`, fed by an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torch_estimator import tree
from torch_estimator.data.columns import to_numpy
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.metrics import MetricFunctions
from torch_estimator.metrics.collected import on_host
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.model import Model


class ExtraMetrics:
    """Gives metric functions what they name: labels as the head prepares them, predictions, raw features.

    Args:
        model: Built for evaluation.

    Attributes:
        wanted: Whether there are any.
        wants_raw: Whether one of them takes raw features.
    """

    def __init__(self, model: Model) -> None:
        self._head = model.head
        self._functions = MetricFunctions(model.spec.extra_metrics)
        self.wanted = bool(model.spec.extra_metrics)
        self._arguments = self._functions.arguments
        self.wants_raw = self.wanted and "features" in self._arguments

    def update(self, outputs: Any, batch: TensorBatch) -> None:
        """Takes in a batch and what the module made of it."""
        if not self.wanted:
            return
        arguments: dict[str, Any] = {}
        if isinstance(self._head, FunctionHead):
            self._functions.label_dims = self._head.label_dims(outputs, batch.labels)
        if "labels" in self._arguments:
            arguments["labels"] = on_host(batch.labels)
        if "predictions" in self._arguments:
            arguments["predictions"] = self._predictions(outputs)
        if "features" in self._arguments:
            arguments["features"] = tree.map(as_tensor, batch.raw)
        self._functions.update(arguments)

    def compute(self) -> dict[str, float]:
        """All metrics."""
        return self._functions.compute()

    def _predictions(self, outputs: Any) -> Mapping[str, Any]:
        """As predicted: tensors, and object arrays of strings where the head decodes to strings."""
        tensors: dict[str, Tensor] = on_host(self._head.predictions(outputs))
        decoded = self._head.decode({key: tensor.numpy() for key, tensor in tensors.items()})
        return {key: tensors[key] if key in tensors else as_tensor(array) for key, array in decoded.items()}


def as_tensor(column: Any) -> Any:
    """A column as a tensor where it has numbers, as an object array where it has strings."""
    if isinstance(column, pa.Array):
        column = to_numpy(column)
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
        return column
    return torch.from_numpy(column if column.flags.writeable else column.copy())
