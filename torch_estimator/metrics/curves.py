"""Metrics of binary predictions: accuracy, precision and recall at thresholds, and areas under curves.

All metrics are computed from histograms of the examples' weights, so that memory does not grow with the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Summation = Literal["interpolation", "trapezoidal"]

# Number of thresholds at which the curves are evaluated, as in TensorFlow.
_THRESHOLDS = 200

# The constant that tf.compat.v1.metrics.auc adds to numerators and denominators.
_V1_EPSILON = 1e-6


class LabelHistogram:
    """Histogram of scores: sums of example weights per bin, separately for label 0, label 1, and labels between.

    Labels between 0 and 1 are counted separately: TensorFlow's metrics count every label above 0 as positive, but
    accuracy needs the labels that are equal to a prediction, which is 0 or 1. `weights` holds the sums, float64 ``[bins
    * 3]``.
    """

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self.weights = torch.zeros(bins * 3, dtype=torch.float64)

    def update(self, bins: Tensor, scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Add a batch of examples, whose bins (int64 [N]) the caller has computed. A score of NaN makes all sums NaN.

        Scores, labels from 0 to 1 and weights are [N]; a score of NaN may have any bin.
        """
        # Compute the kind of each label: 0 for the label 0, 1 for the label 1, and 2 for every label between them.
        kind = labels.ceil() + (labels != labels.round())
        cells = torch.bincount(bins * 3 + kind.long(), weights, minlength=self._bins * 3)
        # NaN is above no threshold, so that a broken model would seem to predict the negative class.
        self.weights = self.weights.to(bins.device) + cells + torch.where(scores.isnan().any(), torch.nan, 0.0)

    def zeros(self) -> Tensor:
        """Return the total weight of the examples with label 0 in each bin, [bins]."""
        return self._cells()[0]

    def ones(self) -> Tensor:
        """Return the total weight of the examples with label 1 in each bin, [bins]."""
        return self._cells()[1]

    def positives(self) -> Tensor:
        """Return the total weight of the examples with a label above 0 in each bin, [bins]."""
        return self._cells()[1:].sum(0)

    def _cells(self) -> Tensor:
        return self.weights.cpu().view(self._bins, 3).T


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Accuracy, precision and recall at one threshold. A rate whose denominator is 0 is 0."""

    accuracy: float
    precision: float
    recall: float


class ThresholdRates:
    """Accuracy, precision and recall at each of several thresholds.

    Args:
        thresholds: Thresholds. An example is predicted positive if its score is greater than the threshold.

    >>> rates = te.metrics.ThresholdRates([0.5])
    >>> rates.update(torch.tensor([0.2, 0.6, 0.9]), torch.tensor([0.0, 0.0, 1.0]), None)
    >>> rates.compute()[0].recall
    1.0
    >>> rates.metrics()["precision/positive_threshold_0.5"]
    0.5
    """

    def __init__(self, thresholds: Sequence[float]) -> None:
        self._thresholds = tuple(thresholds)
        self._order = sorted(range(len(thresholds)), key=thresholds.__getitem__)
        self._boundaries = torch.tensor([thresholds[i] for i in self._order], dtype=torch.float32)
        self._histogram = LabelHistogram(len(thresholds) + 1)

    def update(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Add a batch of scores, labels from 0 to 1 and weights (None for ones), each [N].

        Args:
            scores: Scores, float32 [N], to compare with the thresholds.
            labels: Labels from 0 to 1, [N].
            weights: Weights, float64 [N], or None for ones.
        """
        if not self._thresholds:
            return
        self._boundaries = self._boundaries.to(scores.device)
        bins = torch.bucketize(scores.nan_to_num(), self._boundaries)
        self._histogram.update(bins, scores, labels, weights)

    def compute(self) -> list[Rates]:
        """Return accuracy, precision and recall at each threshold, in the order of the thresholds."""
        zeros = self._histogram.zeros().tolist()
        ones = self._histogram.ones().tolist()
        positives = self._histogram.positives().tolist()
        total = sum(zeros) + sum(positives)
        rates = {}
        # The bins from `place` on hold the examples that are predicted positive.
        for place, threshold in enumerate(self._order, start=1):
            true_positives, false_positives = sum(positives[place:]), sum(zeros[place:])
            right = sum(zeros[:place]) + sum(ones[place:])
            rates[threshold] = Rates(
                accuracy=_quotient(right, total),
                precision=_quotient(true_positives, true_positives + false_positives),
                recall=_quotient(true_positives, sum(positives)),
            )
        return [rates[i] for i in range(len(self._order))]

    def metrics(self) -> dict[str, float]:
        """Return the rates by tf.estimator's keys, for example ``recall/positive_threshold_0.5``."""
        metrics = {}
        for threshold, rates in zip(self._thresholds, self.compute(), strict=True):
            suffix = f"positive_threshold_{threshold:g}"
            metrics[f"accuracy/{suffix}"] = rates.accuracy
            metrics[f"precision/{suffix}"] = rates.precision
            metrics[f"recall/{suffix}"] = rates.recall
        return metrics


