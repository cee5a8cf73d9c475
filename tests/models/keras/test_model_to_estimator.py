"""Keras models as Estimators: training as in Keras, metrics, resuming, exports, errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.from_module.hand import BATCH, ROWS, data, input_fn, once
from tests.line_jobs import assert_same_variables, variables
from tests.models.keras.models import classifier, config, stateful, subclassed, two_ends, weights
from torch_estimator.errors import ExportError

# A warning that Keras itself causes with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X, Y = data()
IMAGES = np.random.default_rng(1).normal(size=(ROWS, 8, 8, 1)).astype(np.float32)
CLASSES = (np.abs(Y) * 2.99).astype(np.int64)
BOTH = {"a": X[:, :2], "b": (X[:, 2] > 0).astype(np.int64) * 2}
ENDS = {"size": Y, "kind": (Y > 0).astype(np.int64)}

MODELS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "stateful": (stateful, X, Y),
    "classifier": (classifier, IMAGES, CLASSES),
    "two ends": (two_ends, BOTH, ENDS),
    "subclassed": (subclassed, X, Y[:, None]),
}


def train_by_hand(model: Any, features: Any, labels: Any, steps: int = 12, **more: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for step in range(steps):
            start = step % (ROWS // BATCH) * BATCH
            chosen = {name: part(value, start) for name, value in more.items()}
            model.train_on_batch(part(features, start), part(labels, start), **chosen)


def part(value: Any, start: int) -> Any:
    if isinstance(value, dict):
        return {key: part(one, start) for key, one in value.items()}
    return value[start : start + BATCH]


def estimator(model: Any, model_dir: Path, **arguments: Any) -> te.Estimator:
    return te.model_to_estimator(model, model_dir=str(model_dir), config=config(), **arguments)


@pytest.mark.parametrize("kind", MODELS)
def test_it_trains_like_train_on_batch(tmp_path: Path, kind: str) -> None:
    make, features, labels = MODELS[kind]
    model = make()
    before = weights(model)
    ours = estimator(model, tmp_path).train(input_fn(features, labels), steps=100)
    for ours_before, given in zip(before, weights(model), strict=True):
        np.testing.assert_array_equal(ours_before, given)

    train_by_hand(model, features, labels, 100)
    trained = ours.trained_module()
    assert type(trained) is type(model)
    for name, got, expected in zip([v.path for v in model.weights], weights(trained), weights(model), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=name)

    metrics = ours.evaluate(once(features, labels, ROWS))
    expected_metrics = model.evaluate(features, labels, batch_size=ROWS, verbose=0, return_dict=True)
    assert set(expected_metrics) <= set(metrics)
    for name, value in expected_metrics.items():
        assert metrics[name] == pytest.approx(value, abs=1e-4), name


def test_it_trains_like_fit_without_shuffling(tmp_path: Path) -> None:
    # Keras' fit draws from torch's generator, so dropout without its own seed would differ.
    model = stateful(dropout=0.0)
    ours = estimator(model, tmp_path).train(once(X, Y), steps=12)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    for got, expected in zip(weights(ours.trained_module()), weights(model), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["stateful", "subclassed"])
def test_training_in_pieces_is_bit_for_bit_training_at_once(tmp_path: Path, kind: str) -> None:
    make, features, labels = MODELS[kind]
    whole = estimator(make(), tmp_path / "once").train(input_fn(features, labels), steps=20)
    pieces = estimator(make(), tmp_path / "pieces").train(input_fn(features, labels), steps=7)
    pieces.evaluate(once(features, labels))
    # As in another process, where Keras numbers layers and seeds differently.
    pieces = estimator(make(), tmp_path / "pieces").train(input_fn(features, labels), steps=13)
    assert_same_variables(whole, pieces)


def test_every_optimizer_of_keras_resumes_bit_for_bit(tmp_path: Path) -> None:
    for name in ("adam", "adamw", "nadam", "ftrl", "lion", "adafactor", "rmsprop", "adadelta", "adamax"):
        whole = estimator(stateful(optimizer=name), tmp_path / name / "once").train(input_fn(X, Y), steps=6)
        estimator(stateful(optimizer=name), tmp_path / name / "pieces").train(input_fn(X, Y), steps=2)
        pieces = estimator(stateful(optimizer=name), tmp_path / name / "pieces").train(input_fn(X, Y), steps=4)
        assert_same_variables(whole, pieces)


@pytest.mark.parametrize("name", ["lamb", "rate"])
def test_an_optimizer_that_keras_cannot_read_back_from_its_description(tmp_path: Path, name: str) -> None:
    def optimizer() -> Any:
        return keras.optimizers.Lamb(0.01) if name == "lamb" else keras.optimizers.SGD(lambda: 0.05)

    whole = estimator(stateful(optimizer=optimizer()), tmp_path / "once").train(input_fn(X, Y), steps=6)
    hand = stateful(optimizer=optimizer())
    train_by_hand(hand, X, Y, steps=6)
    for got, expected in zip(weights(whole.trained_module()), weights(hand), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    estimator(stateful(optimizer=optimizer()), tmp_path / "pieces").train(input_fn(X, Y), steps=2)
    pieces = estimator(stateful(optimizer=optimizer()), tmp_path / "pieces").train(input_fn(X, Y), steps=4)
    assert_same_variables(whole, pieces)


def test_labels_that_the_loss_refuses_are_one_sentence(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")], name="odds")
    model.compile(loss="binary_crossentropy")
    message = (
        r"^The Keras model 'odds' gives float32 \[8, 1\], which its loss cannot compare with labels float32 \[8, 3"
    )
    with pytest.raises(te.UserError, match=message) as raised:
        estimator(model, tmp_path).train(input_fn(X, np.stack([Y, Y, Y], 1)), steps=1)
    assert isinstance(raised.value.__cause__, ValueError)


def test_in_bfloat16_it_learns_about_the_same(tmp_path: Path) -> None:
    losses = [
        te.model_to_estimator(stateful(dropout=0.0), model_dir=str(tmp_path / str(precision)), config=settings)
        .train(input_fn(X, Y), steps=50)
        .evaluate(once(X, Y))["loss"]
        for precision, settings in (("full", config()), ("bf16", config().replace(mixed_precision="bf16")))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def test_a_checkpoint_holds_weights_seeds_and_the_optimizers_variables(tmp_path: Path) -> None:
    ours = estimator(stateful(), tmp_path).train(input_fn(X, Y), steps=3)
    values = variables(ours)
    assert {"dense/kernel", "batch_normalization/moving_mean", "seed_generator/seed_generator_state"} <= set(values)
    assert values["dense/kernel/iteration"] == 3
    assert np.abs(values["y/kernel/momentum"]).sum() > 0


def test_an_optimizer_that_has_taken_steps_continues(tmp_path: Path) -> None:
    model = stateful()
    train_by_hand(model, X, Y)
    ours = estimator(model, tmp_path).train(once(X, Y), steps=12)
    train_by_hand(model, X, Y)
    for got, expected in zip(weights(ours.trained_module()), weights(model), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_the_trained_model_continues_in_keras_from_the_optimizers_state(tmp_path: Path) -> None:
    hand = stateful(dropout=0.0, optimizer="adam")
    given = stateful(dropout=0.0, optimizer="adam")
    trained = estimator(given, tmp_path).train(input_fn(X, Y), steps=12).trained_module()
    train_by_hand(hand, X, Y)
    assert int(trained.optimizer.iterations) == 12
    assert int(given.optimizer.iterations) == 0
    for model in (hand, trained):
        train_by_hand(model, X, Y)
    for got, expected in zip(weights(trained), weights(hand), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_hooks_know_the_learning_rate_and_the_layers_by_their_names(tmp_path: Path) -> None:
    model, seen = stateful(), []
    hooks = [
        te.FinalOpsHook(lambda context: context.learning_rates),
        te.LoggingTensorHook(["y"], every_n_iter=1, formatter=lambda values: str(seen.append(values["y"]))),
    ]
    estimator(model, tmp_path).train(once(X, Y), steps=1, hooks=hooks)
    train_by_hand(model, X, Y, steps=1)
    assert hooks[0].final_ops_values == [pytest.approx(float(model.optimizer.learning_rate))]
    assert seen[0].shape == (BATCH, 1)


def test_sample_weights_weigh_the_loss_and_the_weighted_metrics(tmp_path: Path) -> None:
    model = stateful()
    given = np.linspace(0, 3, ROWS, dtype=np.float32)
    features = {"features": {"x": X}, "sample_weights": given}
    ours = estimator(model, tmp_path).train(input_fn(features, Y), steps=12)
    train_by_hand(model, X, Y, sample_weight=given)
    for got, expected in zip(weights(ours.trained_module()), weights(model), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    metrics = ours.evaluate(once(features, Y, ROWS))
    expected_metrics = model.evaluate(X, Y, sample_weight=given, batch_size=ROWS, verbose=0, return_dict=True)
    for name, value in expected_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4), name
    path = ours.export_saved_model(str(tmp_path / "e"), te.serving_input.like({"x": X}))
    assert te.ExportedModel.load(path).predict({"x": X})["y"].shape == (ROWS, 1)


@pytest.mark.parametrize("kind", ["classifier", "two ends"])
def test_compiled_steps_do_the_same_also_after_a_resume(
    tmp_path: Path, kind: str, compilations: Callable[[], list[int]]
) -> None:
    make, features, labels = MODELS[kind]
    trained = {}
    for compile in (True, False):
        settings = config(compile=compile)
        one = te.model_to_estimator(make(), model_dir=str(tmp_path / str(compile)), config=settings)
        trained[compile] = one.train(input_fn(features, labels), steps=20).train(input_fn(features, labels), steps=20)
    assert compilations() == [BATCH, BATCH]
    compiled, in_python = (variables(trained[compile]) for compile in (True, False))
    for name, expected in in_python.items():
        np.testing.assert_allclose(compiled[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
    # A compiled step of a Keras model is of no use to another process, so none is kept in the cache.
    assert not list(Path(os.environ["TORCH_ESTIMATOR_CACHE_DIR"]).rglob("step.so"))


@pytest.mark.runs_in_python
def test_a_layer_that_cannot_be_compiled_is_told_without_what_keras_puts_around_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    te.model_to_estimator(stateful(), model_dir=str(tmp_path), config=config(compile=True)).train(
        input_fn(X, Y), steps=3
    )
    (reason,) = [one for one in caplog.messages if "not compiled" in one]
    assert "because it turns a tensor into a Python number" in reason


@pytest.mark.parametrize("kind", MODELS)
def test_the_export_answers_like_predict(tmp_path: Path, kind: str) -> None:
    make, features, labels = MODELS[kind]
    ours = estimator(make(), tmp_path).train(input_fn(features, labels), steps=2)
    (predicted,) = ours.predict(once(features, None, ROWS), yield_single_examples=False)
    path = ours.export_saved_model(str(tmp_path / "e"), te.serving_input.like(features))
    answer = te.ExportedModel.load(path).predict(features if isinstance(features, dict) else {"features": features})
    assert list(answer) == list(predicted)
    for key, value in predicted.items():
        np.testing.assert_allclose(answer[key], value, rtol=0, atol=1e-5)


def test_a_layer_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    class Branch(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x if float(x.sum()) > 0 else -x

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.add(Branch(name="fork"))
    model.compile(loss="mse")
    ours = estimator(model, tmp_path)
    with pytest.raises(ExportError, match=r"`return x if float.*` in its module fork \(Branch\) fails with"):
        ours.export_saved_model(str(tmp_path / "e"), te.serving_input.like(X))


@pytest.mark.parametrize("features", [X, {"x": X}, (X,)], ids=["tensor", "dict", "tuple"])
def test_features_of_every_form(tmp_path: Path, features: Any) -> None:
    model = stateful()
    ours = estimator(model, tmp_path)
    results = ours.evaluate(once(features, Y, ROWS))
    assert results["loss"] == pytest.approx(model.evaluate(X, Y, batch_size=ROWS, verbose=0, return_dict=True)["loss"])
    predicted = np.stack([one["y"] for one in ours.predict(lambda: (features, None))])
    np.testing.assert_allclose(predicted, model.predict(X, verbose=0), atol=1e-6)


def test_metrics_may_be_renamed(tmp_path: Path) -> None:
    ours = estimator(stateful(), tmp_path, metric_names_map={"mae": "absolute"})
    assert {"absolute", "rmse", "mse"} <= set(ours.evaluate(once(X, Y)))


def test_a_file_is_loaded(tmp_path: Path) -> None:
    model = classifier()
    model.train_on_batch(IMAGES[:BATCH], CLASSES[:BATCH])
    model.save(tmp_path / "model.keras")
    ours = te.model_to_estimator(None, tmp_path / "model.keras", None, str(tmp_path / "job"), config())
    again = estimator(model, tmp_path / "other")
    data_fn = once(IMAGES, CLASSES)
    assert_same_variables(ours.train(data_fn, steps=3), again.train(data_fn, steps=3))


def test_a_file_with_code_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    path = str(trace)
    layers = [keras.Input((3,)), keras.layers.Lambda(lambda x: (open(path, "w").close(), x)[1]), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    trace.unlink()
    model.compile(optimizer="sgd", loss="mse")
    with warnings.catch_warnings(action="ignore"):
        model.save(tmp_path / "model.keras")
    with pytest.raises(te.UserError, match=r"cannot be loaded as a Keras model \(.*code in the file is not run"):
        te.model_to_estimator(keras_model_path=tmp_path / "model.keras")
    assert not trace.exists()


def own_step() -> Any:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(x)

        def train_step(self, data: Any) -> Any:
            return {}

    model = Own()
    model(X)
    model.compile(loss="mse")
    return model


def not_described() -> Any:
    class Own(keras.Model):
        def __init__(self, width: int = 1) -> None:
            super().__init__(name="own")
            self.out = keras.layers.Dense(width)

        def call(self, x: Any) -> Any:
            return self.out(x)

    model = Own(2)
    model(X)
    model.compile(loss="mse")
    return model


def not_compiled() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="plain")


def not_built() -> Any:
    model = keras.Sequential([keras.layers.Dense(1)], name="open")
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, r"^Give keras_model or keras_model_path, one of them\.$"),
        ({"keras_model": 3}, TypeError, r"^keras_model must be a keras.Model, but got 3\.$"),
        ({"keras_model": not_compiled}, ValueError, "^The Keras model 'plain' is not compiled; call its compile"),
        (
            {"keras_model": not_built},
            ValueError,
            "^The Keras model 'open' has no weights yet; give it a keras.Input or",
        ),
        ({"keras_model": own_step}, ValueError, "has a train_step of its own, which an Estimator does not call"),
        ({"keras_model": not_described}, TypeError, r"^The Keras model 'own' cannot be copied, .* get_config\(\)"),
        (
            {"keras_model_path": "model.h5"},
            ValueError,
            "^keras_model_path must name a .keras file, as model.save write",
        ),
        ({"keras_model_path": "/no/model.keras"}, ValueError, "^/no/model.keras cannot be read: No such file"),
    ],
)
def test_invalid_arguments_are_one_sentence(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {key: value() if callable(value) else value for key, value in arguments.items()}
    with pytest.raises(error, match=message) as raised:
        te.model_to_estimator(**given)
    assert isinstance(raised.value, te.UserError)


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    ours = estimator(two_ends(), tmp_path)
    with pytest.raises(te.UserError, match="takes an input 'b', which is not among the features"):
        ours.train(input_fn({"a": X[:, :2]}, ENDS), steps=1)


def test_a_keras_model_is_no_plain_module(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"is a Keras model; use te.model_to_estimator"):
        te.Estimator.from_module(stateful(), loss=np.mean, model_dir=str(tmp_path))


def test_another_backend_is_one_sentence() -> None:
    program = "import torch_estimator as te\ntry: te.model_to_estimator(3)\nexcept te.UserError as error: print(error)"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    # Keras' numpy backend needs scipy, which may not be installed.
    assert re.match(
        "model_to_estimator needs Keras( 3)? on the torch backend, but .*set KERAS_BACKEND=torch", run.stdout
    )
