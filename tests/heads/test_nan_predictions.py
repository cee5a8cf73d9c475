"""Evaluations of models that predict NaN: metrics that compare classes fail, as in TensorFlow, with metric and step."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from torch_estimator import feature_column as fc

X = np.arange(40, dtype=np.float32) / 10 - 2
BROKEN = np.where(np.arange(40) == 30, np.nan, X).astype(np.float32)
POSITIVE = (X > 0).astype(np.int64)

COLUMNS = [fc.numeric_column("x")]
TWO = np.stack([POSITIVE, 1 - POSITIVE], 1)


def evaluate(directory: Path, make: Callable[..., te.Estimator], labels: Any) -> dict[str, Any]:
    estimator = make(model_dir=str(directory), config=te.RunConfig(random_seed=1, compile=False))
    estimator.train(lambda: te.data.Dataset.from_arrays({"x": X}, labels).repeat().batch(8), steps=2)
    return estimator.evaluate(lambda: te.data.Dataset.from_arrays({"x": BROKEN}, labels).batch(8))


@pytest.mark.parametrize(
    ("make", "labels", "named"),
    [
        (lambda **job: te.LinearClassifier(COLUMNS, **job), POSITIVE, "accuracy, precision, recall, auc, "),
        (lambda **job: te.v2.LinearClassifier(COLUMNS, **job), POSITIVE, "accuracy, precision, recall, auc, "),
        (lambda **job: te.LinearClassifier(COLUMNS, n_classes=3, **job), POSITIVE + 1, "accuracy "),
        (lambda **job: te.v2.DNNClassifier([4], COLUMNS, n_classes=3, **job), POSITIVE + 1, "accuracy "),
        (lambda **job: te.LinearEstimator(te.MultiLabelHead(2), COLUMNS, **job), TWO, "auc, auc_precision_recall "),
        (
            lambda **job: te.LinearEstimator(te.BinaryClassHead(name="clicks"), COLUMNS, **job),
            POSITIVE,
            "accuracy/clicks, precision/clicks, ",
        ),
    ],
)
def test_classes_of_nan_are_not_scored(tmp_path: Path, make: Any, labels: Any, named: str) -> None:
    with pytest.raises(te.UserError, match=f"The metrics {named}.*cannot be computed at global step 2.*predicts NaN"):
        evaluate(tmp_path, make, labels)


def test_errors_of_a_regression_are_nan(tmp_path: Path) -> None:
    metrics = evaluate(tmp_path, lambda **job: te.LinearRegressor(COLUMNS, **job), X)
    assert math.isnan(metrics["average_loss"])
    assert math.isnan(metrics["prediction/mean"])
