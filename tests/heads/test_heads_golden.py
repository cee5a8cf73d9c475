"""One evaluate() and predict() of every head equals TensorFlow's."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te

HEADS = {
    "binary": te.BinaryClassHead(),
    "binary_weighted_thresholds": te.BinaryClassHead(weight_column="w", thresholds=[0.25, 0.5, 0.75]),
    "binary_vocabulary": te.BinaryClassHead(label_vocabulary=["<=50K", ">50K"]),
    "multi_class": te.MultiClassHead(3),
    "multi_class_weighted": te.MultiClassHead(3, weight_column="w"),
    "multi_label": te.MultiLabelHead(3),
    "multi_label_thresholds": te.MultiLabelHead(3, thresholds=[0.3, 0.6]),
    "regression": te.RegressionHead(label_dimension=2),
    "regression_weighted": te.RegressionHead(weight_column="w"),
    "poisson": te.PoissonRegressionHead(),
    "logistic_regression": te.LogisticRegressionHead(),
}
every_head = pytest.mark.parametrize(("entry", "head"), HEADS.items(), ids=HEADS)


class Given(nn.Module):
    """Module that returns the feature "logits" as its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return features["logits"]


def estimator(head: Any, model_dir: Path) -> te.Estimator:
    return te.Estimator.from_module(Given(), head=head, model_dir=str(model_dir))


def test_every_reference_has_a_head_here(golden: Any) -> None:
    assert set(HEADS) == set(golden("heads"))


@every_head
def test_evaluate_equals_tensorflows(golden: Any, entry: str, head: Any, tmp_path: Path) -> None:
    reference = golden("heads")[entry]
    features = {"logits": np.array(reference["logits"], np.float32)}
    if reference["weights"]:
        features["w"] = np.array(reference["weights"], np.float32)
    labels = np.array(reference["labels"])

    measured = estimator(head, tmp_path).evaluate(
        lambda: te.data.Dataset.from_arrays(features, labels=labels).batch(reference["batch_size"])
    )

    expected = reference["metrics"]
    assert measured.keys() - {"global_step"} == expected.keys()
    for key, value in expected.items():
        assert measured[key] == pytest.approx(value, abs=1e-4 if key.startswith("auc") else 1e-5), key


@every_head
def test_predict_equals_tensorflows(golden: Any, entry: str, head: Any, tmp_path: Path) -> None:
    reference = golden("heads")[entry]
    features = {"logits": np.array(reference["logits"], np.float32)}
    expected = reference["predictions"]
    count = len(next(iter(expected.values())))

    predictions = estimator(head, tmp_path).predict(
        lambda: te.data.Dataset.from_arrays(features).batch(reference["batch_size"])
    )

    rows = list(islice(predictions, count))
    assert len(rows) == count
    for number, row in enumerate(rows):
        assert tuple(row) == tuple(expected)
        for key, values in expected.items():
            if key in ("classes", "all_classes"):
                assert row[key].tolist() == values[number], key
            else:
                np.testing.assert_allclose(row[key], values[number], atol=1e-5, err_msg=key)
