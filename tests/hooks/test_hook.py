"""The base class of hooks: when hooks are called, where they can be given, and their state in checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.line_jobs import WritingExporter, assert_same_variables, line, line_model_fn, points
from torch_estimator.hooks import Hook


@pytest.mark.parametrize(
    ("theirs", "ours"), [("before_run", "before_step"), ("after_run", "after_step"), ("after_create_session", "begin")]
)
def test_a_partly_ported_session_hook_is_an_error(theirs: str, ours: str) -> None:
    with pytest.raises(TypeError, match=f"Ported.{theirs} would never be called; a Hook has {ours} instead"):
        type("Ported", (Hook,), {theirs: lambda self: None})


class Recording(te.Hook):
    """Hook that records its calls, every 50 steps."""

    every_n_steps: int | None = 50

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []

    def begin(self, context: te.RunContext) -> None:
        self.entries.append(("begin", context.global_step))

    def before_step(self, context: te.RunContext) -> None:
        self.entries.append(("before", context.global_step))

    def after_step(self, context: te.RunContext) -> None:
        assert context.loss > 0
        self.entries.append(("after", context.global_step))

    def end(self, context: te.RunContext) -> None:
        self.entries.append(("end", context.global_step))


def test_a_hook_is_called_only_at_its_interval(tmp_path: Path) -> None:
    recording = Recording()
    line(tmp_path).train(lambda: points().repeat(), steps=120, hooks=[recording])
    calls = [("before", 0), ("after", 1), ("before", 50), ("after", 51), ("before", 100), ("after", 101)]
    assert recording.entries == [("begin", 0), *calls, ("end", 120)]


def test_the_context_describes_the_run(tmp_path: Path) -> None:
    seen: list[tuple[str, Any, Any, list[float]]] = []

    class Look(te.Hook):
        def begin(self, context: te.RunContext) -> None:
            assert context.module is not None
            assert set(context.variables()) == {"linear.weight", "linear.bias"}
            seen.append((str(context.mode), context.model_dir, context.output_dir, context.learning_rates))

    estimator = line(tmp_path).train(points, steps=1, hooks=[Look()])
    estimator.evaluate(points, hooks=[Look()], name="held_out")
    next(estimator.predict(points, hooks=[Look()]))
    job = str(tmp_path)
    assert seen == [
        ("train", job, job, [0.05]),
        ("eval", job, f"{job}/eval_held_out", []),
        ("infer", job, job, []),
    ]


def test_hooks_of_the_model_and_of_both_specs_are_called(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    class Recorder(te.Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def end(self, context: te.RunContext) -> None:
            calls.append((self.name, str(context.mode)))

    def model_fn(mode: str) -> te.EstimatorSpec:
        return dataclasses.replace(
            line_model_fn(mode),
            training_hooks=[Recorder("model's")],
            training_chief_hooks=[Recorder("chief's")],
            evaluation_hooks=[Recorder("model's")],
            prediction_hooks=[Recorder("model's")],
        )

    estimator = te.Estimator(model_fn, str(tmp_path), te.RunConfig(save_checkpoints_steps=100))
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(points, max_steps=2, hooks=[Recorder("TrainSpec's")]),
        te.EvalSpec(points, steps=1, hooks=[Recorder("EvalSpec's")]),
    )
    list(estimator.predict(lambda: points(4), hooks=[Recorder("caller's")]))
    assert [name for name, mode in calls if mode == "train"] == ["chief's", "model's", "TrainSpec's"]
    assert sorted(calls) == sorted(
        [("model's", mode) for mode in ("train", "eval", "infer")]
        + [("chief's", "train"), ("TrainSpec's", "train"), ("EvalSpec's", "eval"), ("caller's", "infer")]
    )


def test_hooks_have_intervals_in_evaluation_and_prediction_and_may_end_them(tmp_path: Path) -> None:
    class Few(te.Hook):
        every_n_steps = 3

        def __init__(self) -> None:
            self.calls = 0

        def before_step(self, context: te.RunContext) -> None:
            self.calls += 1
            if self.calls == 2:
                context.request_stop()

    estimator = line(tmp_path).train(points, steps=1)
    evaluating, predicting = Few(), Few()
    estimator.evaluate(points, hooks=[evaluating])
    assert len(list(estimator.predict(points, hooks=[predicting]))) == 4 * 4
    assert (evaluating.calls, predicting.calls) == (2, 2)


class Counter(te.Hook):
    """Hook that counts steps across restarts."""

    def __init__(self) -> None:
        self.count = 0

    def after_step(self, context: te.RunContext) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Kill(te.Hook):
    def __init__(self, step: int) -> None:
        self.first_step = step

    def before_step(self, context: te.RunContext) -> None:
        raise ConnectionError("killed")


@pytest.mark.parametrize("killed_before", [4, 6])
def test_a_hooks_state_is_part_of_the_checkpoint_of_its_step(tmp_path: Path, killed_before: int) -> None:
    estimator = line(tmp_path, save_checkpoints_steps=3)
    with pytest.raises(ConnectionError):
        estimator.train(points, max_steps=9, hooks=[Counter(), Kill(killed_before)])
    counter, new = Counter(), Counter()
    line(tmp_path, save_checkpoints_steps=3).train(points, max_steps=9, hooks=[counter, new])
    assert (counter.count, new.count) == (9, 6)


def test_states_of_several_hooks_of_a_class_are_assigned_by_order(tmp_path: Path) -> None:
    one, other = Counter(), Counter()
    other.count = 100
    line(tmp_path).train(points, steps=2, hooks=[Recording(), one, other])
    resumed = [Counter(), Counter()]
    line(tmp_path).train(points, steps=1, hooks=resumed)
    assert [counter.count for counter in resumed] == [3, 103]


def test_a_state_that_is_not_json_names_the_hook(tmp_path: Path) -> None:
    class Odd(te.Hook):
        def state(self) -> dict[str, Any]:
            return {"model": object()}

    class Deep(te.Hook):
        def state(self) -> dict[str, Any]:
            return functools.reduce(lambda state, _: {"state": state}, range(200), {})

    with pytest.raises(TypeError, match=r"^state\(\) of .*Odd must return what JSON can hold: "):
        line(tmp_path).train(points, steps=1, hooks=[Odd()])
    with pytest.raises(TypeError, match=r"Deep must return what JSON can hold: Nested deeper than 100 levels"):
        line(tmp_path).train(points, steps=1, hooks=[Deep()])


def test_a_hook_that_changes_weights_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    class Clip(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            context.variables()["linear.weight"].clamp_(-0.1, 0.1)

    whole = line(tmp_path / "whole").train(points, steps=8, hooks=[Clip()])
    resumed = line(tmp_path / "resumed").train(points, steps=5, hooks=[Clip()]).train(points, steps=3, hooks=[Clip()])
    assert_same_variables(resumed, whole)
    assert abs(whole.get_variable_value("linear.weight")).max() <= 0.1


def test_at_the_end_of_a_run_a_hook_finds_the_last_checkpoint(tmp_path: Path) -> None:
    steps: list[float] = []

    class Evaluate(te.Hook):
        def end(self, context: te.RunContext) -> None:
            steps.append(estimator.evaluate(points, steps=1)["global_step"])

    estimator = line(tmp_path, save_checkpoints_steps=4)
    estimator.train(points, steps=6, hooks=[Evaluate()])
    assert steps == [6]


def test_a_hook_may_be_called_after_the_evaluation_of_its_step(tmp_path: Path) -> None:
    exported: list[list[int]] = []

    class After(te.Hook):
        after_saving = True
        first_step = every_n_steps = 2

        def after_step(self, context: te.RunContext) -> None:
            exported.append(list(exporter.steps))

    exporter = WritingExporter()
    te.train_and_evaluate(
        line(tmp_path, save_checkpoints_steps=2),
        te.TrainSpec(points, max_steps=4, hooks=[After()]),
        te.EvalSpec(points, steps=1, exporters=exporter, throttle_secs=0),
    )
    assert exported == [[2], [2, 4]]
