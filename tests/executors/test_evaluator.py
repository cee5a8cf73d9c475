"""The evaluator's role: each checkpoint at most once, the last one always, and nothing waited for in vain."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.line_jobs import WritingExporter, checkpoint_steps, line, points
from torch_estimator import files
from torch_estimator.checkpoint.index import hold_checkpoint
from torch_estimator.cluster.process_start import JOB_BEGAN
from torch_estimator.executors.chief import run_chief
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.executors.evaluator import Evaluator
from torch_estimator.runs.training_status import (
    TrainingStatus,
    read_status,
    write_status,
)
from torch_estimator.summary.scalar_reader import read_scalars

Happenings = Iterator[Callable[[], Any] | None]


class Job:
    """A chief that acts while the evaluator sleeps, a second at a time."""

    def __init__(self, model_dir: Path, max_steps: int | None = None, **settings: Any) -> None:
        self.chief = line(model_dir, **settings)
        self.model_dir = str(model_dir)
        self.max_steps = max_steps
        self.now = 0.0
        self.evaluated: list[tuple[float, int]] = []
        self.evaluator_settings: dict[str, Any] = {}
        self.is_killed_after: int | None = None

    def train(self, to: int) -> None:
        self.chief.train(lambda: points().repeat(), max_steps=to)

    def say(self, run: str, *, ended: bool) -> None:
        state = TrainingStatus(run=run, max_steps=self.max_steps, ended=ended)
        write_status(self.model_dir, state)

    def end(self) -> None:
        self.say("one", ended=True)

    def follow(
        self,
        happens: list[Callable[[], Any] | None],
        *exporters: WritingExporter,
        listener: te.ContinuousEvalListener | None = None,
        **spec: Any,
    ) -> list[Any] | None:
        """Runs an evaluator to its end; the n-th thing happens in the n-th second."""
        coming = iter(happens)

        def sleep(seconds: float) -> None:
            self.now += seconds
            thing = next(coming)
            if thing is not None:
                thing()

        settings = {"steps": 2, "start_delay_secs": 0, "throttle_secs": 0, "exporters": exporters, **spec}
        estimator = line(self.model_dir, **self.evaluator_settings)
        evaluate = estimator.evaluate

        def noted(*args: Any, **kwargs: Any) -> Any:
            results = evaluate(*args, **kwargs)
            self.evaluated.append((self.now, int(results["global_step"])))
            if self.is_killed_after == results["global_step"]:
                self.is_killed_after = None
                raise ConnectionError("killed after the evaluation")
            return results

        estimator.evaluate = noted  # type: ignore[method-assign]
        specs = [te.EvalSpec(points, **settings)]
        asked = listener or te.ContinuousEvalListener()
        return Evaluator(estimator, self.max_steps, specs, asked, clock=lambda: self.now, sleep=sleep).run()

    @property
    def steps(self) -> list[int]:
        return [step for _, step in self.evaluated]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_it_evaluates_what_is_new_and_ends_with_max_steps(tmp_path: Path) -> None:
    job, exporter = Job(tmp_path, max_steps=9), WritingExporter()
    outcomes = job.follow([lambda: job.train(3), None, lambda: job.train(6), lambda: job.train(9)], exporter)
    assert job.steps == exporter.steps == [3, 6, 9]
    assert exporter.finals == [False, False, True]
    assert outcomes is not None
    assert outcomes[0].metrics["global_step"] == 9
    assert not files.exists(f"{tmp_path}/evaluating")


def test_throttle_and_start_delay_count_between_evaluations_but_not_for_the_last(job: Job) -> None:
    happens: list[Any] = [lambda to=to: job.train(to) for to in range(1, 21)]
    job.follow([*happens, job.end], start_delay_secs=5, throttle_secs=8)
    # Training ends in the 21st second.
    assert job.evaluated == [(5, 5), (13, 13), (21, 20)]


def test_training_that_ends_early_ends_the_start_delay_and_has_its_final_export(job: Job) -> None:
    exporter = WritingExporter(only_final=True)
    job.follow([lambda: job.train(4), job.end], exporter, start_delay_secs=120, throttle_secs=600)
    assert job.evaluated == [(2, 4)]
    assert exporter.finals == [True]


def test_exporters_that_wait_for_the_final_model_get_it_where_it_was_evaluated_before_the_end(job: Job) -> None:
    final, every = WritingExporter("final", only_final=True), WritingExporter("every")
    job.follow([lambda: job.train(4), None, job.end], final, every)
    assert job.steps == [4]
    assert (final.finals, every.finals) == ([False, True], [False])


def test_a_training_without_a_step_ends_the_evaluator(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    assert job.follow([None, job.end]) is None
    assert caplog.messages.count(f"Waiting for the first checkpoint in {job.model_dir}.") == 1


def test_one_that_comes_after_a_killed_one_repeats_no_evaluation_and_loses_no_export(job: Job) -> None:
    job.train(3)
    first, second = WritingExporter("first"), WritingExporter("second", failures=1)
    with pytest.raises(ConnectionError):
        job.follow([], first, second)
    again = [WritingExporter("first"), WritingExporter("second")]
    job.follow([lambda: job.train(6), job.end], *again)
    assert job.steps == [3, 6]
    assert (first.steps, again[0].steps, again[1].steps) == ([3], [6], [3, 6])
    assert again[1].calls[0]["eval_result"]["loss"] == first.calls[0]["eval_result"]["loss"]
    assert again[1].calls[0]["eval_result"].batches == 2


def test_one_that_comes_after_the_end_does_what_is_left(job: Job) -> None:
    job.train(3)
    job.end()
    job.follow([None] * 10)
    assert job.steps == [3]


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has what comes believe that it runs in a process that was started just now."""
    now = time.time()
    monkeypatch.setattr("torch_estimator.executors.evaluator.process_start", lambda: now)


