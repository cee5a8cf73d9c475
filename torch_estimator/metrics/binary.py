"""Metrics of a classification into two classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_estimator.heads.base import metric_key
from torch_estimator.heads.loss_fn import Features, UnweightedLoss
from torch_estimator.metrics.area import AreaUnderCurves, Summation
from torch_estimator.metrics.confusion import ThresholdRates
from torch_estimator.metrics.means import WeightedMeans


class BinaryMetrics:
    """Loss, accuracy, precision, recall, areas under curves and means, with the keys of tf.estimator.

    Args:
        unweighted_loss: From (labels, logits), each [N, 1], to losses [N, 1].
        thresholds: Probabilities at which accuracy, precision and recall are reported, too.
        name: Suffix of the keys, or None.
        summation: How the area under the precision-recall curve is summed up; see `AreaUnderCurves`.
    """

    def __init__(
        self,
        *,
        unweighted_loss: UnweightedLoss,
        thresholds: Sequence[float],
        name: str | None,
        summation: Summation = "interpolation",
    ) -> None:
        self._unweighted_loss = unweighted_loss
        self._thresholds = tuple(thresholds)
        self._name = name
        self._means = WeightedMeans(3)
        # The class is 1 where the logit is above 0; in float32 its probability may still be one half.
        self._rates = ThresholdRates([0.0])
        self._threshold_rates = ThresholdRates(self._thresholds)
        self._areas = AreaUnderCurves(summation)

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Takes in a batch: logits and labels [N, 1], weights [N], [N, 1] or None for ones."""
        probabilities = torch.sigmoid(logits)
        losses = self._unweighted_loss(labels, logits, features)
        self._means.update(losses, labels, probabilities, weights=weights)
        labels, probabilities = labels.flatten(), probabilities.flatten()
        weights = None if weights is None else weights.flatten().double()
        self._rates.update(logits.flatten(), labels, weights)
        self._areas.update(probabilities, labels, weights)
        if self._thresholds:
            self._threshold_rates.update(probabilities, labels, weights)

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all batches; zeros if there were none."""
        (rates,) = self._rates.compute()
        average_loss, label_mean, prediction_mean = self._means.compute()
        # Without weight the mean is 0 and so is the baseline, not 1 - 0.
        baseline = max(label_mean, 1.0 - label_mean) if self._means.weight else 0.0
        metrics = {
            "average_loss": average_loss,
            "accuracy": rates.accuracy,
            "precision": rates.precision,
            "recall": rates.recall,
            "prediction/mean": prediction_mean,
            "label/mean": label_mean,
            "accuracy_baseline": baseline,
            "auc": self._areas.roc(),
            "auc_precision_recall": self._areas.precision_recall(),
        }
        for threshold, at in zip(self._thresholds, self._threshold_rates.compute(), strict=True):
            suffix = f"positive_threshold_{threshold:g}"
            metrics[f"accuracy/{suffix}"] = at.accuracy
            metrics[f"precision/{suffix}"] = at.precision
            metrics[f"recall/{suffix}"] = at.recall
        return {metric_key(key, self._name): value for key, value in metrics.items()}
