"""train_and_evaluate on one machine: what is evaluated and exported, and when."""

from __future__ import annotations

import errno
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import torch_estimator as te
from tests.line_jobs import (
    WritingExporter,
    assert_same_variables,
    checkpoint_steps,
    line,
    line_model_fn,
    points,
    variables,
)
from torch_estimator import files
from torch_estimator.errors import CheckpointError
from torch_estimator.executors.evaluation_watch import EvaluationWatch, watch_with
from torch_estimator.feature_column.raw_feature import RawFeature
from torch_estimator.runs.training_status import read_status
from torch_estimator.summary.scalar_reader import read_scalars


class Asked(te.Estimator):
    """Remembers what it was asked to do; may evaluate to something else, or fail."""

    def __init__(self, model_dir: object, **settings: Any) -> None:
        super().__init__(line_model_fn, str(model_dir), te.RunConfig(**{"random_seed": 1, **settings}))
        self.evaluations: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.trainings = 0
        self.failures = 0
        self.returns: Callable[[dict[str, float]], Any] = lambda results: results
        self.evaluate = self._evaluate  # type: ignore[method-assign]  # a subclass must not override it
        self._train_in_job = self.job.train
        self.job.train = self._train  # type: ignore[method-assign]

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("killed while evaluating")
        self.evaluations.append(kwargs)
        results = super().evaluate(*args, **kwargs)
        self.steps.append(results["global_step"])
        return self.returns(results)

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        self.trainings += 1
        return self._train_in_job(*args, **kwargs)


def endless() -> te.data.Dataset:
    return points().repeat()


def run(
    estimator: te.Estimator,
    *,
    max_steps: int | None,
    input_fn: Any = endless,
    exporters: Any = None,
    throttle_secs: float = 0,
    listener: te.ContinuousEvalListener | None = None,
    hooks: Any = None,
    **eval_arguments: Any,
) -> tuple[Any, Any]:
    return te.train_and_evaluate(
        estimator,
        te.TrainSpec(input_fn, max_steps=max_steps, hooks=hooks),
        te.EvalSpec(points, **{"steps": 2, "exporters": exporters, "throttle_secs": throttle_secs, **eval_arguments}),
        listener,
    )


@pytest.mark.parametrize(
    ("max_steps", "steps"), [(22, [10, 20, 22]), (12, [10, 12]), (20, [10, 20]), (5, [5]), (10, [10])]
)
def test_every_checkpoint_but_the_first_is_evaluated_and_only_the_last_export_is_final(
    tmp_path: Path, max_steps: int, steps: list[int]
) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=10), WritingExporter()
    run(estimator, max_steps=max_steps, exporters=exporter)
    assert estimator.trainings == 1
    assert estimator.steps == exporter.steps == steps
    assert exporter.finals == [False] * (len(steps) - 1) + [True]
    assert checkpoint_steps(tmp_path) == [0, *steps]


def test_the_default_throttle_skips_checkpoints_in_the_middle_but_not_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=2), WritingExporter()
    run(estimator, max_steps=7, exporters=exporter, throttle_secs=600)
    assert estimator.steps == exporter.steps == [2, 7]
    assert exporter.finals == [False, True]
    assert "Skipping the evaluation of step 4: throttle_secs have not passed." in caplog.messages


def test_evaluate_is_given_what_the_spec_says_and_the_checkpoint(tmp_path: Path) -> None:
    estimator, hook = Asked(tmp_path, save_checkpoints_steps=3), te.Hook()
    run(estimator, max_steps=6, steps=1, name="held_out", hooks=None)
    spec = te.EvalSpec(points, steps=None, name="other", hooks=[hook], throttle_secs=0)
    te.train_and_evaluate(estimator, te.TrainSpec(endless, max_steps=9), spec)
    assert [e["checkpoint_path"] for e in estimator.evaluations] == [f"{tmp_path}/model.ckpt-{n}" for n in (3, 6, 9)]
    assert [(e["steps"], e["name"]) for e in estimator.evaluations] == [(1, "held_out")] * 2 + [(None, "other")]
    assert estimator.evaluations[-1]["hooks"] == (hook,)
    assert {e["input_fn"] for e in estimator.evaluations} == {points}


