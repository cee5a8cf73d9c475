"""Training with a plain loop, to compare the Estimator with, and small data for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torch_estimator as te

ROWS, BATCH = 96, 8
SETTINGS: dict[str, Any] = {"random_seed": 1, "save_checkpoints_steps": 1000, "save_summary_steps": None}


def data(width: int = 3, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return features float32 ``[ROWS, width]`` and labels ``[ROWS]`` that are no linear function of them."""
    x = np.random.default_rng(seed).normal(size=(ROWS, width)).astype(np.float32)
    return x, np.sin(x.sum(1)).astype(np.float32)


def input_fn(features: Any, labels: Any, batch: int = BATCH) -> Callable[[], te.data.Dataset]:
    return lambda: te.data.Dataset.from_arrays(features, labels).repeat().batch(batch)


def once(features: Any, labels: Any = None, batch: int = BATCH) -> Callable[[], te.data.Dataset]:
    return lambda: te.data.Dataset.from_arrays(features, labels).batch(batch)


def batches(*columns: np.ndarray[Any, Any], steps: int) -> Iterator[tuple[Tensor, ...]]:
    per_epoch = ROWS // BATCH
    for step in range(steps):
        start = step % per_epoch * BATCH
        yield tuple(torch.from_numpy(column[start : start + BATCH]) for column in columns)


def train_by_hand(
    module: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    loss: Callable[[Any, Tensor], Tensor],
    *columns: np.ndarray[Any, Any],
    steps: int = 100,
) -> nn.Module:
    """Train with a plain loop; the last column is the label, the others are the features."""
    module.train()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for *features, labels in batches(*columns, steps=steps):
            value = loss(module(features[0] if len(features) == 1 else tuple(features)), labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            value.backward()
            for optimizer in optimizers:
                optimizer.step()
    return module.eval()


def assert_same_weights(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-5) -> None:
    expected = theirs.state_dict()
    assert list(ours.state_dict()) == list(expected)
    for name, value in ours.state_dict().items():
        np.testing.assert_allclose(value.numpy(), expected[name].numpy(), rtol=0, atol=tolerance, err_msg=name)
