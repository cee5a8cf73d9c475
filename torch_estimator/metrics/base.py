"""Building blocks of metrics: the protocol, weighted means, and a buffer for small batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_estimator.errors import InvalidValueError

Features = Mapping[str, Any]
"""The features of a batch, by name."""

Values = Callable[[Tensor, Tensor, Features | None], Sequence[Tensor]]
"""Function from (logits, labels, features) of a batch to values of each example."""

# `Buffered` counts a row with more logits than this as several rows, to bound its memory.
_LOGITS_PER_ROW = 64


class Metrics(Protocol):
    """Metrics of one evaluation, accumulated in float64 over its batches."""

    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Add a batch; the arguments are those of `Head.loss`."""

    def compute(self) -> dict[str, float]:
        """Return every metric over all batches so far, or zeros if there were no batches."""


def metric_key(key: str, name: str | None) -> str:
    """Return the key of a metric in the results: ``<key>/<name>`` if the head has a name, else `key`.

    >>> te.metrics.metric_key("accuracy", "clicks")
    'accuracy/clicks'
    """
    return key if name is None else f"{key}/{name}"


def align_weights(weights: Tensor, losses: Tensor) -> Tensor:
    """Reshape weights so that they broadcast against `losses` example by example, in the dtype of `losses`.

    Raises:
        InvalidValueError: `weights` is not [N], [N, 1] or of the shape of `losses`.
    """
    aligned = weights.unsqueeze(-1) if weights.dim() == losses.dim() - 1 else weights
    if aligned.shape != losses.shape and aligned.shape != (*losses.shape[:-1], 1):
        raise InvalidValueError(
            f"weights must have shape {[*losses.shape[:-1], 1]} or {list(losses.shape)}, but got {list(weights.shape)}."
        )
    return aligned.to(losses.dtype)


class WeightedMeans:
    """Weighted means Σ w·x / Σ w of `count` quantities x with common weights w, accumulated over batches."""

    def __init__(self, count: int) -> None:
        self._totals = torch.zeros(count, dtype=torch.float64)
        self._weight = torch.zeros((), dtype=torch.float64)

    def update(self, *values: Tensor, weights: Tensor | None) -> None:
        """Add a batch of each quantity, [N, D], with weights [N], [N, 1], [N, D] or None for ones."""
        stacked = torch.stack(values).double()
        if weights is None:
            weight = torch.full((), values[0].numel(), dtype=torch.float64, device=stacked.device)
        else:
            aligned = align_weights(weights, values[0]).double().expand_as(values[0])
            stacked, weight = stacked * aligned, aligned.sum()
        self._totals = self._totals.to(stacked.device) + stacked.flatten(1).sum(1)
        self._weight = self._weight.to(stacked.device) + weight

    @property
    def weight(self) -> float:
        """Sum of the weights of all batches."""
        return float(self._weight)

    def compute(self) -> list[float]:
        """Return the means in the order of the quantities, or zeros if the weights add up to zero."""
        weight = self.weight
        return [total / weight if weight else 0.0 for total in self._totals.tolist()]


class MeanMetrics:
    """Metrics that are weighted means over all examples, such as the average loss and the accuracy.

    Args:
        keys: Keys of the metrics.
        values: Returns one tensor [N, D] of the batch for each key, all of one shape.
        name: Name of the head, which becomes the suffix of the keys, or None.

    >>> metrics = te.metrics.MeanMetrics(["error"], lambda logits, labels, features: [(logits - labels).abs()], name="price")
    >>> metrics.update(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    >>> metrics.compute()
    {'error/price': 2.0}
    """

    def __init__(self, keys: Sequence[str], values: Values, *, name: str | None) -> None:
        self._keys = [metric_key(key, name) for key in keys]
        self._values = values
        self._means = WeightedMeans(len(keys))

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Add a batch; the arguments are those of `Head.loss`."""
        self._means.update(*self._values(logits, labels, features), weights=weights)

    def compute(self) -> dict[str, float]:
        """Return the means over all batches, or zeros if there were no batches."""
        return dict(zip(self._keys, self._means.compute(), strict=True))


class Buffered:
    """Buffer that collects small batches and passes them on to other metrics as fewer, larger batches.

    Most of the cost of a metric is per call: the metrics of a binary head take 210 us for a batch of 40 rows as well as
    for one of 512 rows. With this buffer, a batch of 40 rows takes 15 us (torch 2.13).

    Args:
        metrics: Metrics that get the batches. Their results must not depend on how rows are split into batches.
        rows: Number of rows that are collected before they are passed on. Rows of more than 64 logits count as several.
    """

    def __init__(self, metrics: Metrics, *, rows: int = 4096) -> None:
        self._metrics = metrics
        self._rows = rows
        self._batches: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._buffered = 0

    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Add a batch, which is copied so that the caller may reuse its memory; see `Head.loss` for the arguments.

        A batch with features is passed on at once: features may have any structure, and cannot always be concatenated.
        """
        if features is not None:
            self._metrics.update(logits, labels, weights, features)
            return
        if self._batches and (self._batches[0][2] is None) != (weights is None):
            self._flush()
        copied = None if weights is None else weights.detach().clone()
        self._batches.append((logits.detach().clone(), labels.clone(), copied))
        self._buffered += max(len(logits), logits.numel() // _LOGITS_PER_ROW)
        if self._buffered >= self._rows:
            self._flush()

    def update_batches(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, *, batches: int) -> None:
        """Add several batches that are concatenated. They may have different lengths."""
        self.update(logits, labels, weights)

    def compute(self) -> dict[str, float]:
        """Return every metric over all batches so far, or zeros if there were no batches."""
        self._flush()
        return self._metrics.compute()

    def _flush(self) -> None:
        if not self._batches:
            return
        logits, labels, weights = zip(*self._batches, strict=True)
        self._batches, self._buffered = [], 0
        self._metrics.update(torch.cat(logits), torch.cat(labels), None if weights[0] is None else torch.cat(weights))
