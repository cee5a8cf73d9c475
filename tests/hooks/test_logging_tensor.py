"""LoggingTensorHook logs the requested values."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.line_jobs import line, points
from torch_estimator import feature_column as fc


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "torch_estimator")
    return caplog


def lines(log: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [message for message in log.messages if message.startswith(start)]


def test_it_logs_the_first_step_and_every_nth_with_the_seconds_between(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    now = iter(range(0, 100, 5))
    hook = te.LoggingTensorHook(
        {"at": "global_step", "rate": "learning_rate"}, every_n_iter=2, clock=lambda: float(next(now))
    )
    line(tmp_path).train(points, steps=5, hooks=[hook])
    assert lines(log, "at") == [
        "at = 1, rate = 0.05",
        "at = 3, rate = 0.05 (5.000 sec)",
        "at = 5, rate = 0.05 (5.000 sec)",
    ]


def test_it_logs_by_seconds(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    line(tmp_path).train(points, steps=3, hooks=[te.LoggingTensorHook(["global_step"], every_n_secs=1e9)])
    assert lines(log, "global_step =") == ["global_step = 1"]


@pytest.mark.parametrize(("every_n_iter", "steps"), [(None, [4]), (3, [1, 4, 4]), (2, [1, 3, 4])])
def test_it_logs_at_the_end(
    tmp_path: Path, log: pytest.LogCaptureFixture, every_n_iter: int | None, steps: list[int]
) -> None:
    hook = te.LoggingTensorHook(
        ["global_step"], every_n_iter=every_n_iter, at_end=True, formatter=lambda values: f"at {values['global_step']}"
    )
    line(tmp_path).train(points, steps=4, hooks=[hook])
    assert lines(log, "at ") == [f"at {step}" for step in steps]


def test_variables_outputs_of_modules_and_functions_are_logged(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def keep(values: dict[str, Any]) -> str:
        seen.append(values)
        return ""

    def twice(context: te.RunContext) -> float:
        return 2 * context.loss

    hook = te.LoggingTensorHook(
        ["loss", twice, "linear.bias", "linear", lambda context: {"x": torch.ones(1, dtype=torch.bfloat16)}],
        every_n_iter=1,
        formatter=keep,
    )
    estimator = line(tmp_path).train(points, steps=2, hooks=[hook])
    first, last = seen
    assert last["twice"] == 2 * last["loss"]
    assert last["linear"].shape == (4, 1)
    labels = np.asarray([y for _, y in batches()[0:2]])
    np.testing.assert_allclose(((last["linear"] - labels[1]) ** 2).mean(), last["loss"], rtol=1e-5)
    assert not np.array_equal(first["linear"], last["linear"])
    np.testing.assert_array_equal(last["linear.bias"], estimator.get_variable_value("linear.bias"))
    assert first["linear.bias"] != last["linear.bias"]


def batches() -> list[tuple[Any, np.ndarray]]:
    x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    y = (x @ np.array([[2.0], [-1.0]]) + 0.5).astype(np.float32)
    return [(x[start : start + 4], y[start : start + 4]) for start in range(0, 400, 4)]


def test_names_of_canned_models_are_those_of_checkpoints_and_of_modules(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    hook = te.LoggingTensorHook(
        ["dnn/logits/bias", "dnn.hiddenlayer_0", "linear/linear_model/x/weights", "x", "learning_rate"],
        every_n_iter=1,
        formatter=lambda values: str(seen.append(values)),
    )
    x = fc.numeric_column("x")
    estimator = te.DNNLinearCombinedRegressor(
        str(tmp_path), linear_feature_columns=[x], dnn_feature_columns=[x], dnn_hidden_units=[3]
    )
    data = te.data.Dataset.from_arrays({"x": np.ones(4, np.float32)}, np.ones(4, np.float32)).batch(4).repeat()
    estimator.train(lambda: data, steps=1, hooks=[hook])
    assert {key: np.shape(value) for key, value in seen[0].items()} == {
        "dnn/logits/bias": (1,),
        "dnn.hiddenlayer_0": (4, 3),
        "linear/linear_model/x/weights": (1, 1),
        "x": (4, 1),
        "learning_rate": (2,),
    }


def test_it_logs_while_evaluating_and_predicting(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    estimator = line(tmp_path).train(points, steps=3)

    def rows(context: te.RunContext) -> str:
        return str(context.mode)

    hook = te.LoggingTensorHook({"rows": rows, "at": "global_step"}, every_n_iter=50, clock=lambda: 0.0)
    estimator.evaluate(points, hooks=[hook])
    list(estimator.predict(points, hooks=[hook]))
    assert lines(log, "rows") == [
        "rows = eval, at = 3",
        "rows = eval, at = 3 (0.000 sec)",
        "rows = infer, at = 3",
        "rows = infer, at = 3 (0.000 sec)",
    ]


def test_the_output_of_a_module_is_logged_while_evaluating(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    hook = te.LoggingTensorHook(["linear"], every_n_iter=1, formatter=lambda values: str(seen.append(values)))
    estimator = line(tmp_path).train(points, steps=1)
    estimator.evaluate(points, steps=1, hooks=[hook])
    expected = [one["output"] for one in estimator.predict(lambda: points().take(1))]
    np.testing.assert_allclose(seen[0]["linear"], expected)


def test_no_forward_hooks_stay_in_the_module(tmp_path: Path) -> None:
    hook, modules = te.LoggingTensorHook(["linear"], every_n_iter=3), []

    class Keep(te.Hook):
        def begin(self, context: te.RunContext) -> None:
            modules.append(context.module)

    # The input ends after before_step, so there is no after_step.
    line(tmp_path).train(lambda: points(rows=12), hooks=[hook, Keep()])
    assert [part._forward_hooks for part in modules[0].modules() if part._forward_hooks] == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tensors": ["loss"]}, ValueError, "LoggingTensorHook takes exactly one of every_n_iter and every_n_secs"),
        ({"tensors": ["loss"], "every_n_iter": 1, "every_n_secs": 1}, ValueError, "LoggingTensorHook takes exactly"),
        ({"tensors": ["loss"], "every_n_iter": 0}, ValueError, "every_n_iter of LoggingTensorHook must be positive"),
        ({"tensors": "loss", "every_n_iter": 1}, TypeError, "tensors must be a dict from tag to what to log, or a li"),
        ({"tensors": [torch.ones(1)], "every_n_iter": 1}, TypeError, "What is to be logged must be a name or a func"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        te.LoggingTensorHook(**arguments)


def test_an_unknown_name_is_one_sentence_with_known_names(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"^There is nothing called 'linear.wight' to log while the mode is train; .*"
        r"a variable \(linear.weight.*\) or a module \(linear\)\.$",
    ):
        estimator.train(points, steps=1, hooks=[te.LoggingTensorHook(["linear.wight"], every_n_iter=1)])
    with pytest.raises(ValueError, match="nothing called 'learning_rate' to log while the mode is eval"):
        estimator.evaluate(points, hooks=[te.LoggingTensorHook(["learning_rate"], every_n_iter=1)])
    with pytest.raises(ValueError, match="The output of the module 'linear' belongs to a step"):
        estimator.train(points, steps=1, hooks=[te.LoggingTensorHook(["linear"], at_end=True)])
