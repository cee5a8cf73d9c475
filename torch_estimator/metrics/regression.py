"""Metrics of a regression."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_estimator.heads.base import metric_key
from torch_estimator.heads.loss_fn import Features, UnweightedLoss
from torch_estimator.metrics.means import WeightedMeans


class RegressionMetrics:
    """Average loss, and the means of labels and predictions over examples and outputs.

    Args:
        unweighted_loss: From (labels, logits) to losses, all [N, D].
        predict: From logits to predicted values.
        name: Suffix of the keys, or None.
    """

    def __init__(
        self, *, unweighted_loss: UnweightedLoss, predict: Callable[[Tensor], Tensor], name: str | None
    ) -> None:
        self._unweighted_loss = unweighted_loss
        self._predict = predict
        self._name = name
        self._means = WeightedMeans(3)

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Takes in a batch: logits and labels [N, D], weights [N], [N, 1], [N, D] or None for ones."""
        self._means.update(
            self._unweighted_loss(labels, logits, features), self._predict(logits), labels, weights=weights
        )

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all batches; zeros if there were none."""
        keys = ("average_loss", "prediction/mean", "label/mean")
        means = zip(keys, self._means.compute(), strict=True)
        return {metric_key(key, self._name): mean for key, mean in means}
