"""te.metrics: TensorFlow's numbers, the same for any batches, in evaluations of models of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.metrics import MetricFunction

GOLDEN = json.loads(Path(__file__).with_name("tensorflow_metrics.json").read_text())


def column(number: int) -> torch.Tensor:
    values = np.array(GOLDEN["columns"][number])
    return torch.from_numpy(values.astype(np.float32) if values.dtype.kind == "f" else values)


def batches_of(case: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    return [{key: column(number) for key, number in batch.items()} for batch in case["batches"]]


def name_of(case: dict[str, Any]) -> str:
    weighted = ["weighted"] if "weights" in case["batches"][0] else []
    return "-".join([case["name"], *map(str, case["settings"].values()), *weighted])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name_of)
def test_metrics_have_tensorflows_values(case: dict[str, Any]) -> None:
    function = getattr(te.metrics, case["name"])
    first, *others = batches_of(case)
    metric = function(**first, **case["settings"])
    for batch in others:
        metric.merge_state(function(**batch, **case["settings"]))
    assert metric.compute() == pytest.approx(case["value"], rel=2e-6)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name_of)
def test_batches_do_not_matter(case: dict[str, Any]) -> None:
    batches = batches_of(case)
    function, settings = getattr(te.metrics, case["name"]), case["settings"]
    whole = function(**{key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}, **settings)
    metric = function(**batches[0], **settings)
    for batch in batches[1:]:
        metric.update(**batch)
    assert metric.compute() == pytest.approx(whole.compute(), rel=1e-12)
    metric.reset()
    assert metric.compute() == 0.0
    metric.update(**batches[1])
    assert metric.compute() == function(**batches[1], **settings).compute()


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_correlations_are_numpys_whatever_the_batches_and_means(shift: float) -> None:
    draw = np.random.default_rng(1)
    one = draw.normal(size=200) + shift
    other = 0.5 * one + draw.normal(size=200)
    metric = te.metrics.pearson_correlation(one[:10], other[:10])
    for start in range(10, 200, 19):
        metric.update(one[start : start + 19], other[start : start + 19])
    assert metric.compute() == pytest.approx(np.corrcoef(one, other)[0, 1], rel=1e-8)
    weights = draw.integers(0, 3, 200)
    repeated = np.corrcoef(one.repeat(weights), other.repeat(weights))[0, 1]
    assert te.metrics.pearson_correlation(one, other, weights).compute() == pytest.approx(repeated, rel=1e-8)
    assert np.isnan(te.metrics.pearson_correlation([1.0, 1.0], [1.0, 2.0]).compute())


def test_f1_is_the_harmonic_mean() -> None:
    labels, predictions = torch.tensor([1, 1, 1, 0, 0]), torch.tensor([1, 1, 0, 1, 0])
    precision, recall = te.metrics.precision(labels, predictions), te.metrics.recall(labels, predictions)
    expected = 2 / (1 / precision.compute() + 1 / recall.compute())
    assert te.metrics.f1_score(labels, predictions).compute() == pytest.approx(expected)
    assert te.metrics.f1_score(labels, torch.zeros(5)).compute() == 0.0


def test_strings_columns_and_padding() -> None:
    assert te.metrics.accuracy(np.array(["a", "b"], object), np.array([["a"], ["c"]], object)).compute() == 0.5
    assert te.metrics.mean(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([1.0, 3.0])).compute() == 5.0
    scores = torch.tensor([[0.1, 0.5, 0.4], [0.3, 0.2, 0.5]])
    assert te.metrics.recall_at_k(torch.tensor([[1, 1, -1], [0, 1, -1]]), scores, 1).compute() == pytest.approx(1 / 3)


def classifier(model_dir: Path, metrics: dict[str, Any]) -> te.Estimator:
    torch.manual_seed(0)

    def loss(outputs: Any, labels: Any, weights: Any) -> torch.Tensor:
        losses = nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        return (losses * weights).mean()

    return te.Estimator.from_module(
        Logits(),
        loss=loss,
        predictions=lambda outputs: {"probabilities": torch.sigmoid(outputs), "classes": outputs > 0},
        metrics=metrics,
        optimizer="Adam",
        weight_column="weight",
        model_dir=str(model_dir),
    )


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(features["x"])


def metrics_of_classifier() -> dict[str, Any]:
    return {
        "accuracy": lambda labels, predictions, weights: te.metrics.accuracy(labels, predictions["classes"], weights),
        "auc": lambda labels, predictions: te.metrics.auc(labels, predictions["probabilities"]),
        "mean_age": lambda labels, predictions, features: te.metrics.mean(features["x"][:, 0]),
    }


def test_evaluations_report_them_the_same_for_all_batches(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(size=(60, 2)).astype(np.float32)
    labels = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    data = te.data.Dataset.from_arrays({"x": x, "weight": draw.integers(1, 4, 60)}, labels)
    estimator = classifier(tmp_path, metrics_of_classifier()).train(lambda: data.batch(20), steps=3)
    whole, parts = (estimator.evaluate(lambda size=size: data.batch(size)) for size in (60, 7))
    assert whole["mean_age"] == pytest.approx(x[:, 0].mean(), rel=1e-5)
    assert 0 < whole["accuracy"] < 1
    for name in ("accuracy", "auc", "mean_age"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-6)


def test_a_function_may_stand_alone_and_in_add_metrics(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(30, 1)).astype(np.float32)
    data = te.data.Dataset.from_arrays(x, labels=(2 * x[:, 0]).astype(np.float32)).batch(7)
    torch.manual_seed(0)
    estimator = te.Estimator.from_module(
        nn.Linear(1, 1),
        loss=nn.MSELoss(),
        metrics={"rmse": te.metrics.root_mean_squared_error},
        optimizer="SGD",
        model_dir=str(tmp_path),
    ).train(lambda: data, steps=2)
    estimator = te.add_metrics(
        estimator,
        lambda labels, predictions: {"mae": te.metrics.mean_absolute_error(labels, predictions["output"])},
    )
    result = estimator.evaluate(lambda: data)
    errors = np.array([one["output"][0] for one in estimator.predict(lambda: data)]) - 2 * x[:, 0]
    assert result["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert result["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)


ONES = torch.ones(3)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (InvalidValueError, "must be 0 or 1, but one is 0.7", lambda m: m.precision(ONES, torch.full((3,), 0.7))),
        (InvalidValueError, "from 0 to 1, but one is 3", lambda m: m.auc(ONES, 3 * ONES)),
        (
            InvalidValueError,
            r"labels have \[3\] and predictions \[3, 2\]",
            lambda m: m.accuracy(ONES, torch.ones(3, 2)),
        ),
        (InvalidValueError, "labels have", lambda m: m.accuracy(ONES, torch.ones(4))),
        (InvalidTypeError, "both be numbers, or both strings", lambda m: m.accuracy(["a"], [1])),
        (InvalidValueError, "weights must be one for each row", lambda m: m.accuracy(ONES, ONES, torch.ones(2))),
        (
            InvalidValueError,
            "takes one prediction, but the model gives a, b",
            lambda m: m.recall(ONES, {"a": 1, "b": 2}),
        ),
        (InvalidValueError, "num_thresholds must be 200", lambda m: m.auc(ONES, ONES, num_thresholds=50)),
        (InvalidValueError, 'curve must be "ROC" or "PR"', lambda m: m.auc(ONES, ONES, curve="LIFT")),
        (InvalidValueError, "at least k = 4 classes", lambda m: m.recall_at_k(ONES.long(), torch.ones(3, 3), 4)),
        (InvalidValueError, r"integers \[N\]", lambda m: m.recall_at_k(ONES, torch.ones(3, 3), 1)),
        (InvalidValueError, "from 0 to 1, but one is 5", lambda m: m.mean_per_class_accuracy([5], [0], num_classes=2)),
        (InvalidTypeError, "values of a metric must be numbers", lambda m: m.mean("a")),
    ],
)
def test_mistakes_are_sentences(error: type[Exception], words: str, call: Any) -> None:
    with pytest.raises(error, match=words):
        call(te.metrics)


def test_a_key_error_in_a_metric_function_names_the_keys_there_are() -> None:
    def spent(predictions: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"spent": predictions["spent"].mean()}

    metric = MetricFunction(function=spent, arguments=("predictions",))
    with pytest.raises(KeyError) as caught:
        metric({"predictions": {("spent", "predictions"): torch.zeros(2)}})
    assert caught.value.__notes__ == ["In the metric function spent, predictions has ('spent', 'predictions')."]
