"""Metrics of a classification into any number of classes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torch_estimator.heads.base import metric_key
from torch_estimator.heads.loss_fn import Features, UnweightedLoss
from torch_estimator.heads.loss_reduction import align_weights
from torch_estimator.metrics.area import AreaUnderCurves
from torch_estimator.metrics.confusion import ThresholdRates
from torch_estimator.metrics.means import WeightedMeans


class MultiLabelMetrics:
    """Loss, areas under curves and rates over all classes together, and for chosen classes by themselves.

    Args:
        unweighted_loss: From labels and logits [N, classes] to losses [N, 1].
        thresholds: Probabilities at which accuracy, precision and recall are reported.
        classes: Suffix of the keys -> class, for the classes that have metrics of their own.
        name: Suffix of all keys, or None.
    """

    def __init__(
        self,
        *,
        unweighted_loss: UnweightedLoss,
        thresholds: Sequence[float],
        classes: Mapping[str, int],
        name: str | None,
    ) -> None:
        self._unweighted_loss = unweighted_loss
        self._thresholds = tuple(thresholds)
        self._name = name
        self._loss = WeightedMeans(1)
        self._areas = AreaUnderCurves()
        self._rates = ThresholdRates(self._thresholds)
        self._classes = _ByClass(classes) if classes else None

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Takes in a batch: logits and labels [N, classes], weights [N], [N, 1] or None for ones."""
        labels = labels.to(logits.dtype)
        losses = self._unweighted_loss(labels, logits, features)
        self._loss.update(losses, weights=weights)
        probabilities = torch.sigmoid(logits)
        if weights is not None:
            weights = align_weights(weights, losses).double().expand_as(probabilities)
        flat = None if weights is None else weights.flatten()
        self._areas.update(probabilities.flatten(), labels.flatten(), flat)
        if self._thresholds:
            self._rates.update(probabilities.flatten(), labels.flatten(), flat)
        if self._classes is not None:
            self._classes.update(probabilities, labels, weights)

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all batches; zeros if there were none."""
        metrics = {
            "average_loss": self._loss.compute()[0],
            "auc": self._areas.roc(),
            "auc_precision_recall": self._areas.precision_recall(),
        }
        for threshold, at in zip(self._thresholds, self._rates.compute(), strict=True):
            suffix = f"positive_threshold_{threshold:g}"
            metrics[f"accuracy/{suffix}"] = at.accuracy
            metrics[f"precision/{suffix}"] = at.precision
            metrics[f"recall/{suffix}"] = at.recall
        if self._classes is not None:
            metrics |= self._classes.compute()
        return {metric_key(key, self._name): value for key, value in metrics.items()}


class _ByClass:
    """Mean probability and areas under curves of each of some classes."""

    def __init__(self, classes: Mapping[str, int]) -> None:
        self._suffixes = list(classes)
        self._ids = torch.tensor(list(classes.values()), dtype=torch.int64)
        self._areas = AreaUnderCurves(curves=len(classes))
        self._totals = torch.zeros(len(classes), dtype=torch.float64)
        self._weight = torch.zeros((), dtype=torch.float64)

    def update(self, probabilities: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        self._ids = self._ids.to(probabilities.device)
        chosen, labels = probabilities[:, self._ids], labels[:, self._ids]
        weights = torch.ones_like(chosen, dtype=torch.float64) if weights is None else weights[:, self._ids]
        self._areas.update(chosen, labels, weights)
        self._totals = self._totals.to(chosen.device) + (chosen * weights).sum(0)
        # Every class of an example has the example's weight.
        self._weight = self._weight.to(chosen.device) + weights[:, 0].sum()

    def compute(self) -> dict[str, float]:
        weight = float(self._weight)
        means = [total / weight if weight else 0.0 for total in self._totals.tolist()]
        by_key = {
            "probability_mean": means,
            "auc": self._areas.roc_by_curve(),
            "auc_precision_recall": self._areas.precision_recall_by_curve(),
        }
        return {
            f"{key}/{suffix}": values[place]
            for place, suffix in enumerate(self._suffixes)
            for key, values in by_key.items()
        }
