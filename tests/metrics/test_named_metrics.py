"""Metrics of an EstimatorSpec over a whole evaluation: functions, metric objects and their classes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor

import torch_estimator as te
from tests.line_jobs import Line, points, squared_error
from torch_estimator.metrics.named import NamedMetrics

LABELS = torch.tensor([0.0, 1.0, 2.0, 10.0, -3.0])
OUTPUTS = torch.tensor([0.5, 0.5, 2.5, 7.0, -3.0])


def root_mean_square(labels: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
    return ((labels - predictions["output"]) ** 2).mean().sqrt()


def merged(labels: Tensor, predictions: Mapping[str, Tensor]) -> Any:
    metric = torchmetrics.MeanSquaredError(squared=False)
    metric.update(predictions["output"], labels)
    return metric


def over_batches(metrics: Mapping[str, Any], sizes: tuple[int, ...] = (2, 2, 1)) -> dict[str, float]:
    named = NamedMetrics(metrics)
    with torch.inference_mode():
        for labels, outputs in zip(LABELS.split(sizes), OUTPUTS.split(sizes), strict=True):
            named.update(labels, {"output": outputs})
    return named.compute()


@pytest.mark.parametrize(
    "metric",
    [
        root_mean_square,
        lambda labels, predictions: float(root_mean_square(labels, predictions)),
        lambda labels, predictions: root_mean_square(labels, predictions).numpy(),
        lambda *both: root_mean_square(*both),
        merged,
        torchmetrics.MeanSquaredError(squared=False),
        lambda: torchmetrics.MeanSquaredError(squared=False),
        functools.partial(torchmetrics.MeanSquaredError, squared=False),
    ],
)
@pytest.mark.parametrize("sizes", [(5,), (2, 2, 1), (1, 4)])
def test_a_root_mean_square_is_exact_however_it_is_given(metric: Any, sizes: tuple[int, ...]) -> None:
    expected = float(((LABELS - OUTPUTS) ** 2).mean().sqrt())
    assert over_batches({"rmse": metric}, sizes) == {"rmse": pytest.approx(expected, rel=1e-6)}


def test_a_class_is_instantiated() -> None:
    assert over_batches({"mse": torchmetrics.MeanSquaredError})["mse"] == pytest.approx(1.95)


def test_all_kinds_side_by_side_keep_their_order() -> None:
    metrics = {"z": torchmetrics.MeanSquaredError(), "a": root_mean_square, "m": merged}
    results = over_batches(metrics)
    assert list(results) == ["z", "a", "m"]
    assert results["a"] == pytest.approx(results["m"])
    assert results["a"] ** 2 == pytest.approx(results["z"])


def test_without_batches_they_are_zeros() -> None:
    assert NamedMetrics({"a": root_mean_square, "b": torchmetrics.MeanSquaredError()}).compute() == {"a": 0.0, "b": 0.0}


def test_an_object_starts_anew_in_every_evaluation_and_is_not_touched() -> None:
    metric = torchmetrics.MeanSquaredError()
    metric.update(torch.tensor([100.0]), torch.tensor([0.0]))
    first = over_batches({"mse": metric})
    assert first == over_batches({"mse": metric}) == {"mse": pytest.approx(1.95)}
    assert metric.compute() == 10_000


def test_batches_that_reuse_memory_are_copied() -> None:
    named = NamedMetrics({"first": lambda labels, predictions: labels[0]})
    memory = torch.zeros(2)
    for value in (1.0, 2.0, 3.0):
        memory.fill_(value)
        named.update(memory, {"output": memory})
    assert named.compute() == {"first": 1.0}


def test_labels_may_be_several() -> None:
    named = NamedMetrics({"difference": lambda labels, predictions: (labels["a"] - labels["b"]).sum()})
    for value in (1.0, 2.0):
        named.update(
            {"a": torch.full((2,), value), "b": torch.zeros(2), "c": torch.ones(2, 3)}, {"output": torch.ones(2)}
        )
    assert named.compute() == {"difference": 6.0}


def test_batches_of_different_shapes_cannot_be_put_together() -> None:
    named = NamedMetrics({"m": lambda labels, predictions: predictions["output"].sum()})
    for width in (2, 3):
        named.update(torch.ones(2), {"output": torch.ones(2, width)})
    message = r"^A metric function reads predictions\['output'\], whose batches have the shapes \[2, 2\] and \[2, 3\]"
    with pytest.raises(ValueError, match=message):
        named.compute()


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        (
            "auc",
            TypeError,
            "The metric 'm' must be a function of labels and predictions, or a torchmetrics object",
        ),
        (lambda: 3, TypeError, "The metric 'm' is a function of no arguments, so that it must make a metric object"),
        (lambda labels, predictions: "high", TypeError, "The metric 'm' must be one number, but is 'high'"),
    ],
)
def test_other_values_are_refused(metric: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        over_batches({"m": metric})


def test_an_object_needs_one_prediction() -> None:
    named = NamedMetrics({"m": torchmetrics.MeanSquaredError()})
    with pytest.raises(ValueError, match=r"^The metric 'm' is an object that takes one prediction, but .* a, b; "):
        named.update(LABELS, {"a": OUTPUTS, "b": OUTPUTS})


def test_an_object_made_outside_of_a_function_is_refused() -> None:
    outside = torchmetrics.MeanSquaredError()

    def metric(labels: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
        outside.update(predictions["output"], labels)
        result: Tensor = outside.compute()
        return result

    with pytest.raises(ValueError, match=r"^The metric function metric uses the metric object 'outside', which was"):
        over_batches({"m": metric})


def test_later_batches_must_give_the_same_metrics() -> None:
    calls: list[int] = []

    def metric_fn(labels: Tensor, predictions: Mapping[str, Tensor]) -> Any:
        calls.append(len(labels))
        return merged(labels, predictions) if len(calls) == 1 else 3.0

    with pytest.raises(TypeError, match=r"returned a metric object 'm' for the first batch, but 3.0 for a later one"):
        over_batches({"m": metric_fn})


class MeanState(torchmetrics.Metric):
    """Metric with a state that torchmetrics merges wrongly: as if the other object were empty."""

    full_state_update = False
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, values: Tensor) -> None:
        self.mean = values.mean()

    def compute(self) -> Tensor:
        return self.mean


def test_states_that_merge_wrongly_are_not_merged() -> None:
    def metric(labels: Tensor, predictions: Mapping[str, Tensor]) -> Any:
        made = MeanState()
        made.update(labels)
        return made

    assert over_batches({"mean": metric}) == {"mean": pytest.approx(float(LABELS.mean()))}


def test_an_evaluation_reports_the_metrics(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode,
            module=Line(),
            loss=squared_error,
            metrics={"rmse": root_mean_square, "mse": torchmetrics.MeanSquaredError(), "mean": merged},
            optimizer=lambda named: torch.optim.SGD([one for _, one in named], 0.05),
        )

    estimator = te.Estimator(model_fn, str(tmp_path)).train(points, steps=3)
    for results in (estimator.evaluate(lambda: points(rows=10)), estimator.evaluate(lambda: points(rows=10, batch=3))):
        assert results["rmse"] == pytest.approx(results["mean"], rel=1e-6)
        assert results["rmse"] ** 2 == pytest.approx(results["mse"], rel=1e-6)
