"""Areas under the ROC and the precision-recall curve."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torch_estimator.metrics.histogram import LabelHistogram

THRESHOLDS = 200

Summation = Literal["interpolation", "trapezoidal"]

# What tf.compat.v1.metrics.auc adds to numerators and denominators.
_V1_EPSILON = 1e-6


class AreaUnderCurves:
    """Areas approximated with 200 thresholds, evenly spaced from just below 0 to just above 1.

    The ROC curve is summed up by trapezoids, the precision-recall curve as asked.

    Args:
        summation: ``"interpolation"``, as in `tf.keras.metrics.AUC`: between thresholds true and false positives are
            linear (Davis and Goadrich, 2006). ``"trapezoidal"``, as in `tf.compat.v1.metrics.auc`: precision and
            recall are.
        curves: How many classes have curves of their own.
    """

    def __init__(self, summation: Summation = "interpolation", *, curves: int = 1) -> None:
        self._summation = summation
        self._curves = curves
        self._histogram = LabelHistogram(THRESHOLDS * curves)

    def update(self, probabilities: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Takes in a batch of float32 probabilities, labels in [0, 1] and weights, each [N] or [N, curves]."""
        scaled = (probabilities.nan_to_num() * (THRESHOLDS - 1)).ceil_()
        bins = scaled.sub_(1.0).clamp_(min=0.0).long()
        if self._curves > 1:
            bins += torch.arange(self._curves, device=bins.device) * THRESHOLDS
        self._histogram.update(bins.flatten(), labels.flatten(), None if weights is None else weights.flatten())

    def roc(self) -> float:
        """Returns the area under true over false positive rates; 0 if one kind of label is missing."""
        return self.roc_by_curve()[0]

    def precision_recall(self) -> float:
        """Returns the area under precision over recall; 0 if there are no positive labels."""
        return self.precision_recall_by_curve()[0]

    def roc_by_curve(self) -> list[float]:
        """Returns `roc` for every curve."""
        true, false = self._positives_by_threshold()
        height = (true[:, :-1] + true[:, 1:]) / 2.0
        area = ((false[:, :-1] - false[:, 1:]) * height).sum(1)
        return _ratio(area, true[:, 0] * false[:, 0]).tolist()

    def precision_recall_by_curve(self) -> list[float]:
        """Returns `precision_recall` for every curve."""
        true, false = self._positives_by_threshold()
        if self._summation == "trapezoidal":
            recall = (true + _V1_EPSILON) / (true[:, :1] + _V1_EPSILON)
            precision = (true + _V1_EPSILON) / (true + false + _V1_EPSILON)
            height = (precision[:, :-1] + precision[:, 1:]) / 2.0
            return ((recall[:, :-1] - recall[:, 1:]) * height).sum(1).tolist()
        both = true + false
        true_step = true[:, :-1] - true[:, 1:]
        slope = _ratio(true_step, both[:, :-1] - both[:, 1:])
        intercept = true[:, 1:] - slope * both[:, 1:]
        growth = torch.where(both[:, 1:] > 0, _ratio(both[:, :-1], both[:, 1:]), 1.0)
        area = (slope * (true_step + intercept * growth.log())).sum(1)
        return _ratio(area, true[:, 0]).tolist()

    def _positives_by_threshold(self) -> tuple[Tensor, Tensor]:
        """True and false positives, each [curves, thresholds]."""
        true, false = (
            weights.view(self._curves, THRESHOLDS) for weights in (self._histogram.positives(), self._histogram.zeros())
        )
        return true.flip(1).cumsum(1).flip(1), false.flip(1).cumsum(1).flip(1)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1.0), 0.0)