def test_exporters_are_given_where_to_what_and_whether_it_is_final(tmp_path: Path) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=100), WritingExporter("mine")
    metrics, exports = run(estimator, max_steps=4, exporters=[exporter])
    assert exporter.calls == [
        {
            "estimator": estimator,
            "export_path": f"{tmp_path}/export/mine",
            "checkpoint_path": f"{tmp_path}/model.ckpt-4",
            "eval_result": metrics,
            "is_the_final_export": True,
        }
    ]
    assert exports == [f"{tmp_path}/export/mine/4"]


def test_it_returns_the_last_metrics_and_what_each_exporter_returned(tmp_path: Path) -> None:
    class Silent(WritingExporter):
        def export(self, *args: Any, **kwargs: Any) -> None:
            super().export(*args, **kwargs)

    estimator = line(tmp_path, save_checkpoints_steps=2)
    exporters = (WritingExporter("a", only_final=True), Silent("b"), WritingExporter("c"))
    metrics, exports = run(estimator, max_steps=5, exporters=exporters, steps=None)
    assert metrics["global_step"] == 5
    assert metrics == estimator.evaluate(points)
    assert exports == [f"{tmp_path}/export/a/5", None, f"{tmp_path}/export/c/5"]


def test_without_exporters_the_exports_are_empty(tmp_path: Path) -> None:
    _, exports = run(line(tmp_path), max_steps=1)
    assert exports == []


def test_nothing_runs_where_max_steps_is_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    run(line(tmp_path), max_steps=5)
    before = sorted(path.name for path in tmp_path.iterdir())
    for max_steps in (5, 4):
        estimator, exporter = Asked(tmp_path), WritingExporter()
        assert run(estimator, max_steps=max_steps, exporters=exporter) == (None, None)
        assert (estimator.trainings, estimator.steps, exporter.calls) == (0, [], [])
        assert f"Nothing to do: max_steps={max_steps} is reached by the checkpoint of step 5." in caplog.messages
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_raised_max_steps_goes_on_and_does_not_evaluate_where_it_starts(tmp_path: Path) -> None:
    run(line(tmp_path, save_checkpoints_steps=3), max_steps=5)
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=3), WritingExporter()
    metrics, _ = run(estimator, max_steps=9, exporters=exporter)
    assert estimator.steps == exporter.steps == [8, 9]
    assert metrics["global_step"] == 9


def _written_through(before_writing: Callable[[str], None]) -> str:
    """A model directory on a file system that calls a function with the path of each file before it is written."""

    class Watched(MemoryFileSystem):
        protocol = f"watched{uuid.uuid4().hex}"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.replace(f"{cls.protocol}://", f"memory://{cls.protocol}/")))

        def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
            if mode == "wb":
                before_writing(path)
            return super()._open(path, mode, **kwargs)

    fsspec.register_implementation(Watched.protocol, Watched)
    return f"{Watched.protocol}://job"


def test_a_checkpoint_that_is_not_evaluated_is_written_while_training_goes_on() -> None:
    opened, waited_too_long = threading.Event(), threading.Event()

    def wait_for_step_7(path: str) -> None:
        if "model.ckpt-6" in path and not opened.wait(60):
            waited_too_long.set()

    class Opens(te.Hook):
        first_step = 7

        def before_step(self, context: te.RunContext) -> None:
            opened.set()

    estimator = Asked(_written_through(wait_for_step_7), save_checkpoints_steps=3)
    run(estimator, max_steps=9, throttle_secs=3600, hooks=[Opens()])
    assert not waited_too_long.is_set()
    assert estimator.steps == [3, 9]
    assert checkpoint_steps(estimator.model_dir) == [0, 3, 6, 9]


def test_a_checkpoint_that_cannot_be_written_is_not_evaluated() -> None:
    def fail_at_step_4(path: str) -> None:
        if "model.ckpt-4" in path:
            raise OSError(errno.ENOSPC, "No space left on device")

    estimator = Asked(_written_through(fail_at_step_4), save_checkpoints_steps=4)
    with pytest.raises(CheckpointError, match=r"model.ckpt-4 cannot be saved: No space left .* before it stays"):
        run(estimator, max_steps=8)
    assert estimator.steps == []
    assert checkpoint_steps(estimator.model_dir) == [0]


