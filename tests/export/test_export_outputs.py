"""Signatures that a model_fn gives its exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.serving.models import app_of, predict
from torch_estimator import feature_column as fc
from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError, UserError
from torch_estimator.heads.serving import Signature

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
REGRESS = "tensorflow/serving/regress"
PREDICT = "tensorflow/serving/predict"


def predictions(outputs: Tensor) -> dict[str, Tensor]:
    return {"price": outputs[:, :1], "scores": outputs.softmax(1)}


def estimator(export_outputs: Mapping[str, Signature] | None) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode,
            module=nn.Linear(2, 2),
            loss=lambda outputs, labels: outputs.mean(),
            predictions=predictions,
            optimizer=te.optim.Adam(),
            export_outputs=export_outputs,
        )

    return te.Estimator(model_fn, "memory://export_outputs").train(lambda: (X, X), steps=1)


def exported(estimator: te.Estimator, base: Path) -> te.ExportedModel:
    return te.ExportedModel.load(estimator.export_saved_model(str(base), te.serving_input.like(X)))


def test_signatures_return_the_chosen_predictions_under_the_chosen_names(tmp_path: Path) -> None:
    outputs = {
        "serving_default": te.export.PredictOutput({"shares": "scores"}),
        "both": te.export.PredictOutput(["scores", "price"]),
        "value": te.export.RegressionOutput("price"),
        "kind": te.export.ClassificationOutput(scores="scores"),
        "one": te.export.PredictOutput("price"),
    }
    model = exported(estimator(outputs), tmp_path)
    assert {name: list(signature.outputs) for name, signature in model.signatures.items()} == {
        "serving_default": ["shares"],
        "predict": ["price", "scores"],
        "both": ["scores", "price"],
        "value": ["outputs"],
        "kind": ["scores"],
        "one": ["output"],
    }
    everything = model.predict({"features": X})
    np.testing.assert_array_equal(model.predict({"features": X}, "serving_default")["shares"], everything["scores"])
    np.testing.assert_array_equal(model.predict({"features": X}, "value")["outputs"], everything["price"])
    with app_of(tmp_path) as app:
        served = predict(app, {"instances": X.tolist(), "signature_name": "value"}).json()["predictions"]
    np.testing.assert_allclose(served, everything["price"], atol=1e-6)


def test_a_single_signature_is_the_default(tmp_path: Path) -> None:
    model = exported(estimator({"mine": te.export.PredictOutput("price")}), tmp_path)
    assert list(model.signatures["serving_default"].outputs) == ["output"]
    assert list(model.signatures["predict"].outputs) == ["price", "scores"]


def of_module(export_outputs: Mapping[str, Signature]) -> te.Estimator:
    return te.Estimator.from_module(
        nn.Linear(2, 1), head=te.RegressionHead(), export_outputs=export_outputs, model_dir="memory://of_module"
    )


def test_an_estimator_of_a_module_has_signatures_beside_those_of_its_head(tmp_path: Path) -> None:
    model = exported(of_module({"value": te.export.RegressionOutput("predictions")}), tmp_path)
    assert list(model.signatures) == ["serving_default", "predict", "value"]
    np.testing.assert_array_equal(
        model.predict({"features": X}, "value")["outputs"], model.predict({"features": X})["predictions"]
    )


def with_outputs(export_outputs: Mapping[str, Signature]) -> te.Estimator:
    x = fc.numeric_column("x")
    linear = te.LinearRegressor([x], "memory://with_outputs").train(lambda: ({"x": [1.0]}, [2.0]), steps=1)
    return linear.with_changed_spec(lambda spec: dataclasses.replace(spec, export_outputs=export_outputs))


def test_the_signatures_of_a_head_stay(tmp_path: Path) -> None:
    changed = with_outputs({"value": te.export.RegressionOutput("predictions")})
    x = fc.numeric_column("x")
    model = te.ExportedModel.load(changed.export_saved_model(str(tmp_path / "a"), te.serving_input.csv(["x"], [x])))
    assert list(model.signatures) == ["serving_default", "regression", "predict", "value"]
    assert model.signature("value").method_name == REGRESS
    assert model.predict({"inputs": ["3"]}, "value")["outputs"].shape == (1, 1)
    model = te.ExportedModel.load(changed.export_saved_model(str(tmp_path / "b"), te.serving_input.json([x])))
    # TensorFlow's method regress takes examples as one string, so that this is a prediction.
    assert model.signature("value").method_name == PREDICT
    assert list(model.signature("value").inputs) == ["x"]


def test_an_unknown_prediction_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"signature 'value' of export_outputs has the prediction 'cost', .*predictions"
    ):
        with_outputs({"value": te.export.RegressionOutput("cost")}).export_saved_model(
            str(tmp_path), te.serving_input.json([fc.numeric_column("x")])
        )


@pytest.mark.parametrize(
    ("make", "error", "problem"),
    [
        (lambda: estimator({"a": {"b": "c"}}), InvalidTypeError, "hold signatures such as te.export.PredictOutput"),  # type: ignore[dict-item]
        (lambda: of_module({"a": "predictions"}), InvalidTypeError, "export_outputs must hold signatures such as"),  # type: ignore[dict-item]
        (lambda: estimator([1]), InvalidTypeError, r"must be a dict of signatures by name, but got \[1\]"),  # type: ignore[arg-type]
        (
            lambda: estimator({"a": te.export.PredictOutput("price"), "b": te.export.PredictOutput("price")}),
            InvalidValueError,
            "has a, b, of which none is the default; call one of them 'serving_default'",
        ),
        (lambda: te.export.PredictOutput({"a": torch.ones(1)}), InvalidTypeError, "are strings, but got Tensor"),  # type: ignore[dict-item]
        (lambda: te.export.PredictOutput(3), InvalidTypeError, "takes keys of predictions, .* but got 3"),  # type: ignore[arg-type]
        (lambda: te.export.ClassificationOutput(), InvalidValueError, "ClassificationOutput has no output"),
    ],
)
def test_bad_signatures_are_refused(make: Any, error: type[UserError], problem: str) -> None:
    with pytest.raises(error, match=problem):
        make()


def test_arguments_without_meaning_here_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torch_estimator")
    changed = with_outputs({"value": te.export.RegressionOutput("predictions")})
    receiver = te.serving_input.json([fc.numeric_column("x")])
    changed.export_saved_model(str(tmp_path), receiver, as_text=True, strip_default_attrs=True)
    assert "as_text has no effect" in caplog.text
    assert "strip_default_attrs has no effect" in caplog.text
