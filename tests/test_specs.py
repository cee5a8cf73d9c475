"""Specs are checked when they are made; the message says the rule and the value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.line_jobs import Line, WritingExporter, points, squared_error
from torch_estimator.heads import RegressionHead


def test_train_spec_keeps_what_it_is_given() -> None:
    hook, listener = te.Hook(), te.CheckpointSaverListener()
    spec = te.TrainSpec(points, max_steps=5, hooks=[hook], saving_listeners=iter([listener]))
    assert (spec.input_fn, spec.max_steps) == (points, 5)
    assert (spec.hooks, spec.saving_listeners) == ((hook,), (listener,))
    assert te.TrainSpec(points) == te.TrainSpec(points, None, None, None)


def test_eval_spec_has_tf_estimators_defaults() -> None:
    spec = te.EvalSpec(points)
    assert (spec.steps, spec.name, spec.hooks, spec.exporters) == (100, None, (), ())
    assert (spec.start_delay_secs, spec.throttle_secs) == (120, 600)


def test_specs_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        te.TrainSpec(points).max_steps = 3  # type: ignore[misc]


@pytest.mark.parametrize("spec", [te.TrainSpec, te.EvalSpec])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input_fn": "train.csv"}, TypeError, "input_fn must be callable, such as lambda: dataset, but got 'tr"),
        ({"hooks": ["h"]}, TypeError, "hooks must be instances of torch_estimator.Hook, but got 'h'."),
        ({"hooks": [te.Hook]}, TypeError, "hooks must be instances of torch_estimator.Hook, but got <class"),
        ({"hooks": te.StopAtStepHook(1)}, TypeError, "hooks must be a list, but got <torch_estimator.hooks.stop"),
    ],
)
def test_both_specs_check_input_fn_and_hooks(
    spec: Callable[..., Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        spec(**{"input_fn": points, **arguments})
    assert isinstance(raised.value, te.UserError)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_steps": 0}, ValueError, "max_steps must be positive, but got 0."),
        ({"max_steps": -1}, ValueError, "max_steps must be positive, but got -1."),
        ({"max_steps": "5"}, TypeError, "max_steps must be a number, but got '5'."),
        (
            {"saving_listeners": [te.Hook()]},
            TypeError,
            "saving_listeners must be instances of torch_estimator.CheckpointSaverListener, but got <",
        ),
    ],
)
def test_train_spec_checks(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        te.TrainSpec(points, **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be positive, but got 0."),
        ({"steps": -3}, ValueError, "steps must be positive, but got -3."),
        ({"name": 3}, TypeError, "name of an EvalSpec must be a string, but got 3."),
        ({"start_delay_secs": -1}, ValueError, "start_delay_secs must not be negative, but got -1."),
        ({"throttle_secs": -0.5}, ValueError, "throttle_secs must not be negative, but got -0.5."),
        ({"throttle_secs": None}, TypeError, "throttle_secs must be a number, but got None."),
        ({"exporters": 7}, TypeError, "exporters must be an exporter or an iterable of them, but got 7."),
        ({"exporters": ["best"]}, TypeError, "exporters must have a name and an export method, but got 'best'."),
        ({"exporters": WritingExporter("")}, ValueError, "An exporter's name must be a non-empty string, but got ''"),
        ({"exporters": WritingExporter(None)}, ValueError, "An exporter's name must be a non-empty .* but got None"),
        ({"exporters": WritingExporter(5)}, ValueError, "An exporter's name must be a non-empty string, but got 5"),
        (
            {"exporters": [WritingExporter("a"), WritingExporter("b"), WritingExporter("a")]},
            ValueError,
            "Exporters must have distinct names, but two are called 'a'",
        ),
    ],
)
def test_eval_spec_checks(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        te.EvalSpec(points, **arguments)


@pytest.mark.parametrize("wrap", [list, tuple, iter, lambda exporters: (e for e in exporters)])
def test_exporters_may_be_any_iterable_a_generator_too(wrap: Callable[[Any], Any]) -> None:
    exporters = [WritingExporter("a"), WritingExporter("b")]
    assert te.EvalSpec(points, exporters=wrap(exporters)).exporters == tuple(exporters)


def test_a_single_exporter_needs_no_list() -> None:
    exporter = WritingExporter()
    assert te.EvalSpec(points, exporters=exporter).all_exporters == (exporter,)


def spec(mode: str, **arguments: Any) -> te.EstimatorSpec:
    return te.EstimatorSpec(**{"mode": mode, "module": Line(), **arguments})


SGD = partial(torch.optim.SGD, lr=0.1)


def test_a_loss_may_hold_the_module_and_frozen_parameters() -> None:
    class Held(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module
            self.frozen = nn.Linear(1, 1).requires_grad_(False)

    module = nn.Linear(1, 1)
    spec("train", module=module, loss=Held(module), optimizer=SGD)


def test_estimator_spec_asks_for_no_more_than_the_mode_needs() -> None:
    spec("infer")
    spec("eval", loss=squared_error)
    spec(te.ModeKeys.TRAIN, loss=squared_error, optimizer=SGD)
    spec("train", head=RegressionHead(), optimizer=SGD)


@pytest.mark.parametrize(
    ("mode", "arguments", "error", "message"),
    [
        ("predict", {}, ValueError, "mode must be one of .'train', 'eval', 'infer'., but got 'predict'."),
        ("eval", {}, ValueError, "An EstimatorSpec for mode eval needs a head or a loss."),
        ("train", {"optimizer": SGD}, ValueError, "An EstimatorSpec for mode train needs a head or a loss."),
        ("train", {"loss": squared_error}, ValueError, "An EstimatorSpec for training needs an optimizer."),
        (
            "eval",
            {"head": RegressionHead(), "loss": squared_error},
            ValueError,
            "An EstimatorSpec takes a head, or loss, predictions and metrics, not both.",
        ),
        ("infer", {"module": len}, TypeError, "module of an EstimatorSpec must be a torch.nn.Module, but got <built"),
        (
            "train",
            {"loss": nn.PReLU(), "optimizer": SGD},
            ValueError,
            "The loss PReLU has parameters, which would not be trained or saved; compute with them in the module",
        ),
        (
            "train",
            {"train_op": None},
            TypeError,
            "EstimatorSpec has no argument train_op: give optimizer, a function of",
        ),
        ("eval", {"eval_metric_ops": {}}, TypeError, "EstimatorSpec has no argument eval_metric_ops: give metrics, "),
        ("eval", {"loss": 0.5}, TypeError, "loss of an EstimatorSpec must be a function, but got 0.5."),
        (
            "train",
            {"loss": squared_error, "optimizer": torch.optim.SGD([torch.zeros(1)])},
            TypeError,
            r"An optimizer must be given without parameters.* but got SGD with parameters; write functools\.partial",
        ),
        (
            "train",
            {"loss": squared_error, "optimizer": SGD, "training_chief_hooks": ["h"]},
            TypeError,
            "hooks must be instances of torch_estimator.Hook, but got 'h'.",
        ),
    ],
)
def test_estimator_spec_checks(mode: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        spec(mode, **arguments)


def test_estimator_spec_takes_its_mode_by_name() -> None:
    with pytest.raises(TypeError, match=r"^An EstimatorSpec takes its arguments by name: "):
        te.EstimatorSpec("train", module=Line())  # type: ignore[misc]
