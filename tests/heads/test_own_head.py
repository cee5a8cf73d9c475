"""A head that a user writes, complete in one file: trained, evaluated, exported and served.

Use `OrdinalHead` as a template. It needs no registration. A head of this package has a file in `torch_estimator/heads`
and one line in its ``__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator.heads import ClassificationHead, Graph, Head, Prediction
from torch_estimator.heads.base import check_labels, check_logits
from torch_estimator.heads.labels import Labels, class_ids, numeric_labels
from torch_estimator.metrics import MeanMetrics, Metrics


@dataclass(frozen=True)
class OrdinalHead(ClassificationHead):
    """Classes with an order, such as "low", "medium", "high": one logit for each step between two classes.

    The logit k says whether the class lies above k. The loss is the sum of the sigmoid cross entropies of all steps,
    and the predicted class is the number of steps that are more likely above than not.
    """

    n_classes: int
    label_vocabulary: Sequence[str] | None = None
    weight_column: str | None = None
    name: str | None = None

    prediction_keys = ("logits", "above", "class_ids", "classes")

    @property
    def logits_dimension(self) -> int:
        return self.n_classes - 1

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        return class_ids(labels, n_classes=self.n_classes, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Mapping[str, Any] | None = None) -> Tensor:
        check_logits(logits, self.logits_dimension)
        check_labels(labels, logits, 1)
        above = (labels > torch.arange(self.logits_dimension, device=labels.device)).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, above, reduction="none").sum(-1, keepdim=True)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        return {
            "logits": logits,
            "above": torch.sigmoid(logits),
            "class_ids": (logits > 0).sum(-1, keepdim=True),
        }

    def metrics(self) -> Metrics:
        def values(logits: Tensor, labels: Tensor, features: Any) -> list[Tensor]:
            steps = ((logits > 0).sum(-1, keepdim=True) - labels).abs().to(logits.dtype)
            return [self.unweighted_loss(logits, labels), (steps == 0).to(logits.dtype), steps]

        return MeanMetrics(["average_loss", "accuracy", "mean_steps_off"], values, name=self.name)

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        above_zero = graph.op("Greater", logits.tensor, graph.constant(0, np.float32))
        ones = graph.op("Where", above_zero, graph.constant(1, np.int64), graph.constant(0, np.int64))
        ids = graph.op("ReduceSum", ones, graph.constant([1], np.int64), keepdims=1)
        above = graph.op("Sigmoid", logits.tensor)
        return {
            "logits": logits,
            "above": Prediction(tensor=above, dtype="DT_FLOAT", row_shape=logits.row_shape),
            **self.lower_class(graph, ids),
        }


@dataclass(frozen=True)
class MedianHead(Head):
    """Regression of the median, with as little code as possible: torch's exporter adds it to the graph."""

    weight_column: str | None = None

    logits_dimension = 1
    prediction_keys = ("median", "is_positive")

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        return numeric_labels(labels, dimension=1)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Mapping[str, Any] | None = None) -> Tensor:
        return F.l1_loss(logits, labels, reduction="none")

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        return {"median": logits, "is_positive": logits > 0}


LEVELS = ["low", "medium", "high"]
ROWS = 300
NUMBERS = np.random.default_rng(0)
FEATURES = {
    "x": NUMBERS.normal(size=ROWS).astype(np.float32),
    "kind": NUMBERS.choice(["a", "b"], size=ROWS),
}
SCORES = FEATURES["x"] + (FEATURES["kind"] == "b")
LABELS = np.array(LEVELS, dtype=object)[np.digitize(SCORES, [-0.3, 1.0])]
COLUMNS = [
    te.feature_column.numeric_column("x"),
    te.feature_column.indicator_column(te.feature_column.categorical_column_with_vocabulary_list("kind", ["a", "b"])),
]


