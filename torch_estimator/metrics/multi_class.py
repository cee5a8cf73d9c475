"""Metrics of a classification into more than two classes."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_estimator.heads.base import metric_key
from torch_estimator.heads.loss_fn import Features, UnweightedLoss
from torch_estimator.metrics.means import WeightedMeans


class MultiClassMetrics:
    """Average loss and accuracy.

    Args:
        unweighted_loss: From labels [N, 1] and logits [N, classes] to losses [N, 1].
        name: Suffix of the keys, or None.
    """

    def __init__(self, *, unweighted_loss: UnweightedLoss, name: str | None) -> None:
        self._unweighted_loss = unweighted_loss
        self._name = name
        self._means = WeightedMeans(2)

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Takes in a batch: logits [N, classes], labels [N, 1], weights [N], [N, 1] or None for ones."""
        losses = self._unweighted_loss(labels, logits, features)
        right = logits.argmax(-1, keepdim=True) == labels
        self._means.update(losses, right.to(losses.dtype), weights=weights)

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all batches; zeros if there were none."""
        average_loss, accuracy = self._means.compute()
        return {
            metric_key("average_loss", self._name): average_loss,
            metric_key("accuracy", self._name): accuracy,
        }
