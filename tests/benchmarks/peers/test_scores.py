"""Scores of peers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.peers import scores


def test_average_loss_is_the_mean_cross_entropy() -> None:
    loss = scores.average_loss(np.array([0.25, 0.5, 0.9]), np.array([0, 1, 1]))

    assert loss == pytest.approx(-(math.log(0.75) + math.log(0.5) + math.log(0.9)) / 3)


def test_average_loss_of_a_certain_mistake_is_finite() -> None:
    assert math.isfinite(scores.average_loss(np.array([1.0], np.float32), np.array([0])))


def test_auc_of_a_perfect_order_is_1_and_of_none_a_half() -> None:
    assert scores.auc(np.array([0.1, 0.2, 0.3]), np.array([0.0, 1.0, 1.0])) == 1.0
    assert scores.auc(np.array([0.2, 0.2, 0.2]), np.array([0.0, 1.0, 1.0])) == 0.5
