"""Numbers of the wrong type are refused by a hook's constructor; the error names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import torch_estimator as te
from torch_estimator.errors import InvalidTypeError


def estimator() -> te.Estimator:
    return te.Estimator.from_module(nn.Linear(1, 1), head=te.RegressionHead(), model_dir="unused")


def in_memory(**arguments: Any) -> te.Hook:
    return te.InMemoryEvaluatorHook(estimator(), lambda: None, **arguments)


def logging_loss(**arguments: Any) -> te.Hook:
    return te.LoggingTensorHook(["loss"], **arguments)


def early_stopping(**arguments: Any) -> te.Hook:
    return te.experimental.make_early_stopping_hook(estimator(), lambda: False, **arguments)


CASES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (te.StopAtStepHook, {"num_steps": "a"}, "num_steps of StopAtStepHook must be an integer, but got 'a'."),
    (te.StopAtStepHook, {"last_step": 2.5}, "last_step of StopAtStepHook must be an integer, but got 2.5."),
    (te.StepCounterHook, {"every_n_steps": "x"}, "every_n_steps of StepCounterHook must be an integer, but got 'x'."),
    (te.StepCounterHook, {"every_n_secs": "x"}, "every_n_secs of StepCounterHook must be a number, but got 'x'."),
    (logging_loss, {"every_n_iter": "10"}, "every_n_iter of LoggingTensorHook must be an integer, but got '10'."),
    (logging_loss, {"every_n_iter": True}, "every_n_iter of LoggingTensorHook must be an integer, but got True."),
    (in_memory, {"every_n_iter": 2.5}, "every_n_iter of InMemoryEvaluatorHook must be an integer, but got 2.5."),
    (te.SummarySaverHook, {"save_steps": []}, "save_steps of SummarySaverHook must be an integer, but got []."),
    (te.ProfilerHook, {"save_secs": "1"}, "save_secs of ProfilerHook must be a number, but got '1'."),
    (te.SecondOrStepTimer, {"every_steps": 1.5}, "every_steps of SecondOrStepTimer must be an integer, but got 1.5."),
    (early_stopping, {"run_every_steps": "a"}, "run_every_steps must be an integer, but got 'a'."),
    (early_stopping, {"run_every_secs": "a"}, "run_every_secs must be a number, but got 'a'."),
]


@pytest.mark.parametrize(("make", "arguments", "message"), CASES)
def test_a_value_that_is_not_a_number_is_refused_by_the_constructor(
    make: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTypeError) as error:
        make(**arguments)
    assert str(error.value) == message