def by_key(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def assert_served_as_predicted(estimator: te.Estimator, export: str) -> None:
    """Check that an export gives the predictions of `Estimator.predict`, in the same order."""
    predicted = by_key(list(estimator.predict(lambda: te.data.Dataset.from_arrays(FEATURES).batch(64))))
    model = te.ExportedModel.load(export)
    served = model.predict({key: FEATURES[key] for key in model.signatures["predict"].inputs})
    assert list(served) == list(predicted)
    for key, values in predicted.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(served[key], values, atol=1e-5)
        else:
            assert served[key].tolist() == values.tolist()


def test_a_canned_model_trains_evaluates_and_serves_an_own_head(tmp_path: Path) -> None:
    estimator = te.DNNEstimator(
        OrdinalHead(3, LEVELS, name="level"),
        hidden_units=[8],
        feature_columns=COLUMNS,
        optimizer=te.optim.Adam(lr=0.05),
        model_dir=str(tmp_path / "model"),
        config=te.RunConfig(random_seed=1, compile=False),
    )
    data = te.data.Dataset.from_arrays(FEATURES, LABELS)
    estimator.train(lambda: data.repeat().batch(50), steps=150)

    results = estimator.evaluate(lambda: data.batch(64))

    assert results["accuracy/level"] > 0.9
    assert results["mean_steps_off/level"] < 0.1
    export = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features(COLUMNS))
    assert_served_as_predicted(estimator, export)
    # The graph takes strings and gives strings.
    answer = te.ExportedModel.load(export).predict({"x": [-9.0, 9.0], "kind": ["a", "b"]})
    assert answer["classes"].tolist() == [["low"], ["high"]]


def test_evaluation_does_not_depend_on_the_batches(tmp_path: Path) -> None:
    class Identity(nn.Module):
        def forward(self, features: Mapping[str, Tensor]) -> Tensor:
            return features["logits"]

    estimator = te.Estimator.from_module(Identity(), head=OrdinalHead(3, weight_column="w"), model_dir=str(tmp_path))
    features = {
        "logits": np.array([[2.0, -2.0], [2.0, 2.0], [-2.0, -2.0]], np.float32),
        "w": np.array([1.0, 2.0, 1.0], np.float32),
    }
    for size in (1, 3):
        results = estimator.evaluate(
            lambda size=size: te.data.Dataset.from_arrays(features, np.array([1, 0, 0])).batch(size)
        )
        assert results["accuracy"] == pytest.approx(0.5)
        assert results["mean_steps_off"] == pytest.approx(1.0)


def test_a_head_without_a_lowering_is_exported_by_torch(tmp_path: Path) -> None:
    estimator = te.LinearEstimator(
        MedianHead(),
        feature_columns=[COLUMNS[0]],
        optimizer="Adagrad",
        model_dir=str(tmp_path / "model"),
        config=te.RunConfig(random_seed=1, compile=False),
    )
    data = te.data.Dataset.from_arrays(FEATURES, SCORES)
    estimator.train(lambda: data.repeat().batch(50), steps=10)
    assert set(estimator.evaluate(lambda: data.batch(64))) == {"average_loss", "loss", "global_step"}
    export = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features([COLUMNS[0]]))
    assert_served_as_predicted(estimator, export)


def test_a_prediction_that_is_not_lowered_is_named(tmp_path: Path) -> None:
    class Forgetful(OrdinalHead):
        lower = Head.lower

    estimator = te.LinearEstimator(
        Forgetful(3), feature_columns=COLUMNS[:1], optimizer="Adagrad", model_dir=str(tmp_path)
    )
    data = te.data.Dataset.from_arrays(FEATURES, np.zeros(ROWS, np.int64)).batch(50)
    estimator.train(lambda: data, steps=1)
    with pytest.raises(te.errors.ExportError, match=r"Forgetful\.lower does not give the prediction 'classes'"):
        estimator.export_saved_model(str(tmp_path), te.serving_input.raw_features(COLUMNS[:1]))


def test_settings_that_all_heads_share_are_checked() -> None:
    with pytest.raises(te.errors.InvalidValueError, match="A head's name must not be empty"):
        OrdinalHead(3, name="")
    with pytest.raises(te.errors.InvalidTypeError, match="weight_column must be the name of a feature"):
        MedianHead(weight_column=3)  # type: ignore[arg-type]
    with pytest.raises(te.errors.InvalidValueError, match="each of the 3 classes, but it has 1"):
        OrdinalHead(3, ["low"])
