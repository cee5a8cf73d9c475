"""A loss of NaN is blamed on the numbers of its batch where these are to blame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc

Features = dict[str, np.ndarray]


def error_of(tmp_path: Path, columns: list[Any], change: Callable[[Features, np.ndarray], object], compile: Any) -> str:
    """Return the error of a training on 64 rows in batches of 8, after `change` of the arrays."""
    x = np.linspace(1, 2, 64, dtype=np.float32)
    features = {"age": x.copy(), "pair": np.stack([x, x], 1), "income": x.copy()}
    labels = x.copy()
    change(features, labels)
    estimator = te.DNNRegressor([4], columns, str(tmp_path), config=te.RunConfig(random_seed=1, compile=compile))
    with pytest.raises(te.NanLossDuringTrainingError) as raised:
        estimator.train(lambda: te.data.Dataset.from_arrays(features, labels).batch(8).repeat(), steps=20)
    return str(raised.value)


def set_number(name: str, place: Any, value: float) -> Callable[[Features, np.ndarray], object]:
    return lambda features, labels: (features | {"labels": labels})[name].__setitem__(place, value)


COLUMNS = [fc.numeric_column("age"), fc.numeric_column("pair", shape=2), fc.numeric_column("income")]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("income", 18, np.nan, "step 3; in its batch, the feature 'income' is NaN in 1 of 8 rows (first in row 3)"),
        ("pair", (slice(8, 10), 1), np.inf, "the feature 'pair' is infinite in 2 of 8 rows (first in row 1)"),
        (
            "age",
            slice(0, 8),
            -np.inf,
            "step 1; in its batch, the feature 'age' is infinite in 8 of 8 rows (first in row 1)",
        ),
    ],
)
def test_what_is_not_finite_is_named(
    name: str, place: Any, value: float, said: str, compile: bool, tmp_path: Path
) -> None:
    assert said in error_of(tmp_path, COLUMNS, set_number(name, place, value), compile)


def test_two_columns_are_named_together(tmp_path: Path) -> None:
    def change(features: Features, labels: np.ndarray) -> None:
        features["age"][2] = features["income"][3] = np.nan

    said = error_of(tmp_path, COLUMNS, change, False)
    assert "'age' is NaN in 1 of 8 rows (first in row 3); the feature 'income' is NaN in 1 of 8 rows (first in" in said


def test_a_normalizer_that_makes_it_so_is_named(tmp_path: Path) -> None:
    columns = [fc.numeric_column("age"), fc.numeric_column("income", normalizer_fn=torch.log)]
    said = error_of(tmp_path, columns, set_number("income", 1, 0.0), False)
    assert "the feature 'income' after its normalizer_fn is infinite in 1 of 8 rows (first in row 2)" in said


def test_finite_numbers_are_not_blamed(tmp_path: Path) -> None:
    def far(features: Features, labels: np.ndarray) -> None:
        labels[:] = 3e38

    said = error_of(tmp_path, COLUMNS, far, False)
    assert said.endswith("this process has read for it are finite. The last checkpoint holds the state before it.")


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Any) -> Tensor:
        return self.inner(x["x"] if isinstance(x, dict) else x)[:, 0]


@pytest.mark.parametrize("named", [False, True])
def test_features_of_a_module_of_ones_own_are_named(named: bool, tmp_path: Path) -> None:
    x = np.ones((16, 2), np.float32)
    x[9, 0] = np.nan
    estimator = te.Estimator.from_module(Sum(), loss=nn.MSELoss(), optimizer="SGD", model_dir=str(tmp_path))
    features = {"x": x} if named else x
    what = "the feature 'x' is" if named else "the features are"
    with pytest.raises(te.NanLossDuringTrainingError, match=rf"step 3; in its batch, {what} NaN in 1 of 4 rows"):
        estimator.train(lambda: te.data.Dataset.from_arrays(features, np.ones(16, np.float32)).batch(4))
