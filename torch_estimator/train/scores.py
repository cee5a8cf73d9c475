"""Scores of an evaluation: losses and metrics, added up batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from torch_estimator import tree
from torch_estimator.data.columns import to_numpy
from torch_estimator.errors import InvalidValueError
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.metrics import MetricFunctions
from torch_estimator.metrics.collected import on_host
from torch_estimator.metrics.functions import RESERVED
from torch_estimator.train.batches import TensorBatch, weight_arguments
from torch_estimator.train.model import Model

# First parts of the names of heads' metrics that compare classes. TensorFlow fails for NaN, too, which has no class.
_OF_CLASSES = frozenset({"accuracy", "auc", "auc_precision_recall", "precision", "recall"})


class Scores:
    """Sums of one evaluation: metrics of the head, metrics of `add_metrics`, and the batches' losses.

    Several batches of equal length may be added at once. If the head treats every example independently, they are
    processed together; if not, they are split again. `wants_raw` says whether a metric reads the raw columns of a
    batch.
    """

    def __init__(self, model: Model) -> None:
        self.batches = 0
        self._model = model
        self._head = model.head
        self._as_one = getattr(model.head, "rows_are_independent", False)
        self._metrics: Any = model.head.metrics()
        _check_names(self._metrics.compute())
        self._extra = ExtraMetrics(model)
        self.wants_raw = self._extra.wants_raw
        self._loss = 0.0

    def add_losses(self, outputs: Any, tensors: TensorBatch, batches: int) -> Tensor:
        """Add the losses of batches, by the module's outputs for all of their rows; return the last batch's loss."""
        with _without_process_group():
            return self._add_losses(outputs, tensors, batches)

    def _add_losses(self, outputs: Any, tensors: TensorBatch, batches: int) -> Tensor:
        self.batches += batches
        last: Tensor
        if batches > 1 and self._as_one:
            losses = self._head.batch_losses(outputs, tensors.labels, tensors.weights, batches=batches)
            self._loss += float(losses.sum())
            last = losses[-1]
        else:
            for one, part in _apart(outputs, tensors, batches):
                last = self._model.loss_of(one, part.labels, part.weights)
                self._loss += float(last)
        return last

    def add(self, outputs: Any, tensors: TensorBatch, batches: int) -> None:
        """Update all metrics with one or more batches. Call this after `add_losses`, with the same arguments."""
        with _without_process_group():
            self._add(outputs, tensors, batches)

    def _add(self, outputs: Any, tensors: TensorBatch, batches: int) -> None:
        if batches > 1 and self._as_one:
            self._metrics.update_batches(outputs, tensors.labels, tensors.weights, batches=batches)
        else:
            for one, part in _apart(outputs, tensors, batches):
                self._metrics.update(one, part.labels, *weight_arguments(part.weights))
        if self._extra.wanted:
            for one, part in _apart(outputs, tensors, batches):
                self._extra.update(one, part)

    def compute(self, global_step: int) -> dict[str, float]:
        """Return all metrics and the mean ``loss``; the loss is 0 if there was no batch."""
        with _without_process_group():
            metrics, extra = self._metrics.compute(), self._extra.compute()
        broken = [key for key, value in metrics.items() if key.split("/")[0] in _OF_CLASSES and math.isnan(value)]
        if broken:
            raise InvalidValueError(
                f"The metrics {', '.join(broken)} cannot be computed at global step {global_step}: they are NaN. If "
                "the model predicts NaN, look for features that are NaN or infinite in the evaluation data, or weights "
                "that are NaN; if it does not, the head's metric itself gives NaN."
            )
        results = {**metrics, **extra}
        results["loss"] = self._loss / self.batches if self.batches else 0.0
        return results


@contextmanager
def _without_process_group() -> Iterator[None]:
    """Hide torch's process group while the body runs.

    torchmetrics synchronizes metrics in a process group, and would wait for processes that do not evaluate.
    """
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    world, dist.GroupMember.WORLD = dist.GroupMember.WORLD, None
    try:
        yield
    finally:
        dist.GroupMember.WORLD = world


def _check_names(results: Mapping[str, float]) -> None:
    for reserved in RESERVED:
        if reserved in results:
            raise InvalidValueError(f"A metric must not be called {reserved!r}, which the evaluation adds itself.")


def _apart(outputs: Any, tensors: TensorBatch, batches: int) -> Sequence[tuple[Any, TensorBatch]]:
    return [(outputs, tensors)] if batches == 1 else tree.split_rows((outputs, tensors), batches)


class ExtraMetrics:
    """Metrics that the user added by `add_metrics`. A metric names its arguments: labels, predictions or features.

    `wanted` says whether there are any such functions, `wants_raw` whether one of them takes raw features.
    """

    def __init__(self, model: Model) -> None:
        self._head = model.head
        self._functions = MetricFunctions(model.spec.extra_metrics)
        self.wanted = bool(model.spec.extra_metrics)
        self._arguments = self._functions.arguments
        self.wants_raw = self.wanted and "features" in self._arguments

    def update(self, outputs: Any, batch: TensorBatch) -> None:
        """Update all metrics with one batch."""
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
        """Return the value of each metric, by name."""
        return self._functions.compute()

    def _predictions(self, outputs: Any) -> Mapping[str, Any]:
        """Return the predictions of `Estimator.predict` for a batch: numbers as tensors, strings as object arrays."""
        tensors: dict[str, Tensor] = on_host(self._head.predictions(outputs))
        decoded = self._head.decode({key: tensor.numpy() for key, tensor in tensors.items()})
        return {key: tensors[key] if key in tensors else as_tensor(array) for key, array in decoded.items()}


def as_tensor(column: Any) -> Any:
    """Return a column of numbers as a tensor, and a column of strings as an object array."""
    if isinstance(column, pa.Array):
        column = to_numpy(column)
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
        return column
    return torch.from_numpy(column if column.flags.writeable else column.copy())
