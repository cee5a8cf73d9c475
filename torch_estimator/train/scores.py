"""What an evaluation adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from torch_estimator import tree
from torch_estimator.errors import InvalidValueError
from torch_estimator.metrics.functions import RESERVED
from torch_estimator.train.batches import TensorBatch, beside_labels
from torch_estimator.train.extra_metrics import ExtraMetrics
from torch_estimator.train.model import Model


class Scores:
    """The head's metrics, those of `add_metrics`, and the batches' losses, each of which counts the same.

    Several batches of one length may come as one. Where the head sees every example by itself they are taken in as one;
    else they are taken apart again.

    Args:
        model: Built for evaluation.

    Attributes:
        batches: How many there were.
        wants_raw: Whether it reads the raw columns of a batch.

    Raises:
        InvalidValueError: A metric of the head has a reserved name.
    """

    def __init__(self, model: Model) -> None:
        self.batches = 0
        self._head = model.head
        self._as_one = getattr(model.head, "rows_are_independent", False)
        self._metrics: Any = model.head.metrics()
        _check_names(self._metrics.compute())
        self._extra = ExtraMetrics(model)
        self.wants_raw = self._extra.wants_raw
        self._loss = 0.0

    def add_losses(self, outputs: Any, tensors: TensorBatch, batches: int) -> Tensor:
        """Takes in the losses of some batches; returns the last one."""
        with _knowing_no_group():
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
                last = self._head.loss(one, part.labels, *beside_labels(part.weights))
                self._loss += float(last)
        return last

    def add(self, outputs: Any, tensors: TensorBatch, batches: int) -> None:
        """Takes in all else of the same batches."""
        with _knowing_no_group():
            self._add(outputs, tensors, batches)

    def _add(self, outputs: Any, tensors: TensorBatch, batches: int) -> None:
        if batches > 1 and self._as_one:
            self._metrics.update_batches(outputs, tensors.labels, tensors.weights, batches=batches)
        else:
            for one, part in _apart(outputs, tensors, batches):
                self._metrics.update(one, part.labels, *beside_labels(part.weights))
        if self._extra.wanted:
            for one, part in _apart(outputs, tensors, batches):
                self._extra.update(one, part)

    def compute(self) -> dict[str, float]:
        """Returns all metrics, and the mean ``loss``; zeros if there was no batch."""
        with _knowing_no_group():
            results = {**self._metrics.compute(), **self._extra.compute()}
        results["loss"] = self._loss / self.batches if self.batches else 0.0
        return results


@contextmanager
def _knowing_no_group() -> Iterator[None]:
    """Metrics such as torchmetrics' would add up over processes that take no part in it, and wait for them for ever."""
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
