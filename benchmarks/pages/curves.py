"""Curves of made-up runs, equal for all sides. It needs NumPy alone, as environments of peers have nothing of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

POINTS = 1000
STEPS_BETWEEN_POINTS = 10
SECS_BETWEEN_POINTS = 3
# 2024-03-01 00:00:00 UTC; the runs begin at midnight, one a day.
FIRST_RUN_AT = 1709251200
SECS_BETWEEN_RUNS = 86400
TAGS: Sequence[str] = (
    *("loss", "average_loss", "accuracy", "auc", "global_step/sec", "learning_rate"),
    *(f"layers/{layer}/{name}" for layer in range(7) for name in ("weights", "gradients")),
)


def run_name(number: int) -> str:
    """The name of a run, and of its directory."""
    return f"run-{number:04}"


def began(run: int) -> int:
    """When a run began, in seconds since 1970."""
    return FIRST_RUN_AT + run * SECS_BETWEEN_RUNS


def parameters(run: int) -> dict[str, float]:
    """What a run was given."""
    rng = np.random.default_rng([run, 1])
    return {
        "learning_rate": float(rng.uniform(0.001, 0.3)),
        "hidden_units": float(rng.integers(8, 256)),
        "batch_size": float(rng.integers(16, 1024)),
    }


def values(run: int) -> np.ndarray[Any, Any]:
    """The values of a run, as float32: a row for each point, a column for each of `TAGS`."""
    rng = np.random.default_rng(run)
    falls = np.exp(-np.linspace(0, 1, POINTS)[:, None] * rng.uniform(1, 6, len(TAGS)))
    return (falls + rng.normal(0, 0.05, (POINTS, len(TAGS)))).astype(np.float32)
