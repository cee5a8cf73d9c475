"""Baseline models learn the distribution of the labels and ignore the features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.errors import DataError, ExportError, InvalidTypeError, InvalidValueError

LABELS = np.array([0, 1, 1, 1] * 10)
STRINGS = np.array(["a", "b", "", "ü"] * 10, dtype=object)


def in_csv(folder: Path) -> te.data.Dataset:
    # A text in a column whose first rows look like numbers would be an error if the column were read.
    values = [*range(39), "no number"]
    rows = [f"{label},{value}" for label, value in zip(LABELS, values, strict=True)]
    (folder / "a.csv").write_text("\n".join(["y,x", *rows]))
    return te.data.Dataset.from_csv(folder / "a.csv", label="y")


def only_labels(folder: Path) -> Path:
    (folder / "b.csv").write_text("\n".join(["y", *map(str, LABELS)]))
    return folder / "b.csv"


def in_parquet(folder: Path) -> te.data.Dataset:
    table = pa.table({"x": STRINGS, "dates": pa.array([None] * 40, pa.timestamp("s")), "y": LABELS})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    return te.data.Dataset.from_parquet(folder / "a.parquet", label="y")


SOURCES: dict[str, Callable[[Path], te.data.Dataset]] = {
    "two features": lambda _: te.data.Dataset.from_arrays({"x": np.zeros((40, 3)), "s": STRINGS}, LABELS),
    "an array": lambda _: te.data.Dataset.from_arrays(np.zeros((40, 5, 5)), LABELS),
    "a tuple": lambda _: te.data.Dataset.from_arrays((np.zeros(40), STRINGS), LABELS),
    "csv": in_csv,
    "only a label": lambda folder: te.data.Dataset.from_csv(only_labels(folder), label="y"),
    "parquet": in_parquet,
    "batches": lambda _: te.data.Dataset.from_iterable(
        lambda: [({"s": STRINGS[rows]}, LABELS[rows]) for rows in np.arange(40).reshape(10, 4)]
    ),
}


def settings(**more: Any) -> te.RunConfig:
    return te.RunConfig(random_seed=1, save_checkpoints_steps=1000, **more)


@pytest.mark.parametrize("name", SOURCES)
def test_a_classifier_learns_how_frequent_classes_are(name: str, tmp_path: Path) -> None:
    data = SOURCES[name](tmp_path)
    estimator = te.BaselineClassifier(str(tmp_path / "job"), config=settings())
    estimator.train(lambda: data.repeat().batch(8), steps=150)
    assert estimator.get_variable_names() == [
        *("baseline/bias", "baseline/bias/Ftrl", "baseline/bias/Ftrl_1", "global_step")
    ]
    assert estimator.get_variable_value("baseline/bias") == pytest.approx([np.log(3)], abs=0.03)
    results = estimator.evaluate(lambda: data.batch(7))
    assert results["accuracy"] == results["accuracy_baseline"] == results["label/mean"] == 0.75
    assert results["prediction/mean"] == pytest.approx(0.75, abs=0.01)
    predictions = list(estimator.predict(lambda: data.batch(7)))
    assert len(predictions) == 40
    assert predictions[0]["classes"].tolist() == ["1"]


def test_many_classes_with_a_vocabulary_and_weights(tmp_path: Path) -> None:
    labels = np.array(["b", "a", "c", "a"] * 5, dtype=object)
    features = {"w": np.where(labels == "c", 2.0, 1.0).astype(np.float32)}
    estimator = te.BaselineClassifier(
        str(tmp_path), n_classes=3, weight_column="w", label_vocabulary=["a", "b", "c"], config=settings()
    )
    estimator.train(lambda: te.data.Dataset.from_arrays(features, labels).repeat().batch(20), steps=200)
    bias = estimator.get_variable_value("baseline/bias")
    assert torch.softmax(torch.from_numpy(bias), 0).tolist() == pytest.approx([0.4, 0.2, 0.4], abs=0.01)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "compiled"])
def test_a_regressor_learns_the_mean_of_each_target(compiled: bool, tmp_path: Path) -> None:
    targets = np.array([[1.0, -2.0], [3.0, 0.0]])

    def data() -> te.data.Dataset:
        return te.data.Dataset.from_arrays({"x": np.zeros(2)}, targets).batch(2)

    estimator = te.BaselineRegressor(str(tmp_path), 2, optimizer="SGD", config=settings(compile=compiled))
    estimator.train(lambda: data().repeat(), steps=20)
    results = estimator.evaluate(data)
    assert estimator.get_variable_value("baseline/bias").tolist() == pytest.approx([2.0, -1.0], abs=1e-4)
    assert results["prediction/mean"] == pytest.approx(results["label/mean"], abs=1e-4)


def test_an_optimizer_may_be_given(tmp_path: Path) -> None:
    estimator = te.BaselineEstimator(
        te.PoissonRegressionHead(),
        str(tmp_path),
        lambda named: torch.optim.Adam([parameter for _, parameter in named], lr=0.5),
        settings(),
    )
    estimator.train(lambda: te.data.Dataset.from_arrays(STRINGS, np.full(40, 4)).batch(40).repeat(), steps=60)
    assert estimator.get_variable_value("baseline/bias") == pytest.approx([np.log(4)], abs=0.05)


def test_it_is_exported_with_any_inputs(tmp_path: Path) -> None:
    estimator = te.BaselineClassifier(str(tmp_path / "job"), label_vocabulary=["no", "yes"], config=settings())
    labels = np.array(["no", "yes", "yes", "yes"] * 10, dtype=object)
    estimator.train(lambda: te.data.Dataset.from_arrays({"s": STRINGS}, labels).repeat().batch(8), steps=20)
    predicted = next(estimator.predict(lambda: {"s": STRINGS}))
    columns = [fc.categorical_column_with_hash_bucket("s", 5)]
    for receiver, inputs in (
        (te.serving_input.raw_features(columns), {"s": ["x", "y", "z"]}),
        (te.serving_input.json(columns), {"s": ["x", "y", "z"]}),
        (te.serving_input.csv(["id", "s"], columns), {"csv_row": ["1,x", "2,y", "3,z"]}),
    ):
        model = te.ExportedModel.load(estimator.export_saved_model(str(tmp_path / receiver.kind), receiver))
        outputs = model.predict(inputs)
        assert list(outputs) == list(predicted)
        for key, value in predicted.items():
            assert outputs[key].shape == (3, *value.shape)
            if value.dtype != object:
                np.testing.assert_allclose(outputs[key][2], value, atol=1e-6)
        assert outputs["classes"].tolist() == [["yes"]] * 3
    with pytest.raises(ExportError, match="a baseline needs a serving input with at least one column"):
        estimator.export_saved_model(str(tmp_path / "none"), te.serving_input.raw_features([]))


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="head must be a head such as"):
        te.BaselineEstimator("binary", str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="Unknown optimizer 'Sgd'"):
        te.BaselineRegressor(str(tmp_path), optimizer="Sgd")
    with pytest.raises(InvalidValueError, match="n_classes must be at least 2, but got 1"):
        te.BaselineClassifier(str(tmp_path), n_classes=1)


def test_a_missing_weight_column_is_named(tmp_path: Path) -> None:
    estimator = te.BaselineRegressor(str(tmp_path), weight_column="w", config=settings())
    with pytest.raises(DataError, match="column 'w' is not in the features; the columns there are x"):
        estimator.train(lambda: te.data.Dataset.from_arrays({"x": np.zeros(4)}, np.zeros(4)).batch(2))