class Listener(te.ContinuousEvalListener):
    """Says what it was told to, and counts."""

    def __init__(self, *, before: list[bool], after: list[bool]) -> None:
        self.before, self.after = before, after

    def before_eval(self) -> bool:
        return self.before.pop(0)

    def after_eval(self) -> bool:
        return self.after.pop(0)


def test_before_eval_can_end_the_job_without_an_evaluation(tmp_path: Path) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=2), WritingExporter()
    listener = Listener(before=[False], after=[])
    assert run(estimator, max_steps=8, exporters=exporter, listener=listener) == (None, None)
    assert (estimator.steps, exporter.calls) == ([], [])
    assert checkpoint_steps(tmp_path) == [0, 2]


def test_before_eval_can_end_it_later(tmp_path: Path) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=2), WritingExporter(only_final=True)
    listener = Listener(before=[True, False], after=[True])
    metrics, exports = run(estimator, max_steps=8, exporters=exporter, listener=listener)
    assert (metrics["global_step"], exports) == (2, [None])
    assert checkpoint_steps(tmp_path) == [0, 2, 4]
    assert exporter.finals == [False]


def test_after_eval_can_end_the_job_early_and_what_it_saw_last_is_the_final_model(tmp_path: Path) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=2), WritingExporter(only_final=True)
    listener = Listener(before=[True, True], after=[True, False])
    metrics, exports = run(estimator, max_steps=100, exporters=exporter, listener=listener)
    assert estimator.steps == [2, 4]
    assert (metrics["global_step"], exports) == (4, [f"{tmp_path}/export/writing/4"])


def test_the_listener_is_asked_about_a_throttled_last_evaluation_too(tmp_path: Path) -> None:
    estimator = Asked(tmp_path, save_checkpoints_steps=2)
    listener = Listener(before=[True, True, True, True], after=[True, True])
    run(estimator, max_steps=5, throttle_secs=600, listener=listener)
    assert estimator.steps == [2, 5]
    assert (listener.before, listener.after) == ([], [])

    estimator = Asked(tmp_path, save_checkpoints_steps=2)
    listener = Listener(before=[True, True, True, False], after=[True])
    metrics, _ = run(estimator, max_steps=10, throttle_secs=600, listener=listener)
    assert (estimator.steps, metrics["global_step"]) == ([7], 7)


@pytest.mark.parametrize(
    "settings", [{"save_checkpoints_steps": None}, {"save_checkpoints_secs": 0}, {"save_checkpoints_steps": 0}]
)
def test_it_needs_checkpoints(tmp_path: Path, settings: dict[str, Any]) -> None:
    estimator = Asked(tmp_path, **settings)
    with pytest.raises(ValueError, match=r"^train_and_evaluate evaluates checkpoints, so there should be some"):
        run(estimator, max_steps=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ({}, ValueError, "Estimator.evaluate must return metrics, but returned {}."),
        (None, ValueError, "Estimator.evaluate must return metrics, but returned None."),
        ([1.0], TypeError, r"Estimator.evaluate must return a dict of metrics, but returned \[1.0\]."),
        ({"loss": 1.0}, ValueError, r"Estimator.evaluate must return 'global_step', but returned only \['loss'\]."),
    ],
)
def test_an_evaluation_must_give_metrics(tmp_path: Path, returned: Any, error: type[Exception], message: str) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=2), WritingExporter()
    estimator.returns = lambda results: returned
    with pytest.raises(error, match=f"^{message}"):
        run(estimator, max_steps=5, exporters=exporter)
    assert exporter.calls == []


class Scores(Asked):
    """Evaluates to losses it was given."""

    def __init__(self, model_dir: object, losses: list[float]) -> None:
        super().__init__(model_dir, save_checkpoints_steps=1)
        self.returns = lambda results: {**results, "loss": losses.pop(0)}
        self.export_saved_model = self._export  # type: ignore[method-assign,assignment]

    def _export(self, export_dir_base: str, *args: Any, **kwargs: Any) -> str:
        path = files.join(export_dir_base, str(1_700_000_000 + self.steps[-1]))
        files.makedirs(path)
        return path


