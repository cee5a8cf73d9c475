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
    """Metrics of one evaluation, accumulated in float64 over its batches.

    >>> class WorstError:
    ...     def __init__(self):
    ...         self.worst = 0.0
    ...
    ...     def update(self, logits, labels, weights=None, features=None):
    ...         self.worst = max(self.worst, (logits - labels).abs().max().item())
    ...
    ...     def compute(self):
    ...         return {"worst_error": self.worst}
    >>> class Head(te.RegressionHead):
    ...     def metrics(self):
    ...         return WorstError()
    >>> estimator = te.BaselineEstimator(Head(), "memory://Metrics")
    >>> estimator.evaluate(lambda: ({"x": [0.0, 0.0]}, [1.0, -3.0]))["worst_error"]
    3.0
    """

    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Add a batch; the arguments are those of `Head.loss`.

        Args:
            logits: Logits of the model, float32 [N, logits dimension].
            labels: Labels as `Head.prepare_labels` returns them.
            weights: Weights of the examples, [N] or [N, 1], or None for ones.
            features: Features of the batch, or None.
        """

    def compute(self) -> dict[str, float]:
        """Return every metric over all batches so far, or zeros if there were no batches."""


def metric_key(key: str, name: str | None) -> str:
    """Return the key of a metric in the results: ``<key>/<name>`` if the head has a name, else `key`.

    Args:
        key: Key of the metric.
        name: Name of the head, or None.

    >>> te.metrics.metric_key("accuracy", "clicks"), te.metrics.metric_key("accuracy", None)
    ('accuracy/clicks', 'accuracy')
    """
    return key if name is None else f"{key}/{name}"


def align_weights(weights: Tensor, losses: Tensor) -> Tensor:
    """Reshape weights so that they broadcast against `losses` example by example, in the dtype of `losses`.

    Args:
        weights: Weights [N], [N, 1] or [N, D].
        losses: Losses [N, D].

    Raises:
        InvalidValueError: `weights` is not [N], [N, 1] or of the shape of `losses`.

    >>> te.metrics.align_weights(torch.tensor([1, 2]), losses=torch.zeros(2, 3))
    tensor([[1.],
            [2.]])
    """
    aligned = weights.unsqueeze(-1) if weights.dim() == losses.dim() - 1 else weights
    if aligned.shape != losses.shape and aligned.shape != (*losses.shape[:-1], 1):
        raise InvalidValueError(
            f"weights must have shape {[*losses.shape[:-1], 1]} or {list(losses.shape)}, but got {list(weights.shape)}."
        )
    return aligned.to(losses.dtype)


class WeightedMeans:
    """Weighted means Σ w·x / Σ w of `count` quantities x with common weights w, accumulated over batches.

    Args:
        count: Number of quantities.

    >>> means = te.metrics.WeightedMeans(2)
    >>> means.update(torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [1.0]]), weights=torch.tensor([3.0, 1.0]))
    >>> means.compute(), means.weight
    ([2.0, 0.25], 4.0)
    """

    def __init__(self, count: int) -> None:
        self._totals = torch.zeros(count, dtype=torch.float64)
        self._weight = torch.zeros((), dtype=torch.float64)

    def update(self, *values: Tensor, weights: Tensor | None) -> None:
        """Add a batch of each quantity, [N, D], with weights [N], [N, 1], [N, D] or None for ones.

        Args:
            values: One tensor [N, D] for each quantity, all of one shape.
            weights: Weights [N], [N, 1] or [N, D], or None for ones.
        """
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

    >>> def error(logits, labels, features):
    ...     return [(logits - labels).abs()]
    >>> metrics = te.metrics.MeanMetrics(["error"], error, name="price")
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

    >>> def error(logits, labels, features):
    ...     return [(logits - labels).abs()]
    >>> metrics = te.metrics.Buffered(te.metrics.MeanMetrics(["error"], error, name=None), rows=1000)
    >>> for label in (1.0, 3.0):
    ...     metrics.update(torch.zeros(1, 1), torch.tensor([[label]]))
    >>> metrics.update_batches(torch.zeros(2, 1), torch.tensor([[5.0], [7.0]]), batches=2)
    >>> metrics.compute()
    {'error': 4.0}
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
        """Add several batches that are concatenated. They may have different lengths.

        Args:
            logits: Logits of all batches, one after the other.
            labels: Labels of all batches.
            weights: Weights of the examples, or None for ones.
            batches: Number of batches.
        """
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
