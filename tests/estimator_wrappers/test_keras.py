"""Wrappers of an Estimator of a Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from torch import Tensor

import torch_estimator as te
from tests.estimator_wrappers.models import columns, predicted, rows
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.feature_column.raw_feature import RawFeature

# A warning that Keras itself causes with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def mean_absolute(labels: Tensor, predictions: Mapping[str, Tensor], features: Mapping[str, Any]) -> dict[str, Tensor]:
    return {"my_mae": (predictions["y"][:, 0] - labels).abs().mean(), "last": features["key"][-1]}


def test_a_keras_model_can_be_wrapped(tmp_path: Path) -> None:
    inputs = keras.Input((1,), name="x")
    code = keras.layers.Dense(3, activation="relu", name="code")(inputs)
    model = keras.Model({"x": inputs}, keras.layers.Dense(1, name="y")(code))
    model.compile("sgd", "mse", metrics=["mae"])

    def shaped(data: te.data.Dataset) -> te.data.Dataset:
        return data.map(lambda features, labels: ({**features, "x": features["x"][:, None]}, labels))

    estimator = te.model_to_estimator(model, model_dir=str(tmp_path / "job"))
    extended = te.forward_layers(
        te.forward_features(te.add_metrics(estimator, mean_absolute), "key"), {"c": "code"}, "c"
    )
    results = extended.train(lambda: shaped(rows()), steps=2).evaluate(lambda: shaped(rows()))
    assert results["my_mae"] == pytest.approx(results["mae"], rel=1e-5)
    expected = predicted(extended)
    assert expected["key"].tolist() == columns()["key"].tolist()
    assert expected["c"].shape == (len(columns()["x"]), 3)
    receiver = te.serving_input.raw_features([RawFeature(key="x", dtype="float32")], {"key": 0})
    exported = ExportedModel.load(extended.export_saved_model(str(tmp_path / "export"), receiver))
    got = exported.predict({"x": columns()["x"], "key": columns()["key"]}, "c")
    assert list(got) == ["c", "key"]
    np.testing.assert_allclose(got["c"], expected["c"], rtol=0, atol=1e-5)
    assert got["key"].ravel().tolist() == expected["key"].tolist()
    with pytest.raises(ValueError, match="has no layer 'coda'; names near it are code"):
        te.forward_layers(estimator, {"c": "coda"}).evaluate(lambda: shaped(rows()))
