"""Moving averages of weights are those of TensorFlow; evaluations, predictions and exports use them."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import torch_estimator as te
from tests.compile.test_tracing import Traced
from tests.line_jobs import Line, assert_same_variables, points, squared_error, variables
from tests.optim import golden
from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.checkpoint.imported_slots import with_slots_for
from torch_estimator.checkpoint.tensorflow import IMPORTED, UNTRAINED
from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim import Adagrad, accumulate, clip_gradients_by_norm, moving_average
from torch_estimator.train.training import check_companions

X = {"x": np.array([[1.0, 2.0], [-1.0, 3.0]], np.float32)}
NAMES = ("x/weights", "bias_weights")
SLOT = "ExponentialMovingAverage"


def test_averages_are_those_of_tensorflow_also_of_rows_that_no_batch_mentions() -> None:
    golden.check("average", moving_average(Adagrad(lr=0.3), 0.6))
    golden.check("dynamic average", moving_average(Adagrad(lr=0.3), 0.4, dynamic_decay=True))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.3), partial(torch.optim.AdamW, lr=0.3)])
def test_a_traced_step_averages_as_the_step_does(optimizer: Any, dynamic: bool) -> None:
    factory = moving_average(optimizer, 0.6, dynamic_decay=dynamic)
    eager, other = golden.step_of(factory), golden.step_of(factory)
    first, *more = golden.batches()
    for step in (eager, other):
        step(first.features, None, None)
    traced = Traced(other, first)
    numbers = [number for group in eager.groups for number in group.numbers()]
    for batch in more:
        eager(batch.features, None, None)
        traced(batch, numbers)
    expected = golden.found(eager)
    for name, tensor in golden.found(other).items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda text, name=name: f"{name}: {text}")


def line(model_dir: object, optimizer: Any, **settings: Any) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=optimizer)

    return te.Estimator(model_fn, str(model_dir), te.RunConfig(random_seed=1, save_checkpoints_steps=1000, **settings))


def predicted(estimator: te.Estimator) -> np.ndarray:
    return np.stack([one["output"] for one in estimator.predict(lambda: X)])


def computed(estimator: te.Estimator, suffix: str) -> np.ndarray:
    weight, bias = (estimator.get_variable_value(f"linear.{name}{suffix}") for name in ("weight", "bias"))
    return np.asarray(X["x"] @ weight.T + bias)


def test_evaluations_predictions_and_exports_use_the_averages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    column = te.feature_column.numeric_column("x")
    features = {"x": np.array([1.0, -2.0], np.float32)}
    estimator = te.LinearRegressor([column], str(tmp_path), optimizer=moving_average(te.optim.Ftrl(lr=0.5), 0.9))
    estimator.train(lambda: (features, np.array([3.0, 1.0])), max_steps=20)

    def values(suffix: str) -> np.ndarray:
        weight, bias = (estimator.get_variable_value(f"linear/linear_model/{name}{suffix}") for name in NAMES)
        return np.asarray(features["x"] * weight[0] + bias)

    averaged = values(f"/{SLOT}")
    assert not np.allclose(averaged, values(""), rtol=0.01)
    with caplog.at_level(logging.INFO, logger="torch_estimator"):
        found = [one["predictions"][0] for one in estimator.predict(lambda: features)]
    np.testing.assert_allclose(found, averaged, rtol=1e-5)
    assert "Using the moving averages of 2 variables, not the variables themselves." in caplog.text
    assert estimator.evaluate(lambda: (features, averaged))["loss"] == pytest.approx(0.0, abs=1e-9)
    path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.like(features))
    exported = te.ExportedModel.load(path).predict({"x": features["x"].tolist()})
    np.testing.assert_allclose(exported["predictions"][:, 0], averaged, rtol=1e-5)


def test_an_evaluation_of_what_is_in_memory_uses_the_averages(tmp_path: Path) -> None:
    estimator = line(tmp_path, moving_average(te.optim.Adam(lr=0.05), 0.9))
    hook = te.InMemoryEvaluatorHook(estimator, points, name="live", every_n_iter=1000)
    estimator.train(points, max_steps=20, hooks=[hook])
    live = te.read_eval_metrics(estimator.eval_dir("live"))[20]["loss"]
    assert live == pytest.approx(estimator.evaluate(points)["loss"])


@pytest.mark.parametrize("optimizer", [te.optim.Adam(lr=0.05), partial(torch.optim.Adam, lr=0.05)])
def test_training_goes_on_bit_for_bit_and_from_the_weights_themselves(optimizer: Any, tmp_path: Path) -> None:
    factory = moving_average(optimizer, 0.9, dynamic_decay=True)
    whole = line(tmp_path / "whole", factory).train(points, max_steps=12)
    for steps in (1, 5, 12):
        cut = line(tmp_path / "cut", factory).train(points, max_steps=steps)
    assert_same_variables(cut, whole)
    plain = variables(line(tmp_path / "plain", optimizer).train(points, max_steps=12))
    averaged = variables(whole)
    for name, value in plain.items():
        np.testing.assert_array_equal(averaged[name], value, err_msg=name)


@pytest.mark.parametrize("optimizer", [te.optim.Adam(lr=0.05), partial(torch.optim.Adam, lr=0.05)])
def test_averaging_may_begin_and_end_between_two_runs(optimizer: Any, tmp_path: Path) -> None:
    before = line(tmp_path, optimizer).train(points, max_steps=3).get_variable_value("linear.bias")
    estimator = line(tmp_path, moving_average(optimizer, 0.75)).train(points, max_steps=4)
    after = estimator.get_variable_value("linear.bias")
    average = estimator.get_variable_value(f"linear.bias/{SLOT}")
    np.testing.assert_allclose(average, 0.75 * before + 0.25 * after, rtol=1e-6)
    line(tmp_path, moving_average(optimizer, 0.75, dynamic_decay=True)).train(points, max_steps=5)
    estimator = line(tmp_path, optimizer).train(points, max_steps=6)
    assert not [name for name in estimator.get_variable_names() if SLOT in name]
    np.testing.assert_allclose(predicted(estimator), computed(estimator, ""), rtol=1e-5)


def test_it_combines_with_schedules_clipping_and_accumulation(tmp_path: Path) -> None:
    def scheduled(named: Any) -> Any:
        return StepLR(te.optim.SGD(named, lr=0.1), 4, 0.1)

    around = moving_average(accumulate(clip_gradients_by_norm(scheduled, 1.0), 2), 0.5)
    within = accumulate(clip_gradients_by_norm(moving_average(scheduled, 0.5), 1.0), 2)
    first = line(tmp_path / "around", around).train(points, max_steps=9)
    assert_same_variables(first, line(tmp_path / "within", within).train(points, max_steps=9))
    # An average moves once in an update, not once in a batch.
    before = line(tmp_path / "short", around).train(points, max_steps=8)
    np.testing.assert_array_equal(
        first.get_variable_value(f"linear.bias/{SLOT}"), before.get_variable_value(f"linear.bias/{SLOT}")
    )


def test_averages_of_tensorflow_go_on() -> None:
    module = nn.Linear(1, 1, bias=False)
    optimizer: Any = moving_average(te.optim.SGD(lr=0.1), 0.9, dynamic_decay=True)(module.named_parameters())
    state = {IMPORTED: {UNTRAINED: []}}
    saved = {f"weight/{SLOT}": torch.tensor([[3.0]])}
    slots = with_slots_for(Checkpoint(path="a", step=7, variables={}, slots=saved, state=state), module, [optimizer])
    assert {name: value.item() for name, value in slots.slots.items()} == {
        f"weight/{SLOT}": 3.0,
        f"weight/{SLOT}_updates": 7.0,
    }
    without = Checkpoint(path="a", step=7, variables={}, state=state)
    assert not with_slots_for(without, module, [optimizer]).slots


def test_parameter_servers_refuse_averages() -> None:
    optimizer: Any = moving_average(te.optim.SGD(lr=0.1), 0.9)(Line().named_parameters())
    task = Task(type="chief", cluster={"chief": ("a:1",), "ps": ("b:1",)})
    with pytest.raises(InvalidValueError, match="moving_average does not work with parameter servers"):
        check_companions([optimizer], task)


def test_mistakes_are_sentences() -> None:
    sgd = te.optim.SGD(lr=0.1)
    with pytest.raises(InvalidValueError, match="decay must be at least 0 and less than 1, but got 1"):
        moving_average(sgd, 1.0)
    with pytest.raises(InvalidTypeError, match="decay must be a number, but got 'much'"):
        moving_average(sgd, "much")  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="dynamic_decay must be True or False, but got 7"):
        moving_average(sgd, 0.9, dynamic_decay=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="must be given without parameters"):
        moving_average(te.optim.SGD(Line().parameters(), lr=0.1), 0.9)
    with pytest.raises(InvalidValueError, match="of GradientDescent are averaged already; call moving_average once"):
        moving_average(moving_average(sgd, 0.9), 0.9)(Line().named_parameters())
