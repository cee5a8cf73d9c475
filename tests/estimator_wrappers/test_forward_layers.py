"""forward_layers: outputs of inner layers in predictions and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.estimator_wrappers.models import (
    COLUMNS,
    DEEP,
    FIRST_KEY,
    WORD,
    WORDS,
    columns,
    predicted,
    regressor,
    rows,
    two,
)
from torch_estimator import feature_column as fc
from torch_estimator.errors import ExportError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.feature_column.raw_feature import RawFeature

RECEIVER = te.serving_input.raw_features(COLUMNS)
INPUTS = {key: column for key, column in columns().items() if key in ("x", "word")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> te.Estimator:
    return regressor(tmp_path_factory.mktemp("job")).train(rows, steps=3)


def exported(estimator: te.Estimator, base: Path, receiver: Any = RECEIVER) -> ExportedModel:
    return ExportedModel.load(estimator.export_saved_model(str(base), receiver))


def test_an_embedding_is_its_part_of_the_network_input(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, {"embedding": "word_embedding"})
    name = "dnn/input_from_feature_columns/input_layer/word_embedding/embedding_weights"
    weights = trained.get_variable_value(name)
    expected = weights[[WORDS.index(word) for word in columns()["word"]]]
    np.testing.assert_array_equal(predicted(estimator)["embedding"], expected)
    np.testing.assert_array_equal(exported(estimator, tmp_path).predict(INPUTS)["embedding"], expected)


def test_a_hidden_layer_is_given_activated(trained: te.Estimator) -> None:
    got = predicted(te.forward_layers(trained, {"hidden": "dnn.hiddenlayer_0", "in": "dnn.input_from_feature_columns"}))
    kernel, bias = (trained.get_variable_value(f"dnn/hiddenlayer_0/{part}") for part in ("kernel", "bias"))
    np.testing.assert_allclose(got["hidden"], np.maximum(got["in"] @ kernel + bias, 0), rtol=1e-5, atol=1e-6)
    assert (got["hidden"] == 0).any()


LAYERS = {
    "numeric": "x",
    "indicator": "word_indicator",
    "embedding": "word_embedding",
    "input": "dnn.input_from_feature_columns.input_layer",
    "hidden_0": "dnn.hiddenlayer_0",
    "hidden_1": "dnn.hiddenlayer_1",
    "dnn_logits": "dnn.logits",
    "wide": "linear.linear_model",
    # Names that the exported graph uses internally.
    "add": "dnn",
    "linear": "linear",
    "gather": "dnn.input_from_feature_columns",
}


def test_every_layer_of_a_canned_model_is_exported_as_it_is_predicted(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, LAYERS)
    expected = predicted(estimator)
    got = exported(estimator, tmp_path).predict(INPUTS)
    assert list(got) == list(expected) == ["predictions", *LAYERS]
    for key, values in expected.items():
        assert got[key].shape == values.shape, key
        np.testing.assert_allclose(got[key], values, rtol=0, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(got["wide"] + got["dnn_logits"], got["predictions"], atol=1e-6)


@pytest.mark.parametrize("activation", [torch.tanh, torch.nn.PReLU(init=0.3)])
def test_batch_norm_and_other_activations(tmp_path: Path, activation: Any) -> None:
    estimator = te.DNNRegressor(
        [6, 4],
        DEEP,
        str(tmp_path / "job"),
        batch_norm=True,
        activation_fn=activation,
        dropout=0.5,
        config=te.RunConfig(random_seed=1),
    ).train(rows, steps=3)
    layers = {"hidden": "dnn.hiddenlayer_1", "norm": "dnn.batchnorm_1"}
    extended = te.forward_layers(estimator, layers)
    expected, got = predicted(extended), exported(extended, tmp_path).predict(INPUTS)
    for key in layers:
        np.testing.assert_allclose(got[key], expected[key], rtol=0, atol=1e-5)
    names = [f"dnn/{layer}" for layer in ("hiddenlayer_0/kernel", "hiddenlayer_1/bias", "batchnorm_1/running_mean")]
    assert set(names) <= set(estimator.get_variable_names())
    parametric = isinstance(activation, torch.nn.PReLU)
    assert ("dnn/activation_fn/weight" in estimator.get_variable_names()) == parametric


def test_a_separate_signature_for_layers(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, {"embedding": "word_embedding"}, signature="embeddings")
    estimator = te.forward_layers(estimator, {"hidden": "dnn.hiddenlayer_1"}, signature="embeddings")
    assert list(predicted(estimator)) == ["predictions", "embedding", "hidden"]
    model = exported(estimator, tmp_path)
    outputs = {name: list(signature.outputs) for name, signature in model.signatures.items()}
    assert outputs == {
        "serving_default": ["predictions"],
        "predict": ["predictions"],
        "embeddings": ["embedding", "hidden"],
    }
    expected = predicted(estimator)["hidden"]
    np.testing.assert_allclose(model.predict(INPUTS, "embeddings")["hidden"], expected, rtol=0, atol=1e-5)


def test_layers_in_both_signatures_with_a_key(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, {"embedding": "word_embedding"}, signature="apart")
    estimator = te.forward_features(te.forward_layers(estimator, {"hidden": "dnn.hiddenlayer_1"}), "key")
    model = exported(estimator, tmp_path, te.serving_input.raw_features(COLUMNS, {"key": 0}))
    assert list(model.signatures["predict"].outputs) == ["predictions", "hidden", "key"]
    assert list(model.signatures["apart"].outputs) == ["embedding", "key"]
    assert model.predict({**INPUTS, "key": columns()["key"]}, "apart")["key"][0].tolist() == [FIRST_KEY]


def test_rows_of_csv_keep_their_signatures(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, {"embedding": "word_embedding"})
    model = exported(estimator, tmp_path, te.serving_input.csv(["x", "word"], COLUMNS))
    outputs = {name: list(signature.outputs) for name, signature in model.signatures.items()}
    assert outputs == {
        "serving_default": ["outputs"],
        "regression": ["outputs"],
        "predict": ["predictions", "embedding"],
    }


def test_layers_of_any_module(tmp_path: Path) -> None:
    estimator = two(tmp_path / "job").train(rows, steps=2)
    extended = te.forward_layers(estimator, {"code": "encoder", "first": "encoder.0", "last": "out"})
    expected = predicted(extended)
    assert expected["code"].shape == (len(columns()["x"]), 5)
    np.testing.assert_allclose(np.tanh(expected["first"]), expected["code"], atol=1e-6)
    np.testing.assert_array_equal(expected["last"], expected["output"])
    receiver = te.serving_input.raw_features([RawFeature(key="x", dtype="float32")])
    got = exported(extended, tmp_path, receiver).predict({"x": columns()["x"]})
    assert list(got) == ["output", "code", "first", "last"]
    for key, values in expected.items():
        np.testing.assert_allclose(got[key], values, rtol=0, atol=1e-5, err_msg=key)


def test_a_layer_of_any_module_as_a_signature(tmp_path: Path) -> None:
    estimator = te.forward_layers(two(tmp_path / "job").train(rows, steps=1), {"code": "encoder"}, "codes")
    receiver = te.serving_input.raw_features([RawFeature(key="x", dtype="float32")])
    model = exported(estimator, tmp_path, receiver)
    assert list(model.predict({"x": [1.0]}, "codes")) == ["code"]
    assert list(model.predict({"x": [1.0]})) == ["output"]


def test_an_unknown_layer_is_reported_with_similar_names(trained: te.Estimator, tmp_path: Path) -> None:
    for layer, near in (
        ("dnn.hidenlayer_1", "dnn.hiddenlayer_1"),
        ("hiddenlayer_0", "dnn.hiddenlayer_0"),
        ("word_emb", "word_embedding"),
    ):
        with pytest.raises(
            ValueError, match=rf"^The model WideAndDeep has no layer '{layer}'; names near it are .*{near}"
        ):
            next(te.forward_layers(trained, {"a": layer}).predict(rows))
    with pytest.raises(ValueError, match=r"has no layer 'nothing'; names near it are "):
        te.forward_layers(two(tmp_path), {"a": "nothing"}).train(rows, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["activity"]


def test_a_layer_that_does_not_run_is_reported(tmp_path: Path) -> None:
    estimator = te.forward_layers(two(tmp_path).train(rows, steps=1), {"a": "idle"})
    with pytest.raises(ValueError, match=r"^The layer 'idle', to be given as 'a', was not run with the model.$"):
        next(estimator.predict(rows))


def test_a_layer_whose_output_is_not_a_tensor_is_reported(tmp_path: Path) -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch.nn.GRU(1, 2, batch_first=True)

        def forward(self, features: Any) -> torch.Tensor:
            result: torch.Tensor = self.gru(features["x"].reshape(-1, 1, 1))[0][:, -1, :1]
            return result

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode,
            module=Recurrent(),
            loss=lambda outputs, labels: outputs.mean(),
            optimizer=lambda named: torch.optim.SGD([one for _, one in named], 0.1),
        )

    estimator = te.Estimator(model_fn, str(tmp_path)).train(rows, steps=1)
    with pytest.raises(TypeError, match=r"^The layer 'gru', to be given as 'a', must give a tensor, but gave a tuple"):
        next(te.forward_layers(estimator, {"a": "gru"}).predict(rows))


def test_a_layer_that_is_not_in_the_graph_is_reported(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, {"a": "linear.linear_model._table"})
    assert predicted(estimator)["a"].shape[1:] == (1, 1)
    with pytest.raises(ExportError, match=r"^the layer 'linear.linear_model._table', to be given as 'a', has no place"):
        estimator.export_saved_model(str(tmp_path), RECEIVER)


@pytest.mark.parametrize("key", ["predictions"])
def test_a_key_that_is_a_prediction_is_refused(trained: te.Estimator, tmp_path: Path, key: str) -> None:
    estimator = te.forward_layers(trained, {key: "dnn.hiddenlayer_0"})
    message = f"^The layer '{key}' cannot be forwarded, because a prediction is called that"
    with pytest.raises(ValueError, match=message):
        next(estimator.predict(rows))
    with pytest.raises(te.UserError, match=message):
        estimator.export_saved_model(str(tmp_path), RECEIVER)


def test_a_key_given_twice_is_refused(trained: te.Estimator) -> None:
    estimator = te.forward_layers(te.forward_layers(trained, {"a": "dnn"}), {"a": "dnn.logits"}, signature="other")
    with pytest.raises(ValueError, match=r"^Two layers, 'dnn' and 'dnn.logits', are to be given as 'a'"):
        next(estimator.predict(rows))
    both = te.forward_features(te.forward_layers(trained, {"key": "dnn"}), "key")
    with pytest.raises(
        ValueError, match=r"^The feature 'key' cannot be forwarded, because a prediction is called that"
    ):
        next(both.predict(rows))


def test_a_signature_that_the_head_has_is_refused(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_layers(trained, {"a": "dnn"}, signature="serving_default")
    with pytest.raises(
        ExportError, match=r"^layers are to be given by the signature 'serving_default', but the head has"
    ):
        estimator.export_saved_model(str(tmp_path), RECEIVER)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["dnn"], TypeError, r"layers must be a dict from the outputs' keys to the layers' names, but got 'dnn'."),
        ([{"a": 1}], TypeError, "layers must be a dict from the outputs' keys to the layers' names, but got {'a': 1}."),
        ([{}], ValueError, "layers must not be empty."),
        ([{"a": "dnn"}, 3], TypeError, "signature must be a string, but got 3."),
        ([{"a": "dnn"}, ""], ValueError, "signature must not be empty; leave it out for 'predict'."),
    ],
)
def test_arguments_are_checked(trained: te.Estimator, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^forward_layers: {message}$"):
        te.forward_layers(trained, *arguments)
    with pytest.raises(TypeError, match=r"^forward_layers: estimator must be an Estimator"):
        te.forward_layers(None, {"a": "dnn"})  # type: ignore[arg-type]


def test_a_cross_with_several_slots_is_given_combined(tmp_path: Path) -> None:
    cross = fc.crossed_column(["word", "name"], 50)
    estimator = te.DNNRegressor(
        [3], [fc.embedding_column(cross, 4), fc.embedding_column(WORD, 4)], str(tmp_path / "job")
    )
    extended = te.forward_layers(estimator.train(rows, steps=2), {"cross": "name_X_word_embedding"})
    expected = predicted(extended)["cross"]
    receiver = te.serving_input.raw_features([cross, WORD])
    got = exported(extended, tmp_path, receiver).predict({key: columns()[key] for key in ("word", "name")})
    np.testing.assert_array_equal(got["cross"], expected)
    assert len(np.unique(expected, axis=0)) > 20
