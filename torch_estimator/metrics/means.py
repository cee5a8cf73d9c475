"""Weighted means of several values of the same shape."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_estimator.heads.loss_reduction import align_weights


class WeightedMeans:
    """Σ w·x / Σ w for `count` values x that share their weights w."""

    def __init__(self, count: int) -> None:
        self._totals = torch.zeros(count, dtype=torch.float64)
        self._weight = torch.zeros((), dtype=torch.float64)

    def update(self, *values: Tensor, weights: Tensor | None) -> None:
        """Takes in a batch of every value, each [N, D], with weights [N], [N, 1], [N, D] or None."""
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
        """Σ w over all batches."""
        return float(self._weight)

    def compute(self) -> list[float]:
        """Returns the means in the order of the values; zeros where there was no weight."""
        weight = self.weight
        return [total / weight if weight else 0.0 for total in self._totals.tolist()]