def test_the_best_exporter_exports_what_is_better_than_ever_before(tmp_path: Path) -> None:
    best = te.BestExporter("best", serving_input_receiver_fn=lambda: None)  # type: ignore[arg-type,return-value]
    _, exports = run(Scores(tmp_path, [0.5, 0.6, 0.4]), max_steps=3, exporters=best)
    base = f"{tmp_path}/export/best"
    assert exports == [f"{base}/1700000003"]
    assert sorted(files.listdir(base))[:2] == ["1700000001", "1700000003"]

    again = te.BestExporter("best", serving_input_receiver_fn=lambda: None)  # type: ignore[arg-type,return-value]
    _, exports = run(Scores(tmp_path, [0.45]), max_steps=4, exporters=again)
    assert exports == [None]


def test_the_final_and_the_latest_exporter_export_when_they_should(tmp_path: Path) -> None:
    receiver: Any = object()
    exporters = [te.FinalExporter("final", receiver), te.LatestExporter("latest", receiver, exports_to_keep=2)]
    _, exports = run(Scores(tmp_path, [1.0] * 3), max_steps=3, exporters=exporters)
    assert exports == [f"{tmp_path}/export/final/1700000003", f"{tmp_path}/export/latest/1700000003"]
    assert files.listdir(f"{tmp_path}/export/final") == ["1700000003"]
    assert sorted(files.listdir(f"{tmp_path}/export/latest")) == ["1700000002", "1700000003"]


def test_several_specs_are_evaluated_on_the_same_checkpoints(tmp_path: Path) -> None:
    estimator = Asked(tmp_path, save_checkpoints_steps=2)
    exporters = [WritingExporter("a"), WritingExporter("b"), WritingExporter("c")]
    specs = [
        te.EvalSpec(points, steps=2, name="held_out", exporters=exporters[:2], throttle_secs=0),
        te.EvalSpec(partial(points, rows=8), name="train", exporters=exporters[2], throttle_secs=0),
    ]
    metrics, exports = te.train_and_evaluate(estimator, te.TrainSpec(endless, max_steps=4), specs)
    assert [(e["name"], e["checkpoint_path"][-1]) for e in estimator.evaluations] == [
        ("held_out", "2"),
        ("train", "2"),
        ("held_out", "4"),
        ("train", "4"),
    ]
    assert list(metrics) == ["held_out", "train"]
    assert metrics["held_out"]["global_step"] == metrics["train"]["global_step"] == 4
    assert exports == [f"{tmp_path}/export/{name}/4" for name in "abc"]
    for name in ("held_out", "train"):
        loss = read_scalars(estimator.eval_dir(name))["loss"]
        assert loss.steps.tolist().count(4) == 1
        assert loss.by_step()[4] == pytest.approx(metrics[name]["loss"])


def test_each_of_several_specs_has_its_own_throttle_and_all_see_the_last_checkpoint(tmp_path: Path) -> None:
    often, seldom = WritingExporter("often"), WritingExporter("seldom")
    specs = [
        te.EvalSpec(points, steps=1, name="often", exporters=often, throttle_secs=0),
        te.EvalSpec(points, steps=1, name="seldom", exporters=seldom, throttle_secs=600),
    ]
    te.train_and_evaluate(line(tmp_path, save_checkpoints_steps=2), te.TrainSpec(endless, max_steps=7), specs)
    assert (often.steps, seldom.steps) == ([2, 4, 6, 7], [2, 7])
    assert (often.finals[-1], seldom.finals) == (True, [False, True])


@pytest.mark.parametrize("content", [b"9" * 5000, b"\xff", b"-1", b"4.0", b"\n"])
def test_a_note_of_an_owed_evaluation_that_names_no_step_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train_and_evaluate.unfinished").write_bytes(content)
    estimator = Asked(tmp_path, save_checkpoints_steps=2)
    run(estimator, max_steps=4)
    assert estimator.steps == [2, 4]
    assert not (tmp_path / "train_and_evaluate.unfinished").exists()


def test_an_evaluation_that_an_earlier_version_was_interrupted_in_is_made(tmp_path: Path) -> None:
    line(tmp_path).train(points, max_steps=4)
    (tmp_path / "train_and_evaluate.unfinished").write_bytes(b"4")
    exporter = WritingExporter()
    metrics, exports = run(line(tmp_path), max_steps=4, exporters=exporter)
    assert (metrics["global_step"], exports) == (4, [f"{tmp_path}/export/writing/4"])
    assert not (tmp_path / "train_and_evaluate.unfinished").exists()
    assert run(line(tmp_path), max_steps=4, exporters=exporter) == (None, None)


