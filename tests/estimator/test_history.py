"""What an Estimator says of itself: curves, a table of variables, and a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.line_jobs import line, points
from torch_estimator.data import Dataset
from torch_estimator.errors import CheckpointError, InvalidValueError


def test_the_history_holds_the_curves_of_training_and_of_each_evaluation(tmp_path: Path) -> None:
    estimator = line(tmp_path, save_summary_steps=5)
    assert estimator.history() == {}
    for steps in (10, 20):
        estimator.train(lambda: points().repeat(), max_steps=steps)
        results = [estimator.evaluate(points, name=name) for name in (None, "again")]
    history = estimator.history()
    assert history["loss"].steps.tolist() == [1, 6, 11, 16]
    for prefix, result in zip(("eval", "eval_again"), results, strict=True):
        curve = history[f"{prefix}/loss"]
        assert curve.steps.tolist() == [10, 20]
        assert curve.values[1] == pytest.approx(result["loss"], rel=1e-6)
    frame = history.frame()
    assert frame.index.tolist() == [1, 6, 10, 11, 16, 20]
    assert np.isnan(frame["loss"][10])
    assert frame["eval/absolute_error"][20] == pytest.approx(results[0]["absolute_error"], rel=1e-6)
    assert "eval/loss: 2 points, the last" in repr(history)


def test_the_summary_lists_variables_with_their_shapes(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    assert repr(estimator) == f"<Estimator in {str(tmp_path)!r}: not trained yet>"
    with pytest.raises(CheckpointError, match="no checkpoint"):
        estimator.summary()
    estimator.train(points, max_steps=3)
    assert [one.split() for one in estimator.summary().splitlines()] == [
        ["variable", "shape", "numbers"],
        ["linear.bias", "[1]", "1"],
        ["linear.weight", "[1,", "2]", "2"],
        ["3", "numbers", "in", "2", "variables,", "and", "3", "of", "the", "optimizer,", "at", "global", "step", "3"],
    ]
    assert repr(estimator) == f"<Estimator in {str(tmp_path)!r}: global step 3>"


def test_a_dataset_names_its_source_and_operations(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"x": np.arange(1000), "z": np.arange(1000)}, np.arange(1000))
    assert repr(data.shuffle(10).repeat().batch(32)) == (
        "<Dataset: 1000 rows in memory: x, z, labels | shuffle(10) | repeat() | batch(32)>"
    )
    files = Dataset.from_csv("train-*.csv").map(len).skip(1).take(2).shard(3, 1)
    assert repr(files) == "<Dataset: Csv train-*.csv | map | skip(1) | take(2) | shard(3, 1)>"
    assert repr(data.concatenate(data)) == "<Dataset: concatenated datasets of 2>"
    assert repr(Dataset.from_iterable([])) == "<Dataset: Iterable>"
    assert repr(Dataset.from_parquet(tmp_path / "a")) == f"<Dataset: Parquet {tmp_path / 'a'}>"


def test_head_is_the_first_rows_of_rows_and_of_batches() -> None:
    data = Dataset.from_arrays({"x": np.arange(9)}, np.arange(9) % 2)
    for given in (data, data.batch(4), data.repeat()):
        features, labels = given.head(3)
        assert (features["x"].tolist(), labels.tolist()) == ([0, 1, 2], [0, 1, 0])
    with pytest.raises(InvalidValueError, match="the Dataset has no rows"):
        data.filter(lambda features, labels: labels > 5).head()
    with pytest.raises(InvalidValueError, match="head's number of rows must be at least 1"):
        data.head(0)
