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
    model = estimator._build(mode)
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
