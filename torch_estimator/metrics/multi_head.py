"""Metrics of several heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_estimator.heads.base import Head
from torch_estimator.heads.loss_fn import Features

LOSS = "loss"


class MultiHeadMetrics:
    """Every head's own metrics, and ``loss/<head>``: the mean of its batches' training losses, each counting the same.

    Args:
        heads: By name; the names are the suffixes of the heads' own keys, too.
        split: From a model's logits to the heads'.
    """

    def __init__(self, heads: Mapping[str, Head], split: Callable[[Any], Mapping[str, Tensor]]) -> None:
        self._heads = heads
        self._split = split
        self._metrics = {name: head.metrics() for name, head in heads.items()}
        self._losses: dict[str, float | Tensor] = dict.fromkeys(heads, 0.0)
        self._batches = 0

    @torch.no_grad()
    def update(self, logits: Any, labels: Any, weights: Any = None, features: Features | None = None) -> None:
        """Takes in a batch; see `MultiHead.loss`."""
        self._batches += 1
        split = self._split(logits)
        for name, head in self._heads.items():
            batch = (split[name], labels[name], (weights or {}).get(name), features)
            self._losses[name] += head.loss(*batch).double()
            self._metrics[name].update(*batch)

    @torch.no_grad()
    def update_batches(self, logits: Any, labels: Any, weights: Any = None, *, batches: int) -> None:
        """Takes in several batches of the same length, one after the other, where every head's rows are independent."""
        self._batches += batches
        split = self._split(logits)
        for name, head in self._heads.items():
            several = (split[name], labels[name], (weights or {}).get(name))
            self._losses[name] += head.batch_losses(*several, batches=batches).sum()
            self._metrics[name].update(*several)

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all batches; zeros if there were none."""
        results: dict[str, Any] = {}
        for name, metrics in self._metrics.items():
            results[f"{LOSS}/{name}"] = float(self._losses[name]) / max(self._batches, 1)
            results |= metrics.compute()
        return results
