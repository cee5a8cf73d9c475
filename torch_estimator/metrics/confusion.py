"""Accuracy, precision and recall where examples above a threshold are predicted positive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_estimator.metrics.histogram import LabelHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates at one threshold; zero where nothing was counted."""

    accuracy: float
    precision: float
    recall: float


class ThresholdRates:
    """Rates at every one of `thresholds`: an example is predicted positive if its score is greater."""

    def __init__(self, thresholds: Sequence[float]) -> None:
        self._order = sorted(range(len(thresholds)), key=thresholds.__getitem__)
        self._boundaries = torch.tensor([thresholds[i] for i in self._order], dtype=torch.float32)
        self._histogram = LabelHistogram(len(thresholds) + 1)

    def update(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Takes in a batch of scores, labels in [0, 1] and weights, each [N]."""
        self._boundaries = self._boundaries.to(scores.device)
        bins = torch.bucketize(scores.nan_to_num(), self._boundaries)
        self._histogram.update(bins, labels, weights)

    def compute(self) -> list[Rates]:
        """Returns the rates in the order of the thresholds."""
        zeros, ones, positives = (
            weights.tolist()
            for weights in (self._histogram.zeros(), self._histogram.ones(), self._histogram.positives())
        )
        total = sum(zeros) + sum(positives)
        rates = {}
        for place, threshold in enumerate(self._order, start=1):
            true_positives, false_positives = sum(positives[place:]), sum(zeros[place:])
            right = sum(zeros[:place]) + sum(ones[place:])
            rates[threshold] = Rates(
                accuracy=_ratio(right, total),
                precision=_ratio(true_positives, true_positives + false_positives),
                recall=_ratio(true_positives, sum(positives)),
            )
        return [rates[i] for i in range(len(self._order))]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