@pytest.mark.parametrize("max_steps", [None, 9])
def test_one_that_was_killed_after_all_was_done_ends_where_a_launcher_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_steps: int | None
) -> None:
    job, exporter = Job(tmp_path, max_steps), WritingExporter()
    monkeypatch.setenv(JOB_BEGAN, str(time.time() - 60))
    job.train(3)
    job.follow([job.end], exporter)
    start_again(monkeypatch)
    again = job.follow([], exporter)
    assert again is not None
    assert again[0].metrics["global_step"] == 3
    assert (job.steps, exporter.finals) == ([3], [False])
    # A job that has begun later is about to train.
    monkeypatch.setenv(JOB_BEGAN, str(time.time()))
    start_again(monkeypatch)
    begin = [*[None] * 60, lambda: job.say("two", ended=False), lambda: job.train(6)]
    job.follow([*begin, lambda: job.say("two", ended=True)], exporter)
    assert job.steps == [3, 6]


@pytest.mark.parametrize("max_steps", [(None, None), (3, 6)])
def test_one_that_was_killed_between_two_trainings_of_a_program_follows_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_steps: tuple[int | None, int | None]
) -> None:
    job, exporter = Job(tmp_path, max_steps[0]), WritingExporter()
    monkeypatch.setenv(JOB_BEGAN, str(time.time() - 60))
    job.train(3)
    job.say("one", ended=False)
    job.follow([job.end], exporter)
    job.end()
    start_again(monkeypatch)
    job.follow([], exporter)
    job.max_steps = max_steps[1]
    begin = [None, lambda: job.say("two", ended=False), lambda: job.train(6)]
    job.follow([*begin, lambda: job.say("two", ended=True)], exporter)
    assert job.steps == exporter.steps == [3, 6]


def test_one_that_was_killed_after_the_second_training_of_a_program_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_BEGAN, str(time.time() - 60))
    job = Job(tmp_path, 9)
    job.train(6)
    job.follow([lambda: job.say("two", ended=True)])
    start_again(monkeypatch)
    for max_steps in (3, 9):
        job.max_steps = max_steps
        job.follow([])
    assert job.steps == [6]


def test_the_end_of_an_earlier_training_is_not_that_of_the_next(job: Job) -> None:
    job.train(3)
    job.end()
    begin = [None, None, lambda: job.say("two", ended=False), lambda: job.train(6)]
    job.follow([*begin, lambda: job.say("two", ended=True)])
    assert job.steps == [3, 6]
    # This one has seen to the end of the second, and takes it for no other's.
    begin = [*[None] * 60, lambda: job.say("three", ended=False), lambda: job.train(9)]
    job.follow([*begin, lambda: job.say("three", ended=True)])
    assert job.steps == [3, 6, 9]


