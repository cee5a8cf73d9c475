"""A tracked training is one run over all restarts, each step in it once; a tracker that fails does not end it.

The tests of MLflow and W&B are skipped where these are not installed; CONTRIBUTING.md says how to run them.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.cluster_jobs import Cluster, Process, ended
from tests.line_jobs import line, points
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.tracking import TrackedPoint, TrackedRun

PROGRAM = """
import os, signal, sys, threading, types
import torch_estimator as te
from tests.hooks.test_tracking import Ledger, tracker_of
from tests.line_jobs import line, points

kind, directory, how = sys.argv[1:]
sending, stored = threading.Event(), threading.Event()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Killing:
    def __init__(self, tracker):
        self.tracker = tracker

    def send(self, run, points):
        if points:
            sending.set()
        if how == "in sending" and points:
            self.tracker.send(run, points[: len(points) // 2])
            die()
        if how == "in storing" and kind == "wandb":
            from torch_estimator.hooks import trackers

            trackers.files = types.SimpleNamespace(**{**vars(trackers.files), "write_atomic": lambda *arguments: die()})
        try:
            self.tracker.send(run, points)
        finally:
            # A tracker that fails must not leave the training waiting.
            if points:
                stored.set()
        if points and how in ("after sending", "in storing"):
            die()


class Pace(te.Hook):
    "Leaves the tracker time, and ends the process between two checkpoints."

    def after_step(self, context):
        if how != "end" and context.global_step % 20 == 13 and sending.wait(2.0):
            stored.wait()
            if how == "in training":
                die()


hook = te.TrackingHook(Killing(tracker_of(kind, directory)), parameters={"momentum": 0.9}, every_n_steps=3)
hook.send_every_secs = 0.0
te.train_and_evaluate(
    line(os.path.join(directory, "job"), save_checkpoints_steps=20, compile=False),
    te.TrainSpec(lambda: points().repeat(), max_steps=600, hooks=[hook, Pace()]),
    te.EvalSpec(points, throttle_secs=0),
)
"""

# W&B waits 30 s for its background process, which is not enough on a machine that is busy with tests.
PATIENT = {"WANDB__SERVICE_WAIT": "150"}

KILLS = ["in sending", "in training", "after sending", "in storing", "in training"]

Curves = dict[str, list[tuple[int, float]]]


class Ledger:
    """Tracker that appends what it is sent to a file, a line for each point."""

    def __init__(self, path: str) -> None:
        self.path = path

    def send(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        lines = [json.dumps([run.id, one.tag, one.step, one.value, one.time]) for one in points]
        with open(self.path, "a") as file:
            file.writelines(f"{line}\n" for line in lines)


class Kept:
    """Tracker that keeps what it is sent, once, unless it is down."""

    def __init__(self) -> None:
        self.is_down = False
        self.runs: list[TrackedRun] = []
        self.points: list[TrackedPoint] = []

    def send(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        if self.is_down:
            raise ConnectionError("the server is down")
        self.runs.append(run)
        # The last points of a start may be sent again by the next one, as they were.
        self.points += [one for one in points if one not in self.points]

    def steps(self, tag: str) -> list[int]:
        return [one.step for one in self.points if one.tag == tag]


def tracker_of(kind: str, directory: str) -> Any:
    if kind == "mlflow":
        return te.MLflowTracker(f"sqlite:///{directory}/mlflow.db", experiment="lines")
    return te.WandbTracker("lines", mode="offline") if kind == "wandb" else Ledger(f"{directory}/ledger")


def ledger_runs(directory: Path) -> tuple[int, Curves]:
    """The number of runs and the curves; a point that was sent twice counts once if it was the same."""
    told = {tuple(json.loads(one)) for one in (directory / "ledger").read_text().splitlines()}
    curves: Curves = {}
    for _, tag, step, value, _ in sorted(told):
        curves.setdefault(tag, []).append((step, value))
    return len({one[0] for one in told}), curves


def mlflow_runs(directory: Path) -> tuple[int, Curves]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{directory}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("lines").experiment_id])
    run = runs[0]
    assert (run.info.status, run.data.params, run.info.run_name) == ("FINISHED", {"momentum": "0.9"}, "job")
    histories = {tag: client.get_metric_history(run.info.run_id, tag) for tag in run.data.metrics}
    return len(runs), {tag: sorted((one.step, one.value) for one in several) for tag, several in histories.items()}


def wandb_runs(directory: Path) -> tuple[int, Curves]:
    from wandb.proto import wandb_internal_pb2

    files = sorted(directory.glob("job/wandb/offline-run-*/run-*.wandb"))
    curves: Curves = {}
    for file in files:
        for data in records_of(file.read_bytes()):
            items = wandb_internal_pb2.Record.FromString(data).history.item
            row = {(one.key or ".".join(one.nested_key)): json.loads(one.value_json) for one in items}
            for tag in row.keys() - {"global_step"}:
                if not tag.startswith("_"):
                    curves.setdefault(tag, []).append((row["global_step"], row[tag]))
    return len({file.name for file in files}), curves


def records_of(log: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format with blocks of 32 KiB, after W&B's header of 7 bytes."""
    position, record = 7, b""
    while position + 7 <= len(log):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", log[position : position + 7])
        record += log[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


READERS = {"ledger": ledger_runs, "mlflow": mlflow_runs, "wandb": wandb_runs}


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("kind", list(READERS))
def test_a_job_killed_five_times_is_one_run_with_the_curves_of_an_undisturbed_one(tmp_path: Path, kind: str) -> None:
    if kind != "ledger":
        pytest.importorskip(kind, reason=f"{kind} is an extra: pip install 'torch-estimator[{kind}]'")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
    told = [ended([Process(PROGRAM, [kind, str(killed), how], PATIENT)])[0] for how in KILLS]
    told += ended([Process(PROGRAM, [kind, str(one), "end"], PATIENT) for one in (killed, whole)])
    assert [one.status for one in told] == [-9] * len(KILLS) + [0, 0], "\n".join(one.output for one in told)
    assert not any("has failed" in one.output for one in told)
    runs, curves = READERS[kind](whole)
    assert (runs, [step for step, _ in curves["loss"]]) == (1, list(range(3, 601, 3)))
    assert [step for step, _ in curves["eval/loss"]] == list(range(20, 601, 20))
    again, others = READERS[kind](killed)
    assert again == 1
    for tag, several in others.items():
        twice = [step for step, times in Counter(step for step, _ in several).items() if times > 1]
        assert not twice, (tag, twice)
    evaluated = dict(others.pop("eval/loss"))
    assert evaluated.items() <= dict(curves.pop("eval/loss")).items()
    assert 600 in evaluated
    assert others == curves


def test_a_point_is_sent_once_its_checkpoint_is_saved(tmp_path: Path) -> None:
    kept = Kept()
    hook = te.TrackingHook(kept, every_n_steps=2)
    hook.send_every_secs = 0.0
    sent: dict[int, list[int]] = {}

    class Look(te.Hook):
        after_saving = True

        def after_step(self, context: RunContext) -> None:
            if hook._thread is not None:
                hook._thread.join()
            sent[context.global_step] = kept.steps("loss")

    estimator = line(tmp_path, save_checkpoints_steps=10)
    estimator.train(points, steps=15, hooks=[hook, Look()])
    assert all(not steps or max(steps) <= 10 * (now // 10) for now, steps in sent.items()), sent
    assert kept.steps("loss") == kept.steps("learning_rate") == [2, 4, 6, 8, 10, 12, 14]
    assert [one.ended for one in kept.runs][-1]
    # The steps are those of the job, not of the start.
    estimator.train(points, steps=6, hooks=[hook])
    assert kept.steps("loss") == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert len({one.id for one in kept.runs}) == 1


def test_steps_that_an_error_undid_are_not_sent(tmp_path: Path) -> None:
    kept = Kept()

    class Fails(te.Hook):
        def after_step(self, context: RunContext) -> None:
            if context.global_step == 15:
                raise KeyError("of the test")

    estimator = line(tmp_path, save_checkpoints_steps=10)
    with pytest.raises(KeyError):
        estimator.train(points, steps=20, hooks=[te.TrackingHook(kept, every_n_steps=1), Fails()])
    assert not kept.points
    estimator.train(points, max_steps=20, hooks=[te.TrackingHook(kept, every_n_steps=1)])
    assert kept.steps("loss") == list(range(1, 21))


def test_another_job_is_another_run_and_so_is_a_start_without_checkpoints(tmp_path: Path) -> None:
    kept = Kept()
    hook = te.TrackingHook(kept, parameters={"lr": 0.1}, every_n_steps=5)
    line(tmp_path / "one").train(points, steps=10, hooks=[hook])
    for _ in range(2):
        without = line(tmp_path / "two", save_checkpoints_steps=None, save_checkpoints_secs=None)
        without.train(points, steps=10, hooks=[hook])
    assert kept.steps("loss") == [5, 10] * 3
    assert len({one.id for one in kept.runs}) == 3
    assert {(one.model_dir, one.parameters["lr"]) for one in kept.runs} == {
        (str(tmp_path / "one"), 0.1),
        (str(tmp_path / "two"), 0.1),
    }


def test_numbers_that_the_model_summarizes_are_sent(tmp_path: Path) -> None:
    from tests.summary.test_summary import summarized

    kept = Kept()
    summarized(tmp_path).train(points, steps=4, hooks=[te.TrackingHook(kept, every_n_steps=2)])
    assert {one.tag for one in kept.points} == {"loss", "learning_rate", "error", "hidden/mean"}


@pytest.mark.parametrize("throttle_secs", [0, 600])
def test_the_last_evaluation_is_sent_also_if_it_is_made_after_training(tmp_path: Path, throttle_secs: int) -> None:
    kept = Kept()
    te.train_and_evaluate(
        line(tmp_path, save_checkpoints_steps=10),
        te.TrainSpec(lambda: points(rows=100), hooks=[te.TrackingHook(kept, every_n_steps=5)]),
        te.EvalSpec(points, throttle_secs=throttle_secs, name="held_out"),
    )
    steps = kept.steps("eval_held_out/loss")
    assert steps == ([10, 20, 25] if throttle_secs == 0 else [10, 25])
    assert kept.runs[-1].ended


CLUSTER = """
import sys
import torch_estimator as te
from tests.hooks.test_tracking import Ledger
from tests.line_jobs import line, points

hook = te.TrackingHook(Ledger(sys.argv[1] + "/ledger"), every_n_steps=5)
te.train_and_evaluate(
    line(sys.argv[1] + "/job", save_checkpoints_steps=10, train_distribute=te.distribute.MultiWorkerMirroredStrategy()),
    te.TrainSpec(lambda: points().repeat(), max_steps=30, hooks=[hook]),
    te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0),
)
"""


def test_in_a_cluster_the_chief_sends_and_the_evaluator_what_it_evaluates_last(tmp_path: Path) -> None:
    cluster = Cluster(CLUSTER, workers=1)
    processes = [cluster.start(task, tmp_path) for task in (*cluster.tasks, ("evaluator", 0))]
    told = ended(processes)
    assert [one.status for one in told] == [0, 0, 0], "\n".join(one.output for one in told)
    runs, curves = ledger_runs(tmp_path)
    assert runs == 1
    assert [step for step, _ in curves["loss"]] == [5, 10, 15, 20, 25, 30]
    assert curves["eval/loss"][-1][0] == 30


def test_a_tracker_that_fails_is_warned_of_once_and_gets_everything_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept()
    for is_down in (True, False):
        kept.is_down = is_down
        hook = te.TrackingHook(kept, every_n_steps=5)
        hook.send_every_secs = 0.0
        line(tmp_path, save_checkpoints_steps=10).train(points, steps=30, hooks=[hook])
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert warnings == [
        "Kept has failed: ConnectionError: the server is down. Training goes on; what is not sent is sent later, at "
        "the latest when training goes on after a restart."
    ]
    assert kept.steps("loss") == list(range(5, 61, 5))


def test_a_hook_that_joins_a_job_is_not_sent_before_a_checkpoint_has_its_run(tmp_path: Path) -> None:
    estimator = line(tmp_path, save_checkpoints_steps=10)
    estimator.train(points, steps=10)
    kept = Kept()
    hook = te.TrackingHook(kept, every_n_steps=1)
    hook.send_every_secs = 0.0

    class Fails(te.Hook):
        def after_step(self, context: RunContext) -> None:
            if context.global_step == 15:
                assert hook._thread is not None
                hook._thread.join()
                raise KeyError("of the test")

    with pytest.raises(KeyError):
        estimator.train(points, steps=10, hooks=[hook, Fails()])
    assert not kept.runs
    estimator.train(points, steps=10, hooks=[hook])
    assert kept.steps("loss") == list(range(11, 21))
    assert len({one.id for one in kept.runs}) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tracker": "mlflow"}, TypeError, "tracker must be an object with a method send, but got 'mlflow'."),
        ({"tracker": Kept}, TypeError, "tracker must be an object with a method send, but got <class"),
        ({"parameters": [1]}, TypeError, r"parameters must be a dict, but got \[1\]."),
        ({"every_n_steps": 0}, ValueError, "every_n_steps of TrackingHook must be positive, but got 0."),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        te.TrackingHook(**{"tracker": Kept(), **arguments})


def test_it_is_refused_for_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^TrackingHook is for trainings, but this run's mode is eval; give the hook"):
        line(tmp_path).evaluate(points, steps=1, hooks=[te.TrackingHook(Kept())])


@pytest.mark.parametrize(("make", "package"), [(te.MLflowTracker, "mlflow"), (te.WandbTracker, "wandb")])
def test_a_missing_package_is_named_with_its_extra(
    make: type[Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"needs {package}, which is .* pip install 'torch-estimator\[{package}\]'"):
        make()


@pytest.mark.parametrize("place", ["runs/mlruns", "/runs", "./runs", "~/runs", "file:///runs", "C:\\runs"])
def test_mlflow_is_not_given_a_directory(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match=r"^tracking_uri must be a database or a server, because MLflow no longer"):
        te.MLflowTracker(place)


def test_what_the_tracker_of_wandb_sets_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match=r"^WandbTracker sets 'resume' of wandb.init itself; leave it out\.$"):
        te.WandbTracker(resume="must")
