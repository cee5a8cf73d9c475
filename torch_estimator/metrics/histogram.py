"""Weights of examples by a bin of their prediction and by their label."""

from __future__ import annotations

import torch
from torch import Tensor


class LabelHistogram:
    """Summed weights of examples by bin, separately for the labels 0, 1 and those between.

    TensorFlow's metrics count every label above 0 as positive, but only 0 and 1 can be predicted right.
    """

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._weights = torch.zeros(bins * 3, dtype=torch.float64)

    def update(self, bins: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Takes in a batch: bins of the predictions (int64), labels in [0, 1] and weights, each [N]."""
        kind = labels.ceil() + (labels != labels.round())
        cells = torch.bincount(bins * 3 + kind.long(), weights, minlength=self._bins * 3)
        self._weights = self._weights.to(bins.device) + cells

    def zeros(self) -> Tensor:
        """Returns the weight of label 0 by bin."""
        return self._cells()[0]

    def ones(self) -> Tensor:
        """Returns the weight of label 1 by bin."""
        return self._cells()[1]

    def positives(self) -> Tensor:
        """Returns the weight of labels above 0 by bin."""
        return self._cells()[1:].sum(0)

    def _cells(self) -> Tensor:
        return self._weights.cpu().view(self._bins, 3).T
