"""Input functions get the arguments that they have parameters for, among them the input context."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from torch_estimator.data import Dataset
from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError
from torch_estimator.inputs.input_fn import call_input_fn

GIVEN = {"mode": "train", "params": {"a": 1}, "config": "config", "input_context": te.InputContext()}


class Input:
    def __call__(self, config: Any, mode: Any = None) -> Any:
        return config, mode

    def method(self, params: Any) -> Any:
        return params

    @classmethod
    def of_class(cls, mode: Any) -> Any:
        return mode


def of_all(mode: Any, params: Any, config: Any, input_context: Any, *, files: Any = "none") -> Any:
    return mode, params, config, input_context, files


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


ALL = ("train", {"a": 1}, "config", te.InputContext())


@pytest.mark.parametrize(
    ("input_fn", "expected"),
    [
        (lambda: 1, 1),
        (of_all, (*ALL, "none")),
        (lambda input_context=None: input_context, te.InputContext()),
        (lambda *, mode: mode, "train"),
        (lambda batch_size=3: batch_size, 3),
        (Input(), ("config", "train")),
        (Input().method, {"a": 1}),
        (Input.of_class, "train"),
        (functools.partial(of_all, files="some"), (*ALL, "some")),
        (functools.partial(of_all, mode="mine"), ("mine", *ALL[1:], "none")),
        (functools.partial(of_all, "first", params="second"), ("first", "second", *ALL[2:], "none")),
        (functools.partial(functools.partial(of_all, config="mine"), files="some"), (*ALL[:2], "mine", ALL[3], "some")),
        (lambda **kwargs: kwargs, {}),
        (lambda *args: args, ()),
        (lambda mode, **kwargs: (mode, kwargs), ("train", {})),
        (decorated(of_all), (*ALL, "none")),
        (dict, {}),
    ],
)
def test_a_function_gets_the_arguments_that_it_has_parameters_for(input_fn: Callable[..., Any], expected: Any) -> None:
    assert call_input_fn(input_fn, GIVEN) == expected


def test_a_function_that_needs_something_else_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="may take mode, params, config and input_context, but needs 'files'"):
        call_input_fn(lambda files: files, GIVEN)

    def by_position(mode: Any, /) -> Any:
        return mode

    with pytest.raises(InvalidValueError, match="but takes 'mode' by position only"):
        call_input_fn(by_position, GIVEN)


def test_an_estimator_gives_mode_and_context_to_every_call(tmp_path: Path) -> None:
    seen = []

    def input_fn(mode: str, params: dict[str, Any], config: te.RunConfig, input_context: te.InputContext) -> Dataset:
        seen.append((str(mode), params, config.model_dir, input_context))
        return (
            Dataset.from_arrays({"x": np.ones(4)}, np.ones(4))
            .shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
            .batch(input_context.get_per_replica_batch_size(2))
        )

    estimator = te.LinearRegressor([te.feature_column.numeric_column("x")], str(tmp_path))
    estimator.train(input_fn)
    estimator.evaluate(input_fn)
    list(estimator.predict(input_fn))
    te.train_and_evaluate(estimator, te.TrainSpec(input_fn, max_steps=4), te.EvalSpec(input_fn, throttle_secs=0))
    assert {mode for mode, *_ in seen} == {"train", "eval", "infer"}
    assert {context for *_, context in seen} == {te.InputContext()}
    assert {directory for *_, directory, _ in seen} == {str(tmp_path)}


def test_one_process_reads_everything() -> None:
    context = te.InputContext()
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)
    assert context.get_per_replica_batch_size(7) == 7


def test_a_global_batch_is_divided_among_the_replicas() -> None:
    context = te.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert context.get_per_replica_batch_size(64) == 16
    with pytest.raises(InvalidValueError, match="global_batch_size 66 is not divisible by num_replicas_in_sync 4"):
        context.get_per_replica_batch_size(66)
    with pytest.raises(InvalidTypeError, match=r"global_batch_size must be a whole number, but got 6\.0"):
        context.get_per_replica_batch_size(6.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), InvalidValueError, "num_input_pipelines must be at least 1, but got 0"),
        ((2, 2), InvalidValueError, "input_pipeline_id must be less than num_input_pipelines 2, but got 2"),
        ((2, -1), InvalidValueError, "input_pipeline_id must be at least 0, but got -1"),
        ((1, 0, 0), InvalidValueError, "num_replicas_in_sync must be at least 1, but got 0"),
        (("1",), InvalidTypeError, "num_input_pipelines must be a whole number, but got '1'"),
    ],
)
def test_other_numbers_are_refused(arguments: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        te.InputContext(*arguments)