@pytest.mark.parametrize("max_steps", [100, None])
def test_where_the_input_ends_the_final_export_still_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, max_steps: int | None
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=3), WritingExporter(only_final=True)
    metrics, exports = run(estimator, max_steps=max_steps, input_fn=partial(points, rows=28), exporters=exporter)
    assert metrics["global_step"] == 7
    assert exports == [f"{tmp_path}/export/writing/7"]
    assert estimator.steps == [3, 6, 7]
    assert "Training ended at global step 7: the input ended." in caplog.messages
    early = "Training ended at global step 7, before max_steps=100: the input ended. The model of this step is the"
    assert any(message.startswith(early) for message in caplog.messages) == (max_steps is not None)


@pytest.mark.parametrize("throttle_secs", [0, 600])
def test_where_a_hook_stops_training_the_final_export_still_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, throttle_secs: float
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=3), WritingExporter(only_final=True)
    _, exports = run(
        estimator,
        max_steps=100,
        hooks=[te.StopAtStepHook(num_steps=6)],
        exporters=exporter,
        throttle_secs=throttle_secs,
    )
    assert exports == [f"{tmp_path}/export/writing/6"]
    assert estimator.steps == [3, 6]
    assert (
        "Training ended at global step 6, before max_steps=100: a hook asked for it. The model of this step is the "
        "final one." in caplog.messages
    )


def test_an_empty_input_is_still_evaluated_once(tmp_path: Path) -> None:
    estimator = Asked(tmp_path)
    metrics, _ = run(estimator, max_steps=5, input_fn=lambda: points().take(0))
    assert (metrics["global_step"], estimator.steps) == (0, [0])


def test_an_evaluation_of_nothing_is_not_the_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    used_up_after_one_evaluation = iter(points(rows=8))
    best = te.BestExporter("best", te.serving_input.raw_features([RawFeature(key="x", dtype="float32", shape=(2,))]))
    metrics, exports = te.train_and_evaluate(
        line(tmp_path, save_checkpoints_steps=3),
        te.TrainSpec(endless, max_steps=6),
        te.EvalSpec(lambda: used_up_after_one_evaluation, steps=None, throttle_secs=0, exporters=best),
    )
    assert (metrics["loss"], exports) == (0.0, [None])
    assert "best: nothing was exported, because the evaluation input was empty." in caplog.messages
    kept = json.loads((tmp_path / "export" / "best" / "best_eval_result.json").read_text())
    assert (kept["global_step"], kept["loss"] > 0) == (3, True)
    assert read_scalars(tmp_path / "eval")["loss"].steps.tolist() == [3]


def test_a_job_killed_before_its_last_evaluation_evaluates_and_exports_on_restart(tmp_path: Path) -> None:
    estimator, exporter = Asked(tmp_path, save_checkpoints_steps=100), WritingExporter()
    estimator.failures = 1
    with pytest.raises(ConnectionError):
        run(estimator, max_steps=4, exporters=exporter)
    assert checkpoint_steps(tmp_path) == [0, 4]

    metrics, exports = run(estimator, max_steps=4, exporters=exporter)

    assert metrics["global_step"] == 4
    assert exports == [f"{tmp_path}/export/writing/4"]
    assert exporter.finals == [True]
    assert run(estimator, max_steps=4, exporters=exporter) == (None, None)


def test_a_job_killed_in_its_last_export_exports_on_restart(tmp_path: Path) -> None:
    exporter = WritingExporter(failures=1)
    with pytest.raises(ConnectionError):
        run(line(tmp_path), max_steps=4, exporters=exporter)
    _, exports = run(line(tmp_path), max_steps=4, exporters=exporter)
    assert exports == [f"{tmp_path}/export/writing/4"]


def test_a_job_whose_input_ended_before_the_kill_does_not_train_again_on_restart(tmp_path: Path) -> None:
    for max_steps in (None, 100):
        model_dir = tmp_path / str(max_steps)
        exporter, input_fn = WritingExporter(failures=1), partial(points, rows=20)
        with pytest.raises(ConnectionError):
            run(line(model_dir), max_steps=max_steps, input_fn=input_fn, exporters=exporter)
        metrics, exports = run(line(model_dir), max_steps=max_steps, input_fn=input_fn, exporters=exporter)
        assert (metrics["global_step"], exports) == (5, [f"{model_dir}/export/writing/5"])
        undisturbed = WritingExporter()
        run(line(tmp_path / "x" / str(max_steps)), max_steps=max_steps, input_fn=input_fn, exporters=undisturbed)
        assert exporter.finals == undisturbed.finals


