"""How well probabilities fit what happened; needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.report import Report

Array = npt.NDArray[Any]


def auc(probabilities: Array, positive: Array) -> float:
    """The exact share of pairs in the right order, ties counting one half."""
    positive = positive.astype(bool)
    _, group, sizes = np.unique(probabilities, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def accuracy(probabilities: Array, positive: Array) -> float:
    """The share of rows on the right side of 1/2."""
    return float(((probabilities > 0.5) == positive.astype(bool)).mean())


def average_loss(probabilities: Array, positive: Array) -> float:
    """The mean cross entropy of a row."""
    chance = np.clip(np.where(positive.astype(bool), probabilities, 1.0 - probabilities).astype(np.float64), 1e-7, 1.0)
    return float(-np.log(chance).mean())


def enter(report: Report, probabilities: Array, positive: Array) -> None:
    """Writes all of them into a report."""
    report.auc, report.accuracy = auc(probabilities, positive), accuracy(probabilities, positive)
    report.average_loss = average_loss(probabilities, positive)