def test_a_training_with_other_max_steps_is_another_one(tmp_path: Path) -> None:
    before = Job(tmp_path, max_steps=3)
    before.train(3)
    before.end()
    job = Job(tmp_path, max_steps=6)
    job.follow([*[None] * 60, lambda: job.train(6)])
    assert job.steps == [3, 6]


class Overtaken(WritingExporter):
    """Fails at first; whether the checkpoint is still there is said by the job."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], Any] | None = meanwhile

    def export(self, *args: Any, **kwargs: Any) -> str | None:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
            raise te.errors.CheckpointError("it cannot be read")
        return super().export(*args, **kwargs)


@pytest.mark.parametrize("half", [False, True])
def test_a_checkpoint_that_disappears_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, half: bool
) -> None:
    job = Job(tmp_path, keep_checkpoint_max=1)
    path = f"{job.model_dir}/model.ckpt-3"

    def removed() -> None:
        hold_checkpoint(job.model_dir, None)
        job.train(6)
        assert not files.exists(path)
        if half:
            # Of what is just being removed, the directory is there to the last.
            files.makedirs(path)

    job.train(3)
    exporter = Overtaken(removed)
    job.follow([job.end], exporter)
    assert (job.steps, exporter.steps) == ([3, 6], [6])
    gone = f"Checkpoint {path} was removed before it was evaluated and exported; going on with the newest."
    assert gone in caplog.messages


def test_an_error_of_another_kind_ends_the_evaluator(job: Job) -> None:
    job.train(3)
    with pytest.raises(te.errors.CheckpointError, match="it cannot be read"):
        job.follow([], Overtaken(lambda: None))


def test_a_listener_stops_it_and_not_the_training(job: Job) -> None:
    class Once(te.ContinuousEvalListener):
        def after_eval(self) -> bool:
            return False

    class Never(te.ContinuousEvalListener):
        def before_eval(self) -> bool:
            return False

    job.train(3)
    assert job.follow([], listener=Never()) is None
    assert job.steps == []
    outcomes = job.follow([], listener=Once())
    assert outcomes is not None
    assert job.steps == [3]


def test_where_nothing_comes_it_says_so_every_ten_minutes(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.follow([*[None] * 1300, lambda: job.train(3), *[None] * 650, job.end])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    hint = "see whether the chief runs and has the same model_dir."
    assert warnings == [
        f"The evaluator has waited 600 s for the first checkpoint in {job.model_dir}; {hint}",
        f"The evaluator has waited 1200 s for the first checkpoint in {job.model_dir}; {hint}",
        f"The evaluator has waited 600 s for a checkpoint after that of step 3 in {job.model_dir}; {hint}",
    ]


def test_a_throttle_is_named_as_what_is_waited_for(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    job.train(3)
    job.follow([lambda: job.train(6), None, lambda: job.train(9), job.end], throttle_secs=100)
    assert job.steps == [3, 9]
    waits = [message for message in caplog.messages if message.startswith("Waiting for ")]
    assert waits == [
        f"Waiting for a checkpoint after that of step 3 in {job.model_dir}.",
        "Waiting for start_delay_secs or throttle_secs of EvalSpec to pass.",
    ]


def test_only_the_first_sign_of_a_training_has_a_deadline(job: Job) -> None:
    job.evaluator_settings = {"session_creation_timeout_secs": 20}
    late = "has ended|see whether the chief runs and has the same model_dir"
    with pytest.raises(
        te.errors.ClusterError, match=rf"waited 20 s \(session.*\) for the first checkpoint in .*{late}"
    ):
        job.follow([None] * 21)
    # The chief says that it trains, and compiles, and saves nothing for long.
    job.follow([lambda: job.say("one", ended=False), *[None] * 60, lambda: job.train(3), *[None] * 60, job.end])
    assert job.steps == [3]
    with pytest.raises(te.errors.ClusterError, match=r"waited 20 s .* for a training after .*training\.json \(its"):
        job.follow([None] * 21)


def test_a_chief_that_has_failed_is_waited_for_no_longer_than_for_the_first_sign(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    job.evaluator_settings = {"session_creation_timeout_secs": 20}

    def fail() -> None:
        run_failing_chief(job, te.errors.InvalidValueError("this does not train"))

    job.train(3)
    # It is started again in time.
    job.follow([fail, *[None] * 15, lambda: job.train(6), lambda: job.say("two", ended=False), *[None] * 30, job.end])
    assert job.steps == [3, 6]
    with pytest.raises(te.errors.ClusterError, match=r"waited 20 s .* started again after an error"):
        job.follow([fail, *[None] * 21])


def run_failing_chief(job: Job, error: BaseException, meanwhile: Callable[[], Any] = lambda: None) -> TrainingStatus:
    class Fails(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            meanwhile()
            raise error

    with pytest.raises(type(error)):
        run_chief(job.chief, te.TrainSpec(points, hooks=[Fails()]), (), te.ContinuousEvalListener())
    state = read_status(job.model_dir)
    assert state is not None
    return state


def lost_server() -> te.errors.ClusterError:
    error = te.errors.ClusterError("ps 0 is gone")
    error.exit_status = te.errors.RESTART_ME
    return error


@pytest.mark.parametrize("error", [lost_server(), te.UserError("no"), SystemExit(1), ValueError()])
def test_a_chief_that_ends_with_an_error_says_so(job: Job, error: BaseException) -> None:
    assert run_failing_chief(job, error).failed


@pytest.mark.parametrize("error", [SystemExit(te.errors.RESTART_ME), KeyboardInterrupt()])
def test_a_chief_that_is_about_to_be_started_again_has_not_failed(job: Job, error: BaseException) -> None:
    assert not run_failing_chief(job, error).failed


@pytest.mark.parametrize("left", [None, b"{"])
def test_a_chief_that_fails_says_so_also_where_what_it_said_is_gone(job: Job, left: bytes | None) -> None:
    def lose() -> None:
        files.remove_tree(f"{job.model_dir}/training.json")
        if left is not None:
            files.write_atomic(f"{job.model_dir}/training.json", left)

    assert run_failing_chief(job, ValueError(), lose).failed


@pytest.mark.parametrize("of_job", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_a_chief_with_nothing_left_to_train_leaves_what_was_told_of_another_training_of_its_job(
    job: Job, monkeypatch: pytest.MonkeyPatch, ended: bool, of_job: bool
) -> None:
    job.train(3)
    other = TrainingStatus(run="other", max_steps=9, ended=ended, began=time.time())
    write_status(job.model_dir, other)
    monkeypatch.setenv(JOB_BEGAN, str(other.began + (-60 if of_job else 60)))
    run_chief(job.chief, te.TrainSpec(points, max_steps=3), (), te.ContinuousEvalListener())
    state = read_status(job.model_dir)
    assert state is not None
    assert (state == other) == of_job
    assert state.ended == (ended or not of_job)


def test_a_chief_in_whose_place_another_one_trains_does_not_say_that_this_has_failed(job: Job) -> None:
    state = run_failing_chief(job, te.errors.CheckpointError("full"), lambda: job.say("another", ended=False))
    assert (state.run, state.failed) == ("another", False)


def test_the_last_checkpoint_of_a_chief_that_has_failed_is_evaluated_first(job: Job) -> None:
    job.evaluator_settings = {"session_creation_timeout_secs": 20}
    job.train(3)
    state = TrainingStatus(run="one", max_steps=None, failed=True)
    fails = [lambda: job.train(6), None, lambda: write_status(job.model_dir, state)]
    with pytest.raises(te.errors.ClusterError, match=r"waited 20 s .* started again after an error"):
        job.follow([*fails, *[None] * 20], throttle_secs=50)
    assert job.evaluated == [(0, 3), (3, 6)]
    assert job.now == 23


def test_a_chief_that_fails_before_its_first_checkpoint_is_waited_for_no_longer(job: Job) -> None:
    job.evaluator_settings = {"session_creation_timeout_secs": 20}
    state = TrainingStatus(run="one", max_steps=None, failed=True)
    with pytest.raises(te.errors.ClusterError, match=r"waited 20 s .* started again after an error"):
        job.follow([lambda: write_status(job.model_dir, state), *[None] * 21])


@pytest.mark.parametrize("left", [None, b"{", b"[]"])
def test_an_evaluator_goes_on_without_what_somebody_has_removed_or_damaged(job: Job, left: bytes | None) -> None:
    job.train(3)
    record = Path(job.model_dir, "evaluator.json")

    def damage() -> None:
        record.unlink() if left is None else record.write_bytes(left)
        job.train(6)

    job.follow([damage, job.end])
    assert job.steps == [3, 6]
    assert json.loads(record.read_text())["specs"][""]["step"] == 6


def test_an_evaluator_in_whose_place_another_one_has_come_says_so(job: Job) -> None:
    job.train(3)

    def another() -> None:
        job.train(6)
        now, other = job.now, Job(Path(job.model_dir))
        other.follow([lambda: other.train(9), other.end])
        job.now = now
        assert other.steps == [6, 9]

    with pytest.raises(
        te.errors.ClusterError, match=r"Another evaluator has taken over .* two processes have the same TF"
    ):
        job.follow([another, None])
    assert job.steps == [3]


def test_an_evaluator_ends_as_soon_as_another_one_is_there(job: Job) -> None:
    job.train(3)
    other = EvaluationRecord(job.model_dir)

    def comes() -> None:
        other.claim()
        job.train(6)

    with pytest.raises(te.errors.ClusterError, match="Another evaluator has taken over from this one"):
        job.follow([None, comes])
    assert (job.steps, job.now) == ([3], 2)
    # Who comes once more has the place again.
    job.follow([job.end])
    with pytest.raises(te.errors.ClusterError, match="Another evaluator"):
        other.claim()


def test_an_evaluator_that_comes_before_there_is_a_model_directory_makes_none(tmp_path: Path) -> None:
    job, seen = Job(tmp_path / "model"), []
    job.follow([lambda: seen.append(files.exists(job.model_dir)), lambda: job.train(3), None, job.end])
    assert seen == [False]
    assert job.steps == [3]


def test_other_max_steps_than_the_chief_s_are_named_and_the_chief_s_are_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mine, theirs in ((50, 6), (3, 6), (50, None)):
        job = Job(tmp_path / f"{mine} {theirs}", max_steps=theirs)
        exporter = WritingExporter(only_final=True)

        def begin(job: Job = job, mine: int = mine, theirs: int | None = theirs) -> None:
            job.max_steps = theirs
            job.say("one", ended=False)
            job.max_steps = mine

        def end(job: Job = job, theirs: int | None = theirs) -> None:
            job.max_steps = theirs
            job.end()

        job.max_steps = mine
        job.follow([begin, lambda job=job: job.train(3), None, lambda job=job: job.train(6), end], exporter)  # type: ignore[misc]
        assert job.steps == [3, 6]
        assert exporter.finals[-1]
        assert (
            f"TrainSpec has max_steps={mine} here, but max_steps={theirs} where training goes on, as "
            f"{job.model_dir}/training.json says; following that training to its end."
        ) in caplog.messages


def test_a_training_that_was_interrupted_with_other_max_steps_does_not_end_it(tmp_path: Path) -> None:
    before = Job(tmp_path, max_steps=3)
    before.train(3)
    before.say("one", ended=False)
    job = Job(tmp_path, max_steps=6)
    begin = [*[None] * 60, lambda: job.say("two", ended=False), lambda: job.train(6)]
    job.follow([*begin, lambda: job.say("two", ended=True)])
    assert job.steps == [3, 6]


def test_it_leaves_evaluating_to_a_chief_that_does_it(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    state = TrainingStatus(run="one", max_steps=None, evaluates=True)
    job.train(3)
    assert job.follow([lambda: write_status(job.model_dir, state)], start_delay_secs=10) is None
    assert job.steps == []
    assert "Worker 0 evaluates and exports, since the cluster of its TF_CONFIG names neither" in caplog.text


@pytest.mark.parametrize("name", [None, "named"])
def test_what_was_evaluated_and_written_before_a_kill_is_exported_and_not_evaluated_again(
    job: Job, name: str | None
) -> None:
    job.train(3)
    job.is_killed_after = 3
    killed, exporter = WritingExporter(), WritingExporter()
    with pytest.raises(ConnectionError):
        job.follow([], killed, name=name)
    job.follow([lambda: job.train(6), job.end], exporter, name=name)
    assert (job.steps, killed.steps, exporter.steps) == ([3, 6], [], [3, 6])
    written = read_scalars(f"{job.model_dir}/eval" if name is None else f"{job.model_dir}/eval_{name}")["loss"]
    assert written.steps.tolist() == [3, 6]
    assert exporter.calls[0]["eval_result"]["loss"] == written.values[0]
    assert exporter.calls[0]["checkpoint_path"] == f"{job.model_dir}/model.ckpt-3"


def test_what_somebody_else_has_evaluated_before_is_evaluated_here(job: Job) -> None:
    job.train(3)
    line(job.model_dir).evaluate(points, steps=1)
    job.follow([job.end])
    assert job.steps == [3]


def test_what_is_being_evaluated_is_not_removed(tmp_path: Path) -> None:
    job = Job(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=2)
    job.train(2)
    hold_checkpoint(job.model_dir, "model.ckpt-1")
    job.train(6)
    assert checkpoint_steps(tmp_path) == [1, 5, 6]
    hold_checkpoint(job.model_dir, None)
    job.train(7)
    assert checkpoint_steps(tmp_path) == [6, 7]


def test_the_chief_says_when_it_trains_and_when_that_is_over(tmp_path: Path) -> None:
    states: list[TrainingStatus | None] = []

    class Look(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            states.append(read_status(str(tmp_path)))

    chief = line(tmp_path)
    spec = te.TrainSpec(points, max_steps=2, hooks=[Look()])
    run_chief(chief, spec, [te.EvalSpec(points)], te.ContinuousEvalListener())
    ended = read_status(str(tmp_path))
    assert ended is not None
    assert ended.ended
    assert ended.max_steps == 2
    assert states == [TrainingStatus(run=ended.run, max_steps=2, began=ended.began)] * 2
    run_chief(chief, te.TrainSpec(points, max_steps=2), [te.EvalSpec(points)], te.ContinuousEvalListener())
    again = read_status(str(tmp_path))
    assert again == ended


@pytest.mark.parametrize("name", ["training.json", "evaluator.json"])
def test_damaged_files_are_named(job: Job, name: str) -> None:
    job.train(1)
    files.write_atomic(f"{job.model_dir}/{name}", b"{")
    with pytest.raises(te.errors.CheckpointError, match=rf"{name} is damaged: .*; remove it, and "):
        job.follow([])


@pytest.mark.parametrize("place", ["specs", "begun"])
def test_a_record_that_names_anything_but_a_checkpoint_is_damaged(job: Job, place: str) -> None:
    job.train(1)
    record = EvaluationRecord(job.model_dir)
    record.evaluated(None, f"{job.model_dir}/model.ckpt-1", {"global_step": 1}, final=False)
    record.begin(None, f"{job.model_dir}/model.ckpt-1")
    path = Path(job.model_dir, "evaluator.json")
    content = json.loads(path.read_text())
    (content["specs"][""] if place == "specs" else content["begun"])["checkpoint_path"] = "/home/other/job"
    path.write_text(json.dumps(content))
    with pytest.raises(te.errors.CheckpointError, match=r"evaluator.json is damaged: '/home/other/job' is not a check"):
        EvaluationRecord(job.model_dir)


def test_a_record_follows_its_model_dir_when_that_is_moved(job: Job) -> None:
    job.train(1)
    record = EvaluationRecord(job.model_dir)
    record.evaluated(None, f"{job.model_dir}/model.ckpt-1", {"global_step": 1}, final=False)
    moved = Path(job.model_dir).rename(f"{job.model_dir}-moved")
    found = EvaluationRecord(str(moved)).of(None)
    assert found is not None
    assert found.checkpoint_path == str(moved / "model.ckpt-1")