def test_a_job_killed_in_the_middle_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    def job(name: str, failures: int = 0) -> tuple[Any, Any]:
        exporter = WritingExporter(failures=failures)
        return run(line(tmp_path / name, save_checkpoints_steps=3), max_steps=8, steps=None, exporters=exporter)

    with pytest.raises(ConnectionError):
        job("killed", failures=1)
    assert checkpoint_steps(tmp_path / "killed") == [0, 3]

    metrics, _ = job("killed")
    assert metrics == job("whole")[0]
    assert_same_variables(line(tmp_path / "killed"), line(tmp_path / "whole"))


class Killed(BaseException):
    """Ends a job as SIGKILL does: nothing that a job does after an error is done, since it is no `Exception`."""


@pytest.mark.parametrize("is_written", [False, True])
def test_a_job_killed_at_any_write_of_its_status_ends_as_if_it_had_not_been(is_written: bool) -> None:
    kill_at = 0

    class Deadly(MemoryFileSystem):
        protocol = "deadly"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.replace("deadly://", "memory://deadly/")))

        def pipe_file(self, path: str, value: bytes, mode: Any = "overwrite", **options: Any) -> None:
            nonlocal kill_at
            kill_at -= path.endswith("training.json")
            is_last = kill_at == 0 and path.endswith("training.json")
            if is_written or not is_last:
                super().pipe_file(path, value, mode, **options)
            if is_last:
                raise Killed

    fsspec.register_implementation("deadly", Deadly, clobber=True)
    writes = 0
    while True:
        model_dir, exporter = f"deadly://{uuid.uuid4().hex}", WritingExporter(only_final=True)
        kill_at = writes = writes + 1
        try:
            run(line(model_dir, save_checkpoints_steps=3), max_steps=8, exporters=exporter)
            break
        except Killed:
            run(line(model_dir, save_checkpoints_steps=3), max_steps=8, exporters=exporter)
            assert files.listdir(f"{model_dir}/export/writing") == ["8"]
            assert read_scalars(f"{model_dir}/eval")["loss"].steps.tolist()[-1] == 8
            assert run(line(model_dir), max_steps=8) == (None, None)
        finally:
            files.remove_tree(model_dir)
    # At the beginning, when the input is open, around three evaluations, and at the end.
    assert writes - 1 == 9


def test_the_whole_job_runs_in_memory() -> None:
    model_dir = f"memory://{uuid.uuid4().hex}/job"
    try:
        exporter = WritingExporter()
        estimator = line(model_dir, save_checkpoints_steps=3, keep_checkpoint_max=2)
        metrics, exports = run(estimator, max_steps=8, exporters=exporter, name="mem", steps=None)
        assert (metrics["global_step"], exports) == (8, [f"{model_dir}/export/writing/8"])
        assert checkpoint_steps(model_dir) == [6, 8]
        assert estimator.latest_checkpoint() == f"{model_dir}/model.ckpt-8"
        assert read_scalars(f"{model_dir}/eval_mem")["loss"].steps.tolist() == [3, 6, 8]
        assert read_scalars(model_dir)["loss"].steps.tolist() == [1]

        resumed = line(model_dir, save_checkpoints_steps=3)
        metrics, _ = run(resumed, max_steps=10, exporters=WritingExporter())
        assert metrics["global_step"] == 10
        assert sorted(files.listdir(model_dir)) == [
            "checkpoint",
            "eval",
            "eval_mem",
            *(name for name in sorted(files.listdir(model_dir)) if name.startswith("events.out.tfevents.")),
            "export",
            *(f"model.ckpt-{step}" for step in ("10", "6", "8")),
            "training.json",
        ]
        assert variables(resumed)["global_step"] == 10
    finally:
        files.remove_tree(model_dir)


