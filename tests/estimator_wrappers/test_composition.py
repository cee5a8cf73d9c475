"""Wrappers of wrapped Estimators, and of Estimators of every kind."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor

import torch_estimator as te
from tests.estimator_wrappers.models import COLUMNS, DEEP, Two, columns, predicted, regressor, rows, two, two_model_fn
from tests.line_jobs import assert_same_variables
from torch_estimator.export.exported_model import ExportedModel


def my_rmse(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"rmse": torch.sqrt(torch.mean((labels - predictions["predictions"]) ** 2))}


def my_mae(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
    metric = torchmetrics.MeanAbsoluteError()
    metric.update(predictions["predictions"], labels)
    return {"mae": metric}


def test_metrics_around_features_around_metrics(tmp_path: Path) -> None:
    estimator = regressor(tmp_path / "job")
    inner = te.forward_features(te.add_metrics(estimator, my_rmse), "key")
    outer = te.forward_layers(te.add_metrics(inner, my_mae), {"embedding": "word_embedding"})
    outer.train(rows, steps=2)
    results = outer.evaluate(rows)
    assert set(results) - set(estimator.evaluate(rows)) == {"rmse", "mae"}
    assert results["rmse"] > results["mae"] > 0
    assert list(predicted(outer)) == ["predictions", "embedding", "key"]
    assert list(predicted(inner)) == ["predictions", "key"]
    receiver = te.serving_input.raw_features(COLUMNS, {"key": 0})
    model = ExportedModel.load(outer.export_saved_model(str(tmp_path / "export"), receiver))
    assert list(model.signatures["predict"].outputs) == ["predictions", "embedding", "key"]


def test_training_a_wrapped_estimator_trains_the_same_job(tmp_path: Path) -> None:
    plain = regressor(tmp_path / "plain").train(rows, steps=5)
    job = regressor(tmp_path / "extended").train(rows, steps=2)
    extended = te.forward_layers(te.forward_features(te.add_metrics(job, my_rmse), "key"), {"e": "word_embedding"})
    assert extended.train(rows, steps=3) is extended
    assert_same_variables(plain, extended)
    assert job.evaluate(rows) == plain.evaluate(rows)


def test_params_config_and_warm_start_are_taken_over(tmp_path: Path) -> None:
    two(tmp_path / "first").train(rows, steps=3)
    seen: list[tuple[Any, Any]] = []

    def model_fn(mode: str, params: dict[str, Any], config: te.RunConfig) -> te.EstimatorSpec:
        seen.append((params, config.random_seed))
        return two_model_fn(mode)

    estimator = te.Estimator(
        model_fn,
        str(tmp_path / "second"),
        te.RunConfig(random_seed=7),
        params={"a": [1]},
        warm_start_from=str(tmp_path / "first"),
    )
    extended = te.forward_features(te.add_metrics(estimator, lambda: {"one": 1}), "key")
    assert extended.params == {"a": [1]}
    results = extended.evaluate(rows)
    assert results["loss"] == two(tmp_path / "first").evaluate(rows)["loss"]
    assert seen == [({"a": [1]}, 7)]


def test_a_model_fn_bound_by_partial_stays_bound(tmp_path: Path) -> None:
    def model_fn(mode: str, params: dict[str, Any]) -> te.EstimatorSpec:
        assert params == {"bound": True}
        return two_model_fn(mode)

    estimator = te.Estimator(functools.partial(model_fn, params={"bound": True}), str(tmp_path))
    assert te.add_metrics(estimator, lambda: {"one": 1}).train(rows, steps=1).evaluate(rows)["one"] == 1.0


def test_an_error_about_the_result_of_model_fn_passes_through_a_wrapper(tmp_path: Path) -> None:
    estimator = te.Estimator(lambda: 3, str(tmp_path))
    with pytest.raises(ValueError, match=r"^model_fn must return an EstimatorSpec, but returned 3\.$"):
        te.forward_features(estimator, "key").train(rows, steps=1)


def test_plain_functions_instead_of_a_head(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode,
            module=Two(),
            loss=lambda outputs, labels: ((outputs[:, 0] - labels) ** 2).mean(),
            predictions=lambda outputs: {"value": outputs[:, 0], "positive": outputs[:, 0] > 0},
            metrics={"bias": lambda labels, predictions: (predictions["value"] - labels).mean()},
            optimizer=lambda named: torch.optim.SGD([one for _, one in named], 0.1),
        )

    def metric_fn(labels: Tensor, predictions: Mapping[str, Tensor], features: Mapping[str, Any]) -> dict[str, Any]:
        error = predictions["value"] - labels
        return {"of_a": error[torch.from_numpy(features["word"] == "a")].mean(), "bias": -error.mean()}

    plain = te.Estimator(model_fn, str(tmp_path / "job")).train(rows, steps=3)
    extended = te.forward_features(te.add_metrics(plain, metric_fn), "key")
    results, before = extended.evaluate(rows), plain.evaluate(rows)
    assert results["bias"] == pytest.approx(-before["bias"], abs=1e-6)
    got = predicted(extended)
    labels = np.concatenate([labels for _, labels in rows()])
    expected = (got["value"] - labels)[columns()["word"] == "a"].mean()
    assert results["of_a"] == pytest.approx(expected, abs=1e-5)
    assert list(got) == ["value", "positive", "key"]


def test_a_module_that_is_the_same_in_every_mode_is_not_evaluated_in_place(tmp_path: Path) -> None:
    module = Two()

    def model_fn(mode: str) -> te.EstimatorSpec:
        spec = two_model_fn(mode)
        return te.EstimatorSpec(mode=mode, module=module, loss=spec.loss, optimizer=spec.optimizer)

    class Evaluating(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            assert context.module is module
            assert extended.evaluate(rows, checkpoint_path=f"{tmp_path}/job/model.ckpt-1")["global_step"] == 1
            assert module.training

    config = te.RunConfig(random_seed=1)
    estimator = te.Estimator(model_fn, str(tmp_path / "job"), config)
    extended = te.add_metrics(estimator, lambda: {"one": 1})
    start = {name: value.clone() for name, value in module.state_dict().items()}
    estimator.train(rows, steps=1).train(rows, hooks=[Evaluating()], steps=3)
    trained = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(start)
    te.Estimator(model_fn, str(tmp_path / "quiet"), config).train(rows, steps=1).train(rows, steps=3)
    for name, value in module.state_dict().items():
        assert torch.equal(value, trained[name]), name


def test_an_estimator_of_a_module_with_columns_in_front(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(7, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    plain = te.Estimator.from_module(
        net, head=te.heads.RegressionHead(), optimizer="SGD", columns=DEEP, model_dir=str(tmp_path / "job")
    )
    extended = te.forward_layers(te.add_metrics(plain, my_rmse), {"embedding": "word_embedding", "code": "1"})
    extended = te.forward_layers(te.forward_features(extended, "key"), {"input": "input_layer"}, signature="inputs")
    # The module's own weights can be used before any training, as with the Estimator itself.
    assert predicted(extended)["code"].shape == (len(columns()["x"]), 4)
    results = extended.train(rows, steps=3).evaluate(rows)
    assert results["rmse"] ** 2 == pytest.approx(results["average_loss"], rel=1e-5)
    expected = predicted(extended)
    np.testing.assert_array_equal(expected["embedding"], expected["input"][:, :3])
    receiver = te.serving_input.raw_features(COLUMNS, {"key": 0})
    model = ExportedModel.load(extended.export_saved_model(str(tmp_path / "export"), receiver))
    raw = {key: columns()[key] for key in ("x", "word", "key")}
    assert list(model.signatures["predict"].outputs) == ["predictions", "embedding", "code", "key"]
    got = {**model.predict(raw, "inputs"), **model.predict(raw)}
    assert got["key"].ravel().tolist() == columns()["key"].tolist()
    for key in ("predictions", "embedding", "code", "input"):
        np.testing.assert_allclose(got[key], expected[key], rtol=0, atol=1e-5, err_msg=key)


def test_an_estimator_of_a_module_of_plain_tensors(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    features, labels = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32), np.ones((20, 1), np.float32)

    def data() -> te.data.Dataset:
        return te.data.Dataset.from_arrays(features, labels).batch(6)

    def metric_fn(features: Tensor, labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"seen": features.sum(), "mae": (predictions["output"] - labels).abs().mean()}

    plain = te.Estimator.from_module(net, loss=torch.nn.MSELoss(), optimizer="SGD", model_dir=str(tmp_path / "job"))
    extended = te.forward_layers(te.add_metrics(plain, metric_fn), {"code": "0"}).train(data, steps=2)
    results = extended.evaluate(data)
    assert results["seen"] == pytest.approx(features.sum(), rel=1e-5)
    (batch,) = extended.predict(lambda: data().batch(20), yield_single_examples=False)
    assert results["mae"] == pytest.approx(np.abs(batch["output"] - labels).mean(), rel=1e-5)
    model = ExportedModel.load(extended.export_saved_model(str(tmp_path / "e"), te.serving_input.like(features)))
    (name,) = model.signatures["predict"].inputs
    np.testing.assert_allclose(model.predict({name: features})["code"], batch["code"], rtol=0, atol=1e-5)


def test_an_estimator_with_several_heads(tmp_path: Path) -> None:
    heads = te.heads.MultiHead([te.heads.RegressionHead(name="r"), te.heads.BinaryClassHead(name="b")])
    raw = columns()

    def data() -> te.data.Dataset:
        return te.data.Dataset.from_arrays(raw, {"r": raw["x"], "b": (raw["x"] > 0).astype(np.int64)}).batch(10)

    def metric_fn(labels: Mapping[str, Tensor], predictions: Mapping[Any, Tensor]) -> dict[str, Tensor]:
        return {"mine": (predictions["b", "class_ids"] == labels["b"]).double().mean()}

    plain = te.DNNEstimator(heads, [6, 4], DEEP, model_dir=str(tmp_path / "job")).train(data, steps=3)
    extended = te.forward_layers(te.forward_features(te.add_metrics(plain, metric_fn), "key"), {"e": "word_embedding"})
    results = extended.evaluate(data)
    assert results["mine"] == pytest.approx(results["accuracy/b"])
    expected = list(extended.predict(data))
    assert [example["key"] for example in expected] == raw["key"].tolist()
    receiver = te.serving_input.csv(["x", "word", "key"], COLUMNS, {"key": 0})
    model = ExportedModel.load(extended.export_saved_model(str(tmp_path / "export"), receiver))
    lines = [f"{x},{word},{key}" for x, word, key in zip(raw["x"], raw["word"], raw["key"], strict=True)]
    got = model.predict({"csv_row": lines}, "serving_default")
    assert got["key"].ravel().tolist() == raw["key"].tolist()
    np.testing.assert_array_equal(got["e"], [example["e"] for example in expected])
    wanted = [example["r", "predictions"] for example in expected]
    np.testing.assert_allclose(got["r/predictions"], wanted, rtol=0, atol=1e-5)
