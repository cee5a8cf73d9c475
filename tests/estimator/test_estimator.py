"""The Estimator: its arguments, evaluate, predict, variables."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.line_jobs import (
    Line,
    assert_same_variables,
    checkpoint_steps,
    line,
    line_model_fn,
    points,
    squared_error,
    variables,
)
from torch_estimator.errors import CheckpointError
from torch_estimator.summary.event_reader import read_events
from torch_estimator.summary.scalar_reader import read_scalars


def test_model_fn_gets_those_of_mode_params_and_config_that_it_names(tmp_path: Path) -> None:
    seen: list[tuple[str, Any, Any]] = []

    def model_fn(mode: str, params: dict[str, Any], config: te.RunConfig, extra: int = 3) -> te.EstimatorSpec:
        seen.append((mode, params["width"], config.random_seed))
        return line_model_fn(mode)

    estimator = te.Estimator(model_fn, str(tmp_path), te.RunConfig(random_seed=5), params={"width": 2})
    estimator.train(points, steps=1)
    estimator.evaluate(points, steps=1)
    next(estimator.predict(points))
    assert seen == [("train", 2, 5), ("eval", 2, 5), ("infer", 2, 5)]


def test_what_a_partial_binds_is_not_given_again(tmp_path: Path) -> None:
    def model_fn(mode: str, params: dict[str, Any]) -> te.EstimatorSpec:
        assert params == {"bound": True}
        return line_model_fn(mode)

    def input_fn(mode: str, rows: int) -> te.data.Dataset:
        assert (mode, rows) == ("mine", 8)
        return points(rows)

    estimator = te.Estimator(partial(model_fn, params={"bound": True}), str(tmp_path))
    estimator.train(partial(input_fn, mode="mine", rows=8), steps=1)


def test_input_fn_gets_what_it_names(tmp_path: Path) -> None:
    seen = []

    def input_fn(params: dict[str, Any], mode: str, config: te.RunConfig) -> te.data.Dataset:
        seen.append((mode, params, config.model_dir))
        return points()

    def model_fn(mode: str, params: Any) -> te.EstimatorSpec:
        return line_model_fn(mode)

    te.Estimator(model_fn, str(tmp_path), params={"a": 1}).train(input_fn, steps=1)
    assert seen == [("train", {"a": 1}, str(tmp_path))]


def test_params_are_copied_in_and_out(tmp_path: Path) -> None:
    def model_fn(mode: str, params: dict[str, Any]) -> te.EstimatorSpec:
        params["units"].append(99)
        return line_model_fn(mode)

    params = {"units": [1, 2]}
    estimator = te.Estimator(model_fn, str(tmp_path), params=params)
    params["units"].append(3)
    estimator.params["units"].append(4)
    estimator.train(points, steps=1)
    assert estimator.params == {"units": [1, 2]}


@pytest.mark.parametrize(
    ("model_fn", "arguments", "error", "message"),
    [
        ("net", {}, TypeError, "model_fn must be callable, but got 'net'."),
        (lambda features, labels, mode: None, {}, ValueError, "model_fn may take mode, params, config, but takes 'fea"),
        (line_model_fn, {"params": {"a": 1}}, ValueError, "params are given, but model_fn does not take an argument"),
        (line_model_fn, {"params": {}}, ValueError, "params are given, but model_fn does not take an argument called"),
        (line_model_fn, {"config": {"model_dir": "x"}}, TypeError, "config must be a RunConfig, but got {'model_dir'"),
        (line_model_fn, {"model_dir": ""}, ValueError, "a path must not be empty"),
        (
            line_model_fn,
            {"model_dir": "a", "config": te.RunConfig(model_dir="b")},
            ValueError,
            "model_dir is 'a', but 'b' in config; make them the same or remove one of them.",
        ),
    ],
)
def test_constructor_checks(model_fn: Any, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        te.Estimator(model_fn, **arguments)
    assert isinstance(raised.value, te.UserError)


def test_any_signature_that_can_be_called_will_do(tmp_path: Path) -> None:
    def model_fn(mode: str, *args: Any, **kwargs: Any) -> te.EstimatorSpec:
        assert not args
        assert not kwargs
        return line_model_fn(mode)

    te.Estimator(model_fn, str(tmp_path)).train(points, steps=1)


def test_model_fn_must_return_a_spec(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^model_fn must return an EstimatorSpec, but returned Line\("):
        te.Estimator(lambda: Line(), str(tmp_path)).train(points, steps=1)


def test_model_dir_may_come_from_either_place_and_be_a_path(tmp_path: Path) -> None:
    assert te.Estimator(line_model_fn, config=te.RunConfig(model_dir=tmp_path)).model_dir == str(tmp_path)
    assert te.Estimator(line_model_fn, tmp_path).model_dir == str(tmp_path)
    both = te.Estimator(line_model_fn, f"{tmp_path}/", te.RunConfig(model_dir=tmp_path))
    assert (both.model_dir, both.config.model_dir) == (str(tmp_path), str(tmp_path))
    assert both.eval_dir() == f"{tmp_path}/eval"
    assert both.eval_dir("test") == f"{tmp_path}/eval_test"


def test_without_a_model_dir_there_is_a_temporary_one(caplog: pytest.LogCaptureFixture) -> None:
    estimator = te.Estimator(line_model_fn)
    assert caplog.messages == [f"No model_dir given: using the temporary directory {estimator.model_dir}."]
    assert Path(estimator.model_dir).is_dir()


def test_train_returns_the_estimator_and_counts_steps(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    assert estimator.latest_checkpoint() is None
    assert estimator.train(points, steps=3) is estimator
    assert estimator.latest_checkpoint() == f"{tmp_path}/model.ckpt-3"
    estimator.train(points, steps=2).train(points, max_steps=7).train(points, max_steps=6)
    assert checkpoint_steps(tmp_path) == [0, 3, 5, 7]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 1, "max_steps": 1}, ValueError, "Give steps or max_steps, not both, but got steps=1, max_steps=1."),
        ({"steps": 0}, ValueError, "steps must be positive, but got 0."),
        ({"max_steps": -1}, ValueError, "max_steps must be positive, but got -1."),
        ({"input_fn": 5}, TypeError, "input_fn must be callable, such as lambda: dataset, but got 5."),
        ({"hooks": [5]}, TypeError, "hooks must be instances of torch_estimator.Hook, but got 5."),
        ({"saving_listeners": [5]}, TypeError, "saving_listeners must be instances of torch_estimator.CheckpointSaver"),
    ],
)
def test_train_checks(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        line(tmp_path).train(**{"input_fn": points, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_evaluate_gives_metrics_the_mean_of_the_batches_losses_and_the_step(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=2)
    kernel, bias = (estimator.get_variable_value(f"linear.{name}") for name in ("weight", "bias"))
    losses, errors = [], []
    for features, labels in points(rows=10, batch=4):
        difference = features["x"] @ kernel.T + bias - labels
        losses.append((difference**2).mean())
        errors.extend(np.abs(difference))

    results = estimator.evaluate(partial(points, rows=10, batch=4))

    assert list(results) == ["absolute_error", "global_step", "loss"]
    assert results["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert results["absolute_error"] == pytest.approx(np.mean(errors), rel=1e-6)
    assert results["global_step"] == 2


def test_evaluate_stops_after_steps(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=2)
    assert estimator.evaluate(points, steps=2) == estimator.evaluate(partial(points, rows=400), steps=2)
    assert estimator.evaluate(points, steps=1) != estimator.evaluate(points, steps=2)


def test_an_empty_evaluation_gives_zeros_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = line(tmp_path).train(points, steps=2)
    results = estimator.evaluate(lambda: points().take(0))
    assert results == {"absolute_error": 0.0, "global_step": 2, "loss": 0.0}
    assert "The evaluation input is empty: all metrics are 0." in caplog.messages


def test_an_older_checkpoint_can_be_evaluated(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=2)
    first = estimator.evaluate(points)
    estimator.train(points, steps=2)
    assert estimator.evaluate(points)["global_step"] == 4
    assert estimator.evaluate(points, checkpoint_path=f"{tmp_path}/model.ckpt-2") == first


def _trained_on_meanwhile(model_dir: Path) -> te.Estimator:
    """Return an estimator of two steps; another one trains on while `model_fn` runs, and keeps one checkpoint."""
    trainer = line(model_dir, keep_checkpoint_max=1).train(points, steps=2)

    def model_fn(mode: str) -> te.EstimatorSpec:
        if trainer.get_variable_value("global_step") == 2:
            trainer.train(points, steps=3)
        return line_model_fn(mode)

    return te.Estimator(model_fn, str(model_dir))


def test_the_newest_checkpoint_is_used_where_training_removes_the_one_that_was(tmp_path: Path) -> None:
    evaluated = _trained_on_meanwhile(tmp_path / "evaluate")
    assert evaluated.evaluate(points)["global_step"] == 5
    values = [value for event in read_events(evaluated.eval_dir()) for value in event.summary.value]
    told = [value.tensor.string_val[0].decode() for value in values if value.tag == "checkpoint_path"]
    assert told == [f"{tmp_path}/evaluate/model.ckpt-5"]
    predicted = _trained_on_meanwhile(tmp_path / "predict")
    first = next(predicted.predict(points))
    assert first["output"].tolist() == next(predicted.predict(points))["output"].tolist()
    taken = _trained_on_meanwhile(tmp_path / "module").trained_module()
    assert isinstance(taken, Line)


def test_a_checkpoint_that_was_asked_for_by_its_path_is_not_replaced_by_another(tmp_path: Path) -> None:
    estimator = _trained_on_meanwhile(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*model\.ckpt-2; if"):
        estimator.evaluate(points, checkpoint_path=f"{tmp_path}/model.ckpt-2")


def test_an_untrained_model_is_evaluated_as_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = line(tmp_path)
    results = estimator.evaluate(points)
    assert results["global_step"] == 0
    assert f"There is no checkpoint in {tmp_path}: using the initial weights." in caplog.messages
    estimator.train(points, steps=1)
    assert estimator.evaluate(points, checkpoint_path=f"{tmp_path}/model.ckpt-0") == results


def test_an_evaluation_lands_in_its_own_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torch_estimator")
    estimator = line(tmp_path).train(points, steps=2)
    results = estimator.evaluate(points, name="held_out")
    estimator.evaluate(points, steps=1)

    curves = read_scalars(tmp_path / "eval_held_out")
    assert sorted(curves) == ["absolute_error", "loss"]
    assert curves["loss"].by_step() == pytest.approx({2: results["loss"]})
    tensors = {
        value.tag: value.tensor.string_val
        for event in read_events(tmp_path / "eval_held_out")
        for value in event.summary.value
        if value.HasField("tensor")
    }
    assert tensors == {"checkpoint_path": [f"{tmp_path}/model.ckpt-2".encode()]}
    assert (tmp_path / "eval").is_dir()
    expected = f"Saving dict for global step 2: absolute_error = {results['absolute_error']:g}, global_step = 2, loss ="
    assert any(message.startswith(expected) for message in caplog.messages)
    assert f"Saving 'checkpoint_path' summary for global step 2: {tmp_path}/model.ckpt-2" in caplog.messages


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_reserved_metric_names_are_refused_before_anything_is_evaluated(tmp_path: Path, name: str) -> None:
    def never(labels: Any, predictions: Any) -> float:
        raise AssertionError

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, metrics={name: never})

    with pytest.raises(ValueError, match=f"^A metric must not be called '{name}'"):
        te.Estimator(model_fn, str(tmp_path)).evaluate(points)


def test_evaluation_hooks_are_told_and_may_stop_it(tmp_path: Path) -> None:
    class Counter(te.Hook):
        steps = 0

        def after_step(self, context: te.RunContext) -> None:
            self.steps += 1
            assert context.global_step == 2
            assert context.loss > 0
            if self.steps == 3:
                context.request_stop()

    counter, of_spec = Counter(), Counter()

    def model_fn(mode: str) -> te.EstimatorSpec:
        spec = line_model_fn(mode)
        return te.EstimatorSpec(
            mode=mode, module=spec.module, loss=spec.loss, optimizer=spec.optimizer, evaluation_hooks=[of_spec]
        )

    estimator = te.Estimator(model_fn, str(tmp_path)).train(points, steps=2)
    estimator.evaluate(points, hooks=[counter])
    assert (counter.steps, of_spec.steps) == (3, 3)


def test_evaluating_in_between_does_not_change_training(tmp_path: Path) -> None:
    def dropped(mode: str) -> te.EstimatorSpec:
        spec = line_model_fn(mode)
        spec.module.linear = nn.Sequential(nn.Dropout(0.5), spec.module.linear)  # type: ignore[assignment]
        return spec

    class Evaluate(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            watched.evaluate(points, steps=1)
            next(watched.predict(points))

    config = te.RunConfig(save_checkpoints_steps=1)
    watched = te.Estimator(dropped, str(tmp_path / "watched"), config)
    alone = te.Estimator(dropped, str(tmp_path / "alone"), config)
    torch.manual_seed(3)
    watched.train(points, steps=5, hooks=[Evaluate()])
    torch.manual_seed(3)
    alone.train(points, steps=5)
    assert_same_variables(watched, alone)


def test_a_model_fn_may_return_one_and_the_same_module(tmp_path: Path) -> None:
    modes: list[bool] = []

    class Modes(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            assert context.module is module
            modes.append(module.training)
            assert estimator.evaluate(points, steps=1, checkpoint_path=f"{tmp_path}/model.ckpt-0") == untrained

    torch.manual_seed(0)
    module = Line()

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode, module=module, loss=squared_error, optimizer=partial(torch.optim.SGD, lr=0.1)
        )

    estimator = te.Estimator(model_fn, str(tmp_path), te.RunConfig(save_checkpoints_steps=1))
    untrained = estimator.evaluate(points, steps=1)
    estimator.train(points, steps=2, hooks=[Modes()]).train(points, steps=2, hooks=[Modes()])
    next(estimator.predict(points))
    assert modes == [True] * 4
    assert estimator.evaluate(points, steps=1)["loss"] < untrained["loss"]


def test_training_does_not_disturb_the_programs_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    estimator = line(tmp_path, random_seed=9).train(points, steps=2)
    estimator.evaluate(points, steps=1)
    assert torch.equal(torch.rand(3), expected)


def two_outputs_model_fn(mode: str) -> te.EstimatorSpec:
    return te.EstimatorSpec(
        mode=mode,
        module=Line(),
        loss=squared_error,
        predictions=lambda outputs: {"value": outputs[:, 0], "double": 2 * outputs},
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )


def test_predict_yields_one_example_at_a_time(tmp_path: Path) -> None:
    estimator = te.Estimator(two_outputs_model_fn, str(tmp_path)).train(points, steps=1)
    examples = list(estimator.predict(partial(points, rows=10, batch=4)))
    assert len(examples) == 10
    assert list(examples[0]) == ["value", "double"]
    assert examples[0]["value"].shape == ()
    assert examples[0]["double"].shape == (1,)
    batches = list(estimator.predict(partial(points, rows=10, batch=4), yield_single_examples=False))
    assert [len(batch["value"]) for batch in batches] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([b["value"] for b in batches]), [e["value"] for e in examples])


def test_predict_takes_features_without_labels_and_outputs_without_names(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=1)
    x = np.zeros((3, 2), np.float32)
    (one, *_), bias = list(estimator.predict(lambda: {"x": x})), estimator.get_variable_value("linear.bias")
    assert list(one) == ["output"]
    np.testing.assert_array_equal(one["output"], bias)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [("double", ["double"]), (["double", "value"], ["value", "double"]), (["value", "x"], ["value"])],
)
def test_predict_keys_select(tmp_path: Path, keys: Any, expected: list[str]) -> None:
    estimator = te.Estimator(two_outputs_model_fn, str(tmp_path)).train(points, steps=1)
    assert list(next(estimator.predict(points, predict_keys=keys))) == expected


def test_predict_checks(tmp_path: Path) -> None:
    estimator = te.Estimator(two_outputs_model_fn, str(tmp_path))
    with pytest.raises(CheckpointError, match=f"^There is no checkpoint in {tmp_path} to predict with; train first."):
        estimator.predict(points)
    estimator.train(points, steps=1)
    with pytest.raises(
        ValueError, match=r"^None of predict_keys \['x', 'y'\] is among the predictions \['value', 'dou"
    ):
        next(estimator.predict(points, predict_keys=["x", "y"]))


def test_predictions_of_different_lengths_can_only_be_had_as_batches(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode,
            module=Line(),
            loss=squared_error,
            predictions=lambda outputs: {"value": outputs, "mean": outputs.mean(0)},
            optimizer=partial(torch.optim.SGD, lr=0.1),
        )

    estimator = te.Estimator(model_fn, str(tmp_path)).train(points, steps=1)
    with pytest.raises(
        ValueError, match=r"^Predictions must have one row per example, but have {'value': 4, 'mean': 1"
    ):
        next(estimator.predict(points))
    assert next(estimator.predict(points, yield_single_examples=False))["mean"].shape == (1,)


def test_predict_is_lazy_and_tells_hooks(tmp_path: Path) -> None:
    told: list[str] = []

    class Teller(te.Hook):
        def begin(self, context: te.RunContext) -> None:
            told.append("begin")

        def after_step(self, context: te.RunContext) -> None:
            told.append("step")

        def end(self, context: te.RunContext) -> None:
            told.append("end")

    estimator = line(tmp_path).train(points, steps=1)
    predictions = estimator.predict(partial(points, rows=8, batch=4), hooks=[Teller()])
    assert told == []
    for _ in range(4):
        next(predictions)
    assert told == ["begin", "step"]
    assert len(list(predictions)) == 4
    assert told == ["begin", "step", "step", "end"]


def test_predictions_nobody_asks_for_any_more_cost_nothing(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=1)
    predictions = estimator.predict(lambda: points().repeat())
    next(predictions)
    predictions.close()  # type: ignore[attr-defined]


def test_variables_have_names_and_values(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=3)
    assert estimator.get_variable_names() == [
        "global_step",
        "linear.bias",
        "linear.bias/momentum_buffer",
        "linear.weight",
        "linear.weight/momentum_buffer",
    ]
    assert estimator.get_variable_value("global_step") == 3
    assert estimator.get_variable_value("linear.weight").shape == (1, 2)
    with pytest.raises(CheckpointError, match=r"model.ckpt-3 has no variable 'x'; get_variable_names\(\) lists them.$"):
        estimator.get_variable_value("x")


@pytest.mark.parametrize("ask", [te.Estimator.get_variable_names, lambda e: e.get_variable_value("x")])
def test_an_untrained_model_has_no_variables(tmp_path: Path, ask: Any) -> None:
    with pytest.raises(ValueError, match=f"^There is no checkpoint in {tmp_path} yet; train first."):
        ask(line(tmp_path))


def test_exporting_needs_a_checkpoint_and_a_receiver(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    with pytest.raises(ValueError, match=r"^export_saved_model needs a serving_input_receiver_fn"):
        estimator.export_saved_model(str(tmp_path / "export"), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^There is no checkpoint in {tmp_path} to export; train first."):
        estimator.export_saved_model(str(tmp_path / "export"), lambda: None)  # type: ignore[arg-type,return-value]


def wider_model_fn(mode: str) -> te.EstimatorSpec:
    module = Line()
    module.linear = nn.Linear(2, 3)
    module.extra = nn.Parameter(torch.zeros(1))
    return te.EstimatorSpec(mode=mode, module=module, loss=squared_error, optimizer=torch.optim.Adam)


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.train(points, steps=1),
        lambda e: e.evaluate(points),
        lambda e: e.predict(points),
    ],
)
def test_another_models_directory_is_refused_with_the_variables_that_differ(tmp_path: Path, use: Any) -> None:
    line(tmp_path).train(points, steps=1)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(CheckpointError) as raised:
        use(te.Estimator(wider_model_fn, str(tmp_path)))
    message = str(raised.value)
    assert f"checkpoint {tmp_path}/model.ckpt-1 was made by another model" in message
    assert "1 variable only in the model: 'extra'" in message
    assert "'linear.weight' ([1, 2] in the checkpoint, [3, 2] in the model)" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("other", [torch.optim.Adam, partial(te.optim.Adagrad, lr=0.1)])
def test_another_optimizers_directory_is_refused_for_training_only(tmp_path: Path, other: Any) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=other)

    line(tmp_path).train(points, steps=1)
    estimator = te.Estimator(model_fn, str(tmp_path))
    with pytest.raises(CheckpointError, match=r"was trained with torch\.SGD, but the model's optimizer is torch.*Ada"):
        estimator.train(points, steps=1)
    assert estimator.evaluate(points)["global_step"] == 1


@pytest.mark.parametrize("made", ["Adam", None, [torch.nn.Linear(1, 1)]])
def test_an_optimizer_factory_that_makes_something_else_is_refused(tmp_path: Path, made: Any) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=lambda parameters: made)

    with pytest.raises(
        TypeError,
        match=r"^optimizer must make a torch.optim.Optimizer, an LRScheduler of one, .* but made",
    ):
        te.Estimator(model_fn, str(tmp_path)).train(points, steps=1)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=1)
    weights = tmp_path / "model.ckpt-1" / "variables.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=re.escape(str(weights))):
        estimator.train(points, steps=1)


def test_a_checkpoint_holds_json_and_numbers_only(tmp_path: Path) -> None:
    line(tmp_path).train(points, steps=1)
    assert sorted(path.name for path in (tmp_path / "model.ckpt-1").iterdir()) == [
        "slots.safetensors",
        "state.json",
        "variables.safetensors",
    ]
    state = json.loads((tmp_path / "model.ckpt-1" / "state.json").read_text())
    assert state["step"] == 1
    assert state["state"]["optimizers"] == ["torch.SGD"]


def test_a_moved_model_directory_goes_on(tmp_path: Path) -> None:
    line(tmp_path / "here").train(points, steps=2)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = line(tmp_path / "there").train(points, steps=2)
    uninterrupted = line(tmp_path / "other").train(points, steps=4)
    assert moved.latest_checkpoint() == f"{tmp_path}/there/model.ckpt-4"
    assert list(variables(moved)) == list(variables(uninterrupted))
    assert_same_variables(moved, uninterrupted)


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "export", "model_dir"])
def test_a_subclass_must_not_override_what_others_rely_on(name: str, tmp_path: Path) -> None:
    kind = type("Overriding", (te.Estimator,), {name: lambda self: None})
    with pytest.raises(ValueError, match=rf"Overriding must not override Estimator\.{name}"):
        kind(line_model_fn, str(tmp_path))


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda outputs, labels: outputs - labels, r"a tensor of shape \[4, 1\]"),
        (lambda outputs, labels: None, "None"),
    ],
)
def test_a_loss_that_is_not_one_number_is_one_sentence(loss: Any, got: str, tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=loss, optimizer=partial(torch.optim.SGD, lr=0.1))

    with pytest.raises(ValueError, match=f"must return one number as a tensor, but got {got}"):
        te.Estimator(model_fn, str(tmp_path)).train(points, steps=1)


def test_a_data_error_has_a_short_traceback_unless_code_of_the_user_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\nq,3\n")

    def bad_row() -> te.data.Dataset:
        return te.data.Dataset.from_csv(str(tmp_path / "a.csv"), column_types={"x": "float32"}, label="y").batch(2)

    def refuse(features: Any, labels: Any) -> Any:
        raise te.errors.DataError("no")

    def bad_map() -> te.data.Dataset:
        return te.data.Dataset.from_arrays({"x": [1.0, 2.0]}, [1.0, 2.0]).batch(2).map(refuse)

    estimator = te.LinearRegressor([te.feature_column.numeric_column("x")], str(tmp_path / "model"))
    for run in (estimator.train, estimator.evaluate):
        with pytest.raises(te.errors.DataError, match="line 3: column 'x'") as raised:
            run(bad_row)
        assert len(raised.traceback) <= 4
        assert raised.value.__suppress_context__
        with pytest.raises(te.errors.DataError, match="no") as raised:
            run(bad_map)
        assert "refuse" in {entry.name for entry in raised.traceback}
        estimator.train(lambda: ({"x": [1.0]}, [1.0]), steps=1)