def test_a_finished_job_says_that_it_is_finished(tmp_path: Path) -> None:
    run(line(tmp_path), max_steps=3, exporters=WritingExporter())
    names = {path.name for path in tmp_path.iterdir()}
    assert {name for name in names if not name.startswith("events.out")} == {
        "activity",
        "checkpoint",
        "eval",
        "export",
        "model.ckpt-0",
        "model.ckpt-3",
        "training.json",
    }
    status = read_status(str(tmp_path))
    assert status is not None
    assert (status.ended, status.unfinished, status.failed) == (True, False, False)


def test_a_model_dir_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        CheckpointError,
        match=f"^model_dir {tmp_path}/file/job cannot be a directory: a file is in the way.$",
    ):
        run(line(tmp_path / "file" / "job"), max_steps=1)
    with pytest.raises(CheckpointError, match=r"^model_dir /proc/job cannot be made: .*; use another model_dir.$"):
        run(line("/proc/job"), max_steps=1)


TRAIN, EVAL = te.TrainSpec(points, max_steps=1), te.EvalSpec(points)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"eval_spec": {}}, TypeError, "eval_spec must be an EvalSpec or a list of them, but got {}."),
        ({"eval_spec": []}, TypeError, r"eval_spec must be an EvalSpec or a list of them, but got \[\]."),
        ({"eval_spec": [EVAL, TRAIN]}, TypeError, "eval_spec must be an EvalSpec or a list of them, but got "),
        ({"eval_spec": [EVAL, EVAL]}, ValueError, r"Several EvalSpecs need distinct names, but got \[None, None\]."),
        (
            {
                "eval_spec": [
                    te.EvalSpec(points, name="a", exporters=WritingExporter("x")),
                    te.EvalSpec(points, name="b", exporters=WritingExporter("x")),
                ]
            },
            ValueError,
            r"Exporters of several EvalSpecs need distinct names, but got \['x', 'x'\].",
        ),
        ({"estimator": "e"}, TypeError, "estimator must be an Estimator, but got 'e'."),
        ({"train_spec": EVAL}, TypeError, "train_spec must be a TrainSpec, but got EvalSpec"),
        ({"continuous_eval_listener": 1}, TypeError, "continuous_eval_listener must be a ContinuousEvalListener, but"),
        ({"eval_spec": 1, "estimator": 2, "train_spec": 3}, TypeError, "eval_spec must be an EvalSpec or a list of"),
        ({"estimator": 2, "train_spec": 3}, TypeError, "estimator must be an Estimator, but got 2."),
    ],
)
def test_arguments_are_checked_in_order(
    tmp_path: Path, arguments: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    given = {"estimator": line(tmp_path), "train_spec": TRAIN, "eval_spec": EVAL, **arguments}
    with pytest.raises(error, match=f"^{message}"):
        te.train_and_evaluate(**given)
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_trains_nothing_owes_nothing(tmp_path: Path) -> None:
    def missing() -> te.data.Dataset:
        raise te.UserError("train.csv is not there")

    def broken() -> te.data.Dataset:
        return te.data.Dataset.from_iterable(lambda: iter([(None, None, None)]))

    estimator = Asked(tmp_path, save_checkpoints_steps=50)
    run(estimator, max_steps=1000, input_fn=lambda: points(40))
    assert checkpoint_steps(estimator.model_dir)[-1] == 10
    for input_fn in (missing, broken):
        with pytest.raises(te.UserError):
            run(estimator, max_steps=1000, input_fn=input_fn)
        # Not taken for the interrupted job, whose input had ended: this is a new call with a new pass.
        before = checkpoint_steps(estimator.model_dir)[-1]
        run(estimator, max_steps=1000, input_fn=lambda: points(40))
        assert checkpoint_steps(estimator.model_dir)[-1] == before + 10


class WantsTwelve(EvaluationWatch):
    def __init__(self) -> None:
        self.heard: list[tuple[int, bool]] = []

    def wants(self, step: int) -> bool:
        return step == 12

    def evaluated(self, step: int, *, final: bool) -> None:
        self.heard.append((step, final))


def test_the_process_may_watch_evaluations_and_want_more_of_them(tmp_path: Path) -> None:
    watch = WantsTwelve()
    watch_with(watch)
    try:
        run(Asked(tmp_path, save_checkpoints_steps=4), max_steps=20, throttle_secs=600)
    finally:
        watch_with(EvaluationWatch())
    assert watch.heard == [(4, False), (12, False), (20, True)]
