"""Early stopping: its conditions, and clean ends of jobs with and without kills."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.hooks.test_hook import Kill
from tests.line_jobs import WritingExporter, assert_same_variables, checkpoint_steps, line, points
from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.runs.training_status import read_status
from torch_estimator.summary.event_writer import EventWriter

Curve = list[tuple[int, float]]

# Loss by step: it falls, then rises.
HISTORY: Curve = [(1000, 0.8), (2000, 0.7), (3000, 0.4), (3500, 0.41)]


@pytest.fixture(params=["local", "memory"])
def estimator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[te.Estimator]:
    model_dir = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    yield line(model_dir)
    files.remove_tree(model_dir)


def write(eval_dir: str, curve: Curve, name: str = "loss") -> None:
    for step, value in curve:
        with EventWriter(eval_dir) as events:
            events.scalars({name: value, "accuracy": 1 - value}, step)
            events.text("checkpoint_path", f"model.ckpt-{step}", step)


def stops(hook: te.Hook) -> bool:
    context = te.RunContext(global_step=0)
    hook.begin(context)
    return context.stop_requested


def test_evaluations_are_read_back_by_step(estimator: te.Estimator) -> None:
    eval_dir = estimator.eval_dir()
    assert te.read_eval_metrics(eval_dir) == {}
    write(eval_dir, [(20, 0.5), (10, 0.25), (20, 0.75)])
    assert te.read_eval_metrics(eval_dir) == {
        10: {"loss": 0.25, "accuracy": 0.75},
        20: {"loss": 0.75, "accuracy": 0.25},
    }
    assert list(te.experimental.read_eval_metrics(eval_dir)) == [10, 20]


@pytest.mark.parametrize(
    ("threshold", "min_steps", "expected"),
    [(0.8, 0, False), (0.5, 0, True), (0.5, 3001, True), (0.5, 3501, False), (0.6, 0, False), (0.59, 3100, False)],
)
def test_stop_if_higher(estimator: te.Estimator, threshold: float, min_steps: int, expected: bool) -> None:
    write(estimator.eval_dir(), HISTORY)
    assert stops(te.stop_if_higher_hook(estimator, "accuracy", threshold, min_steps=min_steps)) == expected


@pytest.mark.parametrize(
    ("threshold", "min_steps", "expected"), [(0.4, 0, False), (0.41, 0, True), (0.41, 3001, False)]
)
def test_stop_if_lower(estimator: te.Estimator, threshold: float, min_steps: int, expected: bool) -> None:
    write(estimator.eval_dir(), HISTORY)
    assert stops(te.stop_if_lower_hook(estimator, "loss", threshold, min_steps=min_steps)) == expected


@pytest.mark.parametrize("threshold", [0.1, 0.7, 0.8, 0.9])
def test_a_metric_that_equals_the_threshold_does_not_stop_though_files_hold_float32(
    tmp_path: Path, threshold: float
) -> None:
    estimator = line(tmp_path)
    write(estimator.eval_dir(), [(1, threshold)])
    assert not stops(te.stop_if_higher_hook(estimator, "loss", threshold))
    assert not stops(te.stop_if_lower_hook(estimator, "loss", threshold))


@pytest.mark.parametrize(
    ("steps", "min_steps", "expected"),
    [(500, 0, True), (501, 0, True), (1001, 0, False), (500, 3000, True), (501, 3000, False)],
)
@pytest.mark.parametrize(
    ("make", "metric", "values"),
    [
        (te.stop_if_no_decrease_hook, "loss", [0.8, 0.8, 0.4, 0.41]),
        (te.stop_if_no_increase_hook, "loss", [0.1, 0.1, 0.5, 0.49]),
    ],
)
def test_stop_without_improvement_anywhere_in_the_history(
    tmp_path: Path,
    make: Callable[..., te.Hook],
    metric: str,
    values: list[float],
    steps: int,
    min_steps: int,
    expected: bool,
) -> None:
    estimator = line(tmp_path)
    write(estimator.eval_dir(), list(zip((1000, 2000, 3000, 3500), values, strict=True)))
    assert stops(make(estimator, metric, steps, min_steps=min_steps)) == expected


def test_nan_is_worse_than_any_number(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    write(estimator.eval_dir(), [(1, float("nan")), (2, 5.0), (3, 4.0)])
    assert not stops(te.stop_if_no_decrease_hook(estimator, "loss", 2))
    assert not stops(te.stop_if_higher_hook(estimator, "loss", 5.0))
    write(estimator.eval_dir(), [(4, float("nan")), (5, float("nan"))])
    assert stops(te.stop_if_no_decrease_hook(estimator, "loss", 2))


def test_another_directory_of_evaluations_may_be_named(estimator: te.Estimator) -> None:
    write(estimator.eval_dir("held_out"), HISTORY)
    hook = te.stop_if_lower_hook(estimator, "loss", 0.5, eval_dir=estimator.eval_dir("held_out"))
    assert stops(hook)
    assert not stops(te.stop_if_lower_hook(estimator, "loss", 0.5))


def test_an_absent_metric_is_one_sentence_once_there_are_evaluations(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    hook = te.stop_if_higher_hook(estimator, "auc", 0.9)
    assert not stops(hook)
    write(estimator.eval_dir(), HISTORY)
    message = rf"looks for the metric 'auc', but the evaluations in {tmp_path}/eval have only accuracy, loss; give one"
    with pytest.raises(ValueError, match=message):
        stops(hook)
    # A metric that was added later, as add_metrics does, is missing in older evaluations.
    write(estimator.eval_dir(), [(4000, 0.95)], name="auc")
    assert stops(hook)


def test_evaluations_elsewhere_are_hinted_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def job(name: str | None) -> None:
        estimator = line(tmp_path / str(name), save_checkpoints_steps=2)
        hook = te.stop_if_lower_hook(estimator, "loss", 0.0, run_every_steps=1)
        te.train_and_evaluate(
            estimator,
            te.TrainSpec(points, max_steps=4, hooks=[hook]),
            te.EvalSpec(points, steps=1, name=name, throttle_secs=0),
        )

    job(None)
    # Files that an evaluator writes before its first evaluation do not count as results.
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "evaluator.json").touch()
    hook = te.stop_if_lower_hook(line(tmp_path / "before"), "loss", 0.0)
    line(tmp_path / "before").train(points, max_steps=1, hooks=[hook])
    assert "Early stopping found no evaluations" not in caplog.text
    job("held_out")
    assert f"no evaluations in {tmp_path}/held_out/eval, but there are some in eval_held_out of the same" in caplog.text


def test_a_function_decides_at_the_start_and_at_every_global_step_that_n_divides(tmp_path: Path) -> None:
    asked: list[int] = []

    class Where(te.Hook):
        def begin(self, context: te.RunContext) -> None:
            self.context = context

    where = Where()

    def never() -> bool:
        asked.append(where.context.global_step)
        return False

    for steps in (7, 6):
        estimator = line(tmp_path)
        hook = te.make_early_stopping_hook(estimator, never, run_every_steps=5)
        estimator.train(points, steps=steps, hooks=[where, hook])
    assert asked == [0, 5, 10]


def test_by_seconds_it_decides_at_the_start_and_then_at_intervals(tmp_path: Path) -> None:
    now, asked = [0.0], []
    estimator = line(tmp_path)
    hook = te.experimental.make_early_stopping_hook(estimator, lambda: bool(asked.append(now[0])), run_every_secs=60)
    hook.clock = lambda: now[0]

    class Tick(te.Hook):
        def before_step(self, context: te.RunContext) -> None:
            now[0] += 25.0

    estimator.train(points, steps=8, hooks=[Tick(), hook])
    assert asked == [0.0, 25.0, 100.0, 175.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": 3}, TypeError, "estimator must be an Estimator, but got 3."),
        ({"run_every_secs": None}, ValueError, "Give one of run_every_secs and run_every_steps, but got run_every_s"),
        ({"run_every_secs": 5, "run_every_steps": 5}, ValueError, "Give one of run_every_secs and run_every_steps, bu"),
        ({"run_every_secs": None, "run_every_steps": 0}, ValueError, "run_every_steps must be 1 or more, but got 0."),
        ({"run_every_secs": -1}, ValueError, "run_every_secs must not be negative, but got -1."),
        ({"metric_name": 3}, TypeError, "metric_name must be a string, but got 3."),
        ({"threshold": "high"}, ValueError, "threshold must be a number, but got 'high'."),
        ({"min_steps": -1}, ValueError, "min_steps must not be negative, but got -1."),
    ],
)
def test_arguments_are_checked(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"estimator": line(tmp_path), "metric_name": "loss", "threshold": 1.0, **arguments}
    with pytest.raises(error, match=f"^{message}"):
        te.stop_if_higher_hook(**given)


def test_max_steps_without_improvement_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^max_steps_without_decrease must be positive, but got 0\.$"):
        te.stop_if_no_decrease_hook(line(tmp_path), "loss", 0)
    with pytest.raises(TypeError, match=r"^should_stop_fn must be a function, but got 0\.$"):
        te.make_early_stopping_hook(line(tmp_path), 0)  # type: ignore[arg-type]


def loss_of_a_line(step: int) -> float:
    """Return a loss that falls until step 12."""
    return abs(step - 12) / 10


def job(
    model_dir: object,
    *,
    hooks: list[te.Hook] | None = None,
    exporter: WritingExporter | None = None,
    run_every_steps: int = 2,
    max_steps: int = 100,
) -> tuple[Any, Any]:
    """Run a job whose loss falls until step 12 and which stops after 6 steps without a decrease.

    It saves and evaluates every 4 steps.
    """
    estimator = line(model_dir, save_checkpoints_steps=4, keep_checkpoint_max=None)

    def made_up(*args: Any, checkpoint_path: str, **kwargs: Any) -> dict[str, float]:
        step = load_checkpoint(checkpoint_path).step
        write(estimator.eval_dir(), [(step, loss_of_a_line(step))])
        return {"loss": loss_of_a_line(step), "global_step": step}

    estimator.evaluate = made_up  # type: ignore[method-assign, assignment]
    stop = te.stop_if_no_decrease_hook(estimator, "loss", 6, run_every_steps=run_every_steps)
    return te.train_and_evaluate(
        estimator,
        te.TrainSpec(lambda: points().repeat(), max_steps=max_steps, hooks=[*(hooks or []), stop]),
        te.EvalSpec(points, steps=1, throttle_secs=0, exporters=exporter),
    )


def test_stopping_ends_training_evaluation_and_export_cleanly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    exporter = WritingExporter(only_final=True)
    metrics, exports = job(tmp_path, exporter=exporter)
    # The evaluation at step 20 is the first one at least 6 steps after the best, 0.0 at step 12.
    assert metrics == {"loss": 0.8, "global_step": 20}
    assert exports == [f"{tmp_path}/export/writing/20"]
    assert exporter.steps == [4, 8, 12, 16, 20, 20]
    assert exporter.finals == [False] * 5 + [True]
    assert checkpoint_steps(tmp_path) == [0, 4, 8, 12, 16, 20]
    assert (
        "Requesting early stopping: loss did not decrease within 6 steps: it was 0 at step 12 and 0.8 at step 20."
        in caplog.messages
    )
    status = read_status(str(tmp_path))
    assert status is not None
    assert (status.ended, status.unfinished) == (True, False)


@pytest.mark.parametrize(("run_every_steps", "last"), [(1, 20), (4, 20), (7, 21), (30, 30)])
def test_the_decision_is_in_the_checkpoint_and_a_rerun_does_not_train_on(
    tmp_path: Path, run_every_steps: int, last: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    metrics, _ = job(tmp_path, run_every_steps=run_every_steps)
    assert metrics["global_step"] == last
    state = load_checkpoint(tmp_path).state
    assert state["hooks"] == {"_EarlyStoppingHook": [{"stopped_at": last}]}
    before = checkpoint_steps(tmp_path)
    # The decision does not depend on the evaluations, which may have been removed.
    files.remove_tree(tmp_path / "eval")
    exporter = WritingExporter()
    metrics, exports = job(tmp_path, run_every_steps=run_every_steps, exporter=exporter)
    assert (metrics["global_step"], exports) == (last, [f"{tmp_path}/export/writing/{last}"])
    assert checkpoint_steps(tmp_path) == before
    assert f"Early stopping ended this training at global step {last}; without its hook it goes on." in caplog.messages
    line(tmp_path).train(points, steps=1)
    assert checkpoint_steps(tmp_path)[-1] == last + 1


@pytest.mark.parametrize(
    ("run_every_steps", "killed_before"), [(1, 4), (1, 17), (1, 20), (4, 20), (5, 16), (7, 20), (7, 21)]
)
def test_a_killed_and_resumed_job_stops_where_an_undisturbed_one_does(
    tmp_path: Path, run_every_steps: int, killed_before: int
) -> None:
    whole, _ = job(tmp_path / "whole", run_every_steps=run_every_steps)
    with pytest.raises(ConnectionError):
        job(tmp_path / "killed", run_every_steps=run_every_steps, hooks=[Kill(killed_before)])
    resumed, _ = job(tmp_path / "killed", run_every_steps=run_every_steps)
    assert resumed == whole
    assert_same_variables(line(tmp_path / "killed"), line(tmp_path / "whole"))


@pytest.mark.parametrize("failing_at", [16, 20])
def test_a_job_killed_in_an_evaluation_stops_where_an_undisturbed_one_does(tmp_path: Path, failing_at: int) -> None:
    class Failing(WritingExporter):
        def export(self, *args: Any, **kwargs: Any) -> str | None:
            if kwargs["eval_result"]["global_step"] == failing_at:
                files.remove_tree(tmp_path / "killed" / "eval")
                write(f"{tmp_path}/killed/eval", [(s, loss_of_a_line(s)) for s in range(4, failing_at, 4)])
                raise ConnectionError("killed while evaluating")
            return super().export(*args, **kwargs)

    with pytest.raises(ConnectionError):
        job(tmp_path / "killed", exporter=Failing())
    resumed, _ = job(tmp_path / "killed", exporter=WritingExporter())
    assert resumed["global_step"] == 20
    assert list(te.read_eval_metrics(f"{tmp_path}/killed/eval")) == [4, 8, 12, 16, 20]


def test_nothing_is_stopped_if_the_last_step_comes_first(tmp_path: Path) -> None:
    metrics, _ = job(tmp_path, max_steps=18)
    assert metrics["global_step"] == 18
    assert "hooks" not in {key for key, value in load_checkpoint(tmp_path).state.items() if value}


def test_it_stops_plain_training_too_and_a_rerun_takes_no_step(tmp_path: Path) -> None:
    asked = []
    for _ in range(2):
        estimator = line(tmp_path)
        hook = te.make_early_stopping_hook(estimator, lambda: asked.append(1) is None)
        estimator.train(points, max_steps=10, hooks=[hook])
    assert checkpoint_steps(tmp_path) == [0]
    assert asked == [1]
    assert line(tmp_path).train(points, max_steps=10).get_variable_value("global_step") == 10
