"""Training with given initial weights and batches results in TensorFlow's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.programs import BABYWEIGHT_NAMES, CENSUS_NAMES, babyweight_columns, census_deep, census_wide
from torch_estimator.checkpoint.variables import named_variables
from torch_estimator.hooks import Hook, RunContext

Golden = Callable[[str], dict[str, Any]]


class StartFrom(Hook):
    """Hook that sets the module's weights before the first step."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def begin(self, context: RunContext) -> None:
        assert context.module is not None
        variables = named_variables(context.module)
        assert sorted(variables) == sorted(self.values)
        for name, value in self.values.items():
            variables[name].copy_(torch.from_numpy(as_array(value)))


def as_array(value: Mapping[str, Any]) -> np.ndarray:
    if "values" in value:
        return np.array(value["values"], dtype=np.float32).reshape(value["shape"])
    array = np.zeros(int(np.prod(value["shape"])), dtype=np.float32)
    for index, number in value["nonzero"].items():
        array[int(index)] = number
    return array.reshape(value["shape"])


def check_trajectory(
    golden: Mapping[str, Any],
    make_estimator: Callable[[str], te.Estimator],
    shared_data: Path,
    tmp_path: Path,
    *,
    column_names: list[str],
    label: str,
    mapping: Mapping[str, int] | None = None,
) -> None:
    def rows(file: str) -> te.data.Dataset:
        return te.data.Dataset.from_csv(shared_data / file, column_names=column_names).label(label, mapping)

    train = rows(golden["train_file"]).skip(golden["train_skip_rows"]).batch(golden["batch_size"])
    evaluated = rows(golden["eval_file"])
    if golden["eval_rows"] is not None:
        evaluated = evaluated.take(golden["eval_rows"])
    evaluated = evaluated.batch(golden["eval_batch_size"])
    hooks = [StartFrom(golden["initial"])] if "initial" in golden else []
    for run in golden["runs"]:
        estimator = make_estimator(str(tmp_path / str(run["steps"])))
        estimator.train(lambda: train, steps=run["steps"], hooks=hooks)
        for name, value in run["variables"].items():
            np.testing.assert_allclose(
                estimator.get_variable_value(name), as_array(value), rtol=1e-4, atol=1e-6, err_msg=name
            )
        metrics = estimator.evaluate(lambda: evaluated)
        assert metrics == pytest.approx(run["eval"], rel=1e-4, abs=1e-4)
    predictions = list(zip(estimator.predict(lambda: evaluated), golden["predictions"], strict=False))
    assert len(predictions) == len(golden["predictions"]) > 0
    for ours, theirs in predictions:
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            if isinstance(value[0], str):
                assert list(ours[key]) == value
            else:
                np.testing.assert_allclose(ours[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("linear_classifier_census", {}),
        ("linear_classifier_census_sgd", {"optimizer": partial(te.optim.GradientDescent, lr=0.01)}),
    ],
)
def test_linear_classifier_follows_tensorflow(
    name: str, arguments: dict[str, Any], golden: Golden, shared_data: Path, tmp_path: Path
) -> None:
    check_trajectory(
        golden(name),
        lambda model_dir: te.LinearClassifier(census_wide(), model_dir, **arguments),
        shared_data,
        tmp_path,
        column_names=CENSUS_NAMES,
        label="income_bracket",
        mapping={"<=50K": 0, ">50K": 1},
    )


def test_wide_and_deep_classifier_follows_tensorflow(golden: Golden, shared_data: Path, tmp_path: Path) -> None:
    check_trajectory(
        golden("wide_deep_classifier_census"),
        lambda model_dir: te.DNNLinearCombinedClassifier(
            model_dir,
            linear_feature_columns=census_wide(),
            dnn_feature_columns=census_deep(),
            dnn_hidden_units=[16, 8],
        ),
        shared_data,
        tmp_path,
        column_names=CENSUS_NAMES,
        label="income_bracket",
        mapping={"<=50K": 0, ">50K": 1},
    )


def test_linear_regressor_follows_tensorflow(golden: Golden, shared_data: Path, tmp_path: Path) -> None:
    check_trajectory(
        golden("linear_regressor_babyweight"),
        lambda model_dir: te.LinearRegressor(babyweight_columns()[0], model_dir),
        shared_data,
        tmp_path,
        column_names=BABYWEIGHT_NAMES,
        label="weight_pounds",
    )


def test_dnn_regressor_follows_tensorflow(golden: Golden, shared_data: Path, tmp_path: Path) -> None:
    check_trajectory(
        golden("dnn_regressor_babyweight"),
        lambda model_dir: te.DNNRegressor([16, 8], babyweight_columns()[1], model_dir),
        shared_data,
        tmp_path,
        column_names=BABYWEIGHT_NAMES,
        label="weight_pounds",
    )