class AreaUnderCurves:
    """Areas under the ROC curve and under the precision-recall curve, for one or several classes.

    The curves are approximated at 200 thresholds, evenly spaced from just below 0 to just above 1. The area under the
    ROC curve is summed up by trapezoids.

    Args:
        summation: How the areas are summed up, that under the precision-recall curve between two thresholds.
            ``"interpolation"``, as in `tf.keras.metrics.AUC`, interpolates true and false positives linearly (Davis and
            Goadrich, 2006). ``"trapezoidal"``, as in `tf.compat.v1.metrics.auc`, interpolates precision and recall.
        curves: Number of classes; each has its own curves.

    Attributes:
        histogram: Sums of weights, from which the areas are computed.

    >>> areas = te.metrics.AreaUnderCurves()
    >>> areas.update(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0]), None)
    >>> round(areas.roc(), 2), round(areas.precision_recall(), 2)
    (0.75, 0.8)
    >>> by_class = te.metrics.AreaUnderCurves(curves=2)
    >>> by_class.update(torch.tensor([[0.1, 0.9], [0.8, 0.3]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), None)
    >>> by_class.roc_by_curve(), len(by_class.precision_recall_by_curve())
    ([1.0, 0.0], 2)
    """

    def __init__(self, summation: Summation = "interpolation", *, curves: int = 1) -> None:
        self._summation = summation
        self._curves = curves
        self.histogram = LabelHistogram(_THRESHOLDS * curves)

    def update(self, probabilities: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Add a batch of float32 probabilities, labels from 0 to 1 and weights, each [N] or [N, curves].

        Args:
            probabilities: Probabilities, float32 [N] or [N, curves].
            labels: Labels from 0 to 1 in the same shape.
            weights: Weights, float64 in the same shape, or None for ones.
        """
        scaled = (probabilities.nan_to_num() * (_THRESHOLDS - 1)).ceil_()
        bins = scaled.sub_(1.0).clamp_(min=0.0).long()
        if self._curves > 1:
            bins += torch.arange(self._curves, device=bins.device) * _THRESHOLDS
        weights = None if weights is None else weights.flatten()
        self.histogram.update(bins.flatten(), probabilities.flatten(), labels.flatten(), weights)

    def roc(self) -> float:
        """Return the area under the ROC curve of the first class; see `roc_by_curve`."""
        return self.roc_by_curve()[0]

    def precision_recall(self) -> float:
        """Return the area under the precision-recall curve, or 0 if there are no positive labels."""
        return self.precision_recall_by_curve()[0]

    def roc_by_curve(self) -> list[float]:
        """Return the area under the ROC curve of each class.

        Without negative labels it is 0. Without positive labels it is 0, too, but 1 with the ``"trapezoidal"``
        summation, as in `tf.compat.v1.metrics.auc`.
        """
        true, false = self._positives_by_threshold()
        if self._summation == "trapezoidal":
            recall = (true + _V1_EPSILON) / (true[:, :1] + _V1_EPSILON)
            fallout = false / (false[:, :1] + _V1_EPSILON)
            return ((fallout[:, :-1] - fallout[:, 1:]) * (recall[:, :-1] + recall[:, 1:]) / 2.0).sum(1).tolist()
        height = (true[:, :-1] + true[:, 1:]) / 2.0
        area = ((false[:, :-1] - false[:, 1:]) * height).sum(1)
        return _ratio(area, true[:, 0] * false[:, 0]).tolist()

    def precision_recall_by_curve(self) -> list[float]:
        """Return the area under the precision-recall curve of each class, or 0 without positive labels."""
        true, false = self._positives_by_threshold()
        if self._summation == "trapezoidal":
            recall = (true + _V1_EPSILON) / (true[:, :1] + _V1_EPSILON)
            precision = (true + _V1_EPSILON) / (true + false + _V1_EPSILON)
            height = (precision[:, :-1] + precision[:, 1:]) / 2.0
            return ((recall[:, :-1] - recall[:, 1:]) * height).sum(1).tolist()
        # Interpolate linearly between two thresholds: TP = intercept + slope * (TP + FP).
        # The integral of TP / (TP + FP) over recall is slope * (ΔTP + intercept * log(growth)) / positives.
        # `growth` is the factor by which TP + FP grows between the two thresholds.
        both = true + false
        true_step = true[:, :-1] - true[:, 1:]
        slope = _ratio(true_step, both[:, :-1] - both[:, 1:])
        intercept = true[:, 1:] - slope * both[:, 1:]
        growth = torch.where(both[:, 1:] > 0, _ratio(both[:, :-1], both[:, 1:]), 1.0)
        area = (slope * (true_step + intercept * growth.log())).sum(1)
        return _ratio(area, true[:, 0]).tolist()

    def _positives_by_threshold(self) -> tuple[Tensor, Tensor]:
        """Return the true and the false positives at every threshold, each [curves, thresholds]."""
        true, false = (
            weights.view(self._curves, _THRESHOLDS) for weights in (self.histogram.positives(), self.histogram.zeros())
        )
        # Sum the bins cumulatively from the right, because all bins above a threshold are predicted positive.
        return true.flip(1).cumsum(1).flip(1), false.flip(1).cumsum(1).flip(1)


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return ``part / whole`` element by element, and 0 for elements whose `whole` is 0 or negative."""
    return torch.where(whole <= 0, 0.0, part / torch.where(whole <= 0, 1.0, whole))
