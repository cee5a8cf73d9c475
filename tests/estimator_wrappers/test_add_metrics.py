"""add_metrics: exact over the whole evaluation, for any batch size."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor

import torch_estimator as te
from tests.estimator_wrappers.models import COLUMNS, FIRST_KEY, ROWS, WORDS, columns, predicted, regressor, rows, two
from torch_estimator.summary.scalar_reader import read_scalars


def my_rmse(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"rmse": torch.sqrt(torch.mean((labels - predictions["predictions"]) ** 2))}


@pytest.fixture
def trained(tmp_path: Path) -> te.Estimator:
    return regressor(tmp_path).train(rows, steps=5)


def true_rmse(estimator: te.Estimator) -> float:
    labels = next(iter(rows(batch=ROWS)))[1]
    return float(np.sqrt(np.mean((labels - predicted(estimator)["predictions"][:, 0].astype(np.float64)) ** 2)))


def test_a_root_mean_square_is_that_of_all_rows_and_no_mean_of_batches(trained: te.Estimator) -> None:
    extended = te.add_metrics(trained, my_rmse)
    results = extended.evaluate(rows)
    assert results["rmse"] == pytest.approx(true_rmse(trained), rel=1e-6)
    assert results["rmse"] ** 2 == pytest.approx(results["average_loss"], rel=1e-6)
    batchwise = [extended.evaluate(lambda at=at: rows().skip(at).take(1))["rmse"] for at in range(11)]
    assert abs(np.mean(batchwise) - results["rmse"]) > 1e-3


@pytest.mark.parametrize("batch", [1, 7, ROWS])
def test_the_batches_do_not_matter(trained: te.Estimator, batch: int) -> None:
    extended = te.add_metrics(trained, my_rmse)
    assert extended.evaluate(lambda: rows(batch=batch))["rmse"] == pytest.approx(true_rmse(trained), rel=1e-6)


def test_the_wrapped_estimator_does_not_change(trained: te.Estimator) -> None:
    extended = te.add_metrics(trained, my_rmse)
    assert type(extended) is te.Estimator
    assert (extended.model_dir, extended.config, extended.params) == (trained.model_dir, trained.config, trained.params)
    assert set(extended.evaluate(rows)) - set(trained.evaluate(rows)) == {"rmse"}


def test_training_the_wrapped_estimator_continues_the_job(trained: te.Estimator) -> None:
    te.add_metrics(trained, my_rmse).train(rows, steps=2)
    assert trained.evaluate(rows)["global_step"] == 7


def test_every_argument_has_the_named_value(trained: te.Estimator) -> None:
    seen: dict[str, Any] = {}

    def metric_fn(config: Any, predictions: Any, features: Any, labels: Any) -> dict[str, float]:
        seen.update(config=config, labels=labels, features=dict(features), predictions=dict(predictions))
        return {"rows": len(features["x"]), "last_key": features["key"].max() - FIRST_KEY}

    results = te.add_metrics(trained, metric_fn).evaluate(rows)
    assert (results["rows"], results["last_key"]) == (ROWS, ROWS - 1)
    assert seen["config"] == trained.config
    assert (seen["labels"].dtype, seen["labels"].shape) == (torch.float32, (ROWS, 1))
    assert list(seen["predictions"]) == ["predictions"]
    raw = columns()
    assert sorted(seen["features"]) == sorted(raw)
    for key in ("x", "key"):
        np.testing.assert_array_equal(seen["features"][key].numpy(), raw[key])
    for key in ("word", "name"):
        assert seen["features"][key].dtype == object
        assert seen["features"][key].tolist() == raw[key].tolist()


def test_all_arguments_are_optional(trained: te.Estimator) -> None:
    assert te.add_metrics(trained, lambda: {"two": 2}).evaluate(rows)["two"] == 2.0


def test_bound_arguments_are_the_users(trained: te.Estimator) -> None:
    def scaled(labels: Tensor, factor: float) -> dict[str, Tensor]:
        return {"scaled": factor * labels.double().mean()}

    results = te.add_metrics(trained, functools.partial(scaled, factor=3.0)).evaluate(rows)
    assert results["scaled"] == pytest.approx(3 * results["label/mean"])


def test_predictions_include_what_a_head_decodes(tmp_path: Path) -> None:
    estimator = te.LinearClassifier(COLUMNS, str(tmp_path), n_classes=3, label_vocabulary=WORDS)

    def metric_fn(features: Any, predictions: Any, labels: Any) -> dict[str, float]:
        named = np.array(WORDS, object)[labels[:, 0].numpy()]
        return {
            "named_right": (named == features["word"]).mean(),
            "my_accuracy": (predictions["classes"][:, 0] == features["word"]).mean(),
        }

    def labelled() -> te.data.Dataset:
        return te.data.Dataset.from_arrays(columns(), columns()["word"]).batch(9)

    results = te.add_metrics(estimator.train(labelled, steps=3), metric_fn).evaluate(labelled)
    assert results["named_right"] == 1.0
    assert results["my_accuracy"] == pytest.approx(results["accuracy"])


def test_metrics_of_the_same_name_are_replaced(trained: te.Estimator) -> None:
    once = te.add_metrics(trained, lambda: {"average_loss": 7.0, "mine": 1.0})
    assert (
        te.add_metrics(once, lambda: {"mine": 2.0}).evaluate(rows).items() >= {"average_loss": 7.0, "mine": 2.0}.items()
    )


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_what_the_evaluation_adds_itself_cannot_be_replaced(trained: te.Estimator, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^A metric must not be called '{name}', which the evaluation adds itself.$"):
        te.add_metrics(trained, lambda: {name: 1.0}).evaluate(rows)


@pytest.mark.parametrize(
    ("metric_fn", "error", "message"),
    [
        (
            lambda labels, inputs: {},
            ValueError,
            "metric_fn may take features, labels, predictions, config, but takes 'in",
        ),
        ("rmse", TypeError, "metric_fn must be a function, but got 'rmse'."),
    ],
)
def test_a_function_of_something_else_is_refused(
    trained: te.Estimator, metric_fn: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"^add_metrics: {message}") as raised:
        te.add_metrics(trained, metric_fn)
    assert isinstance(raised.value, te.UserError)


def test_only_an_estimator_is_accepted() -> None:
    with pytest.raises(TypeError, match=r"^add_metrics: estimator must be an Estimator, but got 'census'\.$"):
        te.add_metrics("census", my_rmse)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (0.5, "The metric function metric_fn must return a dict of metrics by name, but returned 0.5."),
        ({"a": "high"}, "The metric 'a' must be one number, but is 'high'; give every number a name."),
        ({"a": torch.ones(2)}, r"The metric 'a' must be one number, but is a Tensor of shape \[2\]"),
        ({"a": np.ones((1, 2))}, r"The metric 'a' must be one number, but is a ndarray of shape \[1, 2\]"),
    ],
)
def test_a_result_that_is_no_metric_is_refused(trained: te.Estimator, returned: Any, message: str) -> None:
    def metric_fn() -> Any:
        return returned

    with pytest.raises(TypeError, match=rf"^{message}"):
        te.add_metrics(trained, metric_fn).evaluate(rows)


def test_torchmetrics_made_in_every_call_are_merged(trained: te.Estimator) -> None:
    rows_seen = []

    def metric_fn(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        rows_seen.append(len(labels))
        metric = torchmetrics.MeanSquaredError(squared=False)
        metric.update(predictions["predictions"], labels)
        return {"rmse": metric}

    results = te.add_metrics(trained, metric_fn).evaluate(rows)
    assert results["rmse"] == pytest.approx(true_rmse(trained), rel=1e-6)
    assert rows_seen == [10] * 10 + [3]


@pytest.mark.parametrize("early", ["compute", "forward"])
def test_torchmetrics_computed_early_are_merged_all_the_same(trained: te.Estimator, early: str) -> None:
    def metric_fn(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        metric = torchmetrics.MeanSquaredError(squared=False)
        if early == "forward":
            metric(predictions["predictions"], labels)
        else:
            metric.update(predictions["predictions"], labels)
            metric.compute()
        return {"rmse": metric}

    assert te.add_metrics(trained, metric_fn).evaluate(rows)["rmse"] == pytest.approx(true_rmse(trained), rel=1e-6)


def test_torchmetrics_that_cannot_be_merged_are_made_of_all_rows(trained: te.Estimator) -> None:
    def metric_fn(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        correlation = torchmetrics.PearsonCorrCoef()
        correlation.update(predictions["predictions"][:, 0], labels[:, 0])
        return {"correlation": correlation}

    results = te.add_metrics(trained, metric_fn).evaluate(rows)
    labels = next(iter(rows(batch=ROWS)))[1]
    expected = np.corrcoef(predicted(trained)["predictions"][:, 0], labels)[0, 1]
    assert results["correlation"] == pytest.approx(expected, rel=1e-4)


def test_a_collection_of_torchmetrics_is_accepted(trained: te.Estimator) -> None:
    def metric_fn(labels: Tensor, predictions: Mapping[str, Tensor]) -> Any:
        metrics = torchmetrics.MetricCollection(
            {"mae": torchmetrics.MeanAbsoluteError(), "mse": torchmetrics.MeanSquaredError()}
        )
        metrics.update(predictions["predictions"], labels)
        return metrics

    results = te.add_metrics(trained, metric_fn).evaluate(rows)
    assert results["mse"] == pytest.approx(results["average_loss"], rel=1e-6)
    assert 0 < results["mae"] < np.sqrt(results["mse"])


def test_a_metric_object_made_outside_is_refused(trained: te.Estimator) -> None:
    outside = torchmetrics.MeanSquaredError()

    def helper(labels: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
        outside.update(predictions["predictions"], labels)
        return outside.compute()

    def returns_it(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        outside.update(predictions["predictions"], labels)
        return {"mse": outside}

    def returns_its_value(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"mse": helper(labels, predictions)}

    class Own:
        def __init__(self) -> None:
            self.metric = torchmetrics.MeanSquaredError()

        def method(self, labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
            self.metric.update(predictions["predictions"], labels)
            return {"mse": self.metric.compute()}

    box = types.SimpleNamespace(metrics={"mse": outside})

    def takes_it_out_of_a_box(labels: Tensor, predictions: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"mse": box.metrics["mse"](predictions["predictions"], labels)}

    for metric_fn in (returns_it, returns_its_value, Own().method, takes_it_out_of_a_box):
        with pytest.raises(ValueError, match=r"which was made outside of it .*; make it inside of the function\.$"):
            te.add_metrics(trained, metric_fn).evaluate(lambda: rows(batch=ROWS))


def test_an_object_that_is_missing_in_some_batches_is_refused(trained: te.Estimator) -> None:
    @functools.cache
    def hidden() -> Any:
        return torchmetrics.SumMetric()

    def metric_fn(labels: Tensor) -> dict[str, Any]:
        hidden().update(labels)
        return {"sum": hidden()}

    with pytest.raises(ValueError, match=r"^The metric function metric_fn uses the metric object 'sum', which was"):
        te.add_metrics(trained, metric_fn).evaluate(rows)


def test_an_empty_evaluation_gives_zeros(trained: te.Estimator) -> None:
    extended = te.add_metrics(trained, my_rmse)
    assert extended.evaluate(lambda: rows().take(0))["loss"] == 0.0
    assert extended.evaluate(rows)["rmse"] > 0
    assert extended.evaluate(lambda: rows().take(0))["rmse"] == 0.0


def test_evaluating_again_gives_the_same_metrics(trained: te.Estimator) -> None:
    extended = te.add_metrics(trained, my_rmse)
    assert extended.evaluate(rows) == extended.evaluate(rows)


def test_steps_limit_the_rows_of_the_metrics(trained: te.Estimator) -> None:
    extended = te.add_metrics(trained, lambda labels: {"rows": len(labels)})
    assert extended.evaluate(rows, steps=3)["rows"] == 30


def test_features_of_a_model_without_columns(tmp_path: Path) -> None:
    def metric_fn(features: Any, labels: Tensor, predictions: Any) -> dict[str, float]:
        return {
            "last": features["name"][-1] == f"näme {ROWS - 1}",
            "shape": predictions["output"].numel(),
            "n": len(labels),
        }

    results = te.add_metrics(two(tmp_path).train(rows, steps=2), metric_fn).evaluate(rows)
    assert (results["last"], results["shape"], results["n"]) == (1.0, ROWS, ROWS)


def test_features_come_from_files_beside_the_models_columns(tmp_path: Path, trained: te.Estimator) -> None:
    raw = columns()
    lines = [f"{x},{word},{key},{2 * x}" for x, word, key in zip(raw["x"], raw["word"], raw["key"], strict=True)]
    (tmp_path / "rows.csv").write_text("x,word,key,y\n" + "\n".join(lines) + "\n")

    def data() -> te.data.Dataset:
        return te.data.Dataset.from_csv(tmp_path / "rows.csv", label="y").batch(16)

    def metric_fn(features: Any) -> dict[str, Any]:
        assert sorted(features) == ["key", "word", "x"]
        return {"exact": (features["key"].numpy() == raw["key"]).mean(), "a": (features["word"] == "a").mean()}

    def first_batch_differs(features: Any) -> dict[str, Any]:
        return (
            metric_fn(features)
            if len(features["key"]) == ROWS
            else {"exact": features["key"][0] * 0, "a": len(features["word"])}
        )

    results = te.add_metrics(trained, first_batch_differs).evaluate(data)
    assert (results["exact"], results["a"]) == (1.0, pytest.approx((raw["word"] == "a").mean()))


def test_arguments_not_read_for_the_first_batch_are_not_kept(trained: te.Estimator) -> None:
    def metric_fn(features: Any) -> dict[str, Any]:
        return {"x": features["x"].mean() if len(features["x"]) == 10 else features["key"].max()}

    with pytest.raises(ValueError, match=r"reads features\['key'\], but did not on the first batch"):
        te.add_metrics(trained, metric_fn).evaluate(rows)


def test_summaries_and_the_best_exporter_see_them(tmp_path: Path) -> None:
    compared: list[tuple[float, float]] = []

    def smaller_rmse(best_eval_result: Mapping[str, float], current_eval_result: Mapping[str, float]) -> bool:
        compared.append((best_eval_result["rmse"], current_eval_result["rmse"]))
        return current_eval_result["rmse"] < best_eval_result["rmse"]

    estimator = te.add_metrics(regressor(tmp_path), my_rmse)
    estimator = te.Estimator(estimator.job.builder.model_fn, config=estimator.config.replace(save_checkpoints_steps=2))
    best = te.BestExporter("best", te.serving_input.raw_features(COLUMNS), compare_fn=smaller_rmse)
    metrics, exports = te.train_and_evaluate(
        estimator,
        te.TrainSpec(lambda: rows().repeat(), max_steps=4),
        te.EvalSpec(rows, steps=None, throttle_secs=0, exporters=best),
    )
    curve = read_scalars(tmp_path / "eval")["rmse"].values.tolist()
    assert read_scalars(tmp_path / "eval")["rmse"].steps.tolist() == [2, 4]
    assert metrics["rmse"] == pytest.approx(curve[-1])
    assert compared == [(pytest.approx(curve[0]), pytest.approx(curve[1]))]
    assert (exports[0] is not None) == (curve[1] < curve[0])
