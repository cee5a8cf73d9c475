"""Batches on their way to a model: converted many at once, they are what each would be by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.model import Model

ROWS = 1000
COLOR = fc.categorical_column_with_hash_bucket("color", 10)
SIZE = fc.numeric_column("size")
TAGS = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"], multivalent=True)


def columns() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "color": random.choice(np.array(["red", "green", ""], object), ROWS),
        "size": random.normal(size=ROWS),
        "importance": random.random(ROWS),
        "tags": pa.array([random.choice(["a", "b", "c"], n % 5).tolist() for n in range(ROWS)], pa.list_(pa.string())),
    }


def labels() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 2, ROWS)


def canned(*wide: Any, **arguments: Any) -> te.Estimator:
    return te.DNNLinearCombinedEstimator(
        te.BinaryClassHead(**arguments),
        "unused",
        linear_feature_columns=[COLOR, *wide],
        dnn_feature_columns=[fc.embedding_column(COLOR, 3), SIZE],
        dnn_hidden_units=[4],
    )


def own() -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=te.optim.Adam(lr=0.1))

    return te.Estimator(model_fn, "unused")


def built(estimator: te.Estimator, mode: te.ModeKeys) -> Model:
    return estimator.job.builder.build(mode, estimator.config)


def largest(features: Any) -> dict[str, Any]:
    return {"largest": features["size"].max()}


def by_size(labels: Any, logits: Any, features: Any) -> Any:
    return logits * features["size"][:, None]


def by_itself(model: Model, features: Any, label: Any) -> TensorBatch:
    """One batch through the host half and onto the device, with nothing beside it."""
    (batch,) = model.batches(te.data.Dataset.from_arrays(features, label).batch(ROWS))
    return batch  # type: ignore[no-any-return]


def rows(values: Any, start: int, stop: int) -> Any:
    if isinstance(values, Mapping):
        return {name: rows(value, start, stop) for name, value in values.items()}
    return values[start:stop]


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Mapping):
        assert list(one) == list(other)
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, tuple):
        for mine, yours in zip(one, other, strict=True):
            assert_equal(mine, yours)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    elif isinstance(one, pa.Array):
        assert one.to_pylist() == other.to_pylist()
    elif one is not None:
        np.testing.assert_array_equal(one, other)


CASES: dict[str, tuple[te.Estimator, te.ModeKeys, list[str]]] = {
    "columns": (canned(), te.ModeKeys.TRAIN, ["color", "size"]),
    "lists": (canned(TAGS), te.ModeKeys.TRAIN, ["color", "size", "tags"]),
    "weights": (canned(weight_column="importance"), te.ModeKeys.TRAIN, ["color", "size", "importance"]),
    "loss of features": (canned(loss_fn=by_size), te.ModeKeys.TRAIN, ["color", "size"]),
    "metrics of features": (te.add_metrics(canned(), largest), te.ModeKeys.EVAL, ["color", "size"]),
    "forwarded": (te.forward_features(canned(TAGS)), te.ModeKeys.PREDICT, ["color", "size", "tags"]),
    "own module": (own(), te.ModeKeys.TRAIN, ["color", "size"]),
    "own module, forwarded": (te.forward_features(own()), te.ModeKeys.PREDICT, ["color", "size"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [7, 64, 400])
def test_batches_are_what_each_would_be_by_itself(case: str, size: int) -> None:
    estimator, mode, names = CASES[case]
    model = built(estimator, mode)
    features, label = {name: columns()[name] for name in names}, labels()
    data = te.data.Dataset.from_arrays(features, label).batch(size)
    start, is_raw_there = 0, "forwarded" in case or "metrics" in case
    with model.batches(data) as batches:
        for tensors in batches:
            assert (tensors.raw is not None) is is_raw_there
            stop = min(start + size, ROWS)
            assert_equal(tensors, by_itself(model, rows(features, start, stop), rows(label, start, stop)))
            start = stop
    assert start == ROWS


BIG = np.where(np.arange(6) == 4, -1e300, 1.0)
RAGGED = pa.array([[1.0, 2.0], [], [1.0], [-1e300, 3.0], [1e300], []])


class Anything(nn.Module):
    """Takes features of any structure."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, features: Any) -> torch.Tensor:
        return self.weight * 1


def anything(dtype: torch.dtype = torch.float32) -> te.Estimator:
    return te.Estimator.from_module(
        Anything(dtype), loss=lambda outputs, labels: outputs.sum(), optimizer="SGD", model_dir="memory://anything"
    )


@pytest.mark.parametrize("mode", [te.ModeKeys.TRAIN, te.ModeKeys.EVAL])
@pytest.mark.parametrize(
    ("features", "label", "dtype", "message"),
    [
        (BIG[:, None], np.ones(6), torch.float32, r"row 4.*: number -1e\+300 is beyond float32, whose largest number"),
        (
            {"a": np.ones(6), "b": BIG},
            np.ones(6),
            torch.float32,
            r"row 4.*column 'b': number -1e\+300 is beyond",
        ),
        ((np.ones(6), BIG), np.ones(6), torch.float32, r"row 4.*number -1e\+300 is beyond float32"),
        ({"a": RAGGED}, np.ones(6), torch.float32, r"row 3.*column 'a': number -1e\+300 is beyond float32"),
        (np.ones(6), BIG, torch.float32, r"row 4.*: label -1e\+300 is beyond float32, whose largest number"),
        (np.ones(6), {"y": BIG}, torch.float32, r"row 4.*: label 'y': label -1e\+300 is beyond float32"),
        (
            np.full(6, 7e4, np.float32),
            np.ones(6),
            torch.float16,
            r"row 0.*: number 70000 is beyond float16",
        ),
    ],
)
def test_numbers_that_the_modules_dtype_does_not_hold_are_named(
    features: Any, label: Any, dtype: torch.dtype, message: str, mode: te.ModeKeys
) -> None:
    model = built(anything(dtype), mode)
    data = te.data.Dataset.from_arrays(features, label).padded_batch(6)
    with pytest.raises(te.errors.DataError, match=message), model.batches(data) as batches:
        next(batches)


def test_infinities_that_the_data_has_and_numbers_of_a_wide_module_stay() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1.0])
    data = te.data.Dataset.from_arrays(x, x).batch(4)
    with built(anything(), te.ModeKeys.TRAIN).batches(data) as batches:
        batch = next(batches)
    np.testing.assert_array_equal(batch.features.numpy(), x.astype(np.float32))
    np.testing.assert_array_equal(batch.labels.numpy(), x.astype(np.float32))
    data = te.data.Dataset.from_arrays(BIG, BIG).batch(6)
    with built(anything(torch.float64), te.ModeKeys.TRAIN).batches(data) as batches:
        batch = next(batches)
    assert batch.features.min() == batch.labels.min() == -1e300
    # Predictions read no labels.
    data = te.data.Dataset.from_arrays(np.ones(6), BIG).batch(6)
    with built(anything(), te.ModeKeys.PREDICT).batches(data) as batches:
        assert next(batches).labels is None
