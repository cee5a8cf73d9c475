"""What trainings record: in one process and in clusters, whose processes are killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import torch_estimator as te
from tests.cluster_jobs import Cluster, Process, ended, wait_until
from tests.line_jobs import WritingExporter, line, points
from torch_estimator.activity.timeline import Change, Run, read_runs

CLUSTER = """
import sys, time
from functools import partial
from pathlib import Path

import torch
import torch_estimator as te
from tests.line_jobs import Line, points, squared_error

model_dir = Path(sys.argv[1])


def model_fn(mode):
    # Workers that do not wait for each other must not diverge.
    optimizer = partial(torch.optim.SGD, lr=1e-4)
    return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=optimizer)


class Stop(te.Hook):
    def after_step(self, context):
        time.sleep(0.002)
        if (model_dir / "finish").exists():
            context.request_stop()


config = te.RunConfig(save_checkpoints_secs=1, compile=False, experimental_max_worker_delay_secs=0)
with te.errors.exit_on_user_error():
    te.train_and_evaluate(
        te.Estimator(model_fn, str(model_dir), config),
        te.TrainSpec(lambda: points().repeat(), max_steps=10**9, hooks=[Stop()]),
        te.EvalSpec(points, steps=2, throttle_secs=1000),
    )
"""


def only_run(model_dir: Path, role: str = "chief-0") -> Run:
    (run,) = [run for run in read_runs(model_dir) if run.role == role]
    return run


def test_a_training_records_its_checkpoints_evaluations_and_exports(tmp_path: Path) -> None:
    began = time.time()
    estimator = line(tmp_path, save_checkpoints_steps=5, compile=False)
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(points, max_steps=10),
        te.EvalSpec(points, steps=2, throttle_secs=0, exporters=WritingExporter()),
    )
    run = only_run(tmp_path)
    assert [(change.state, change.step) for change in run.changes] == [
        ("starting", None),
        ("training", 0),
        ("saving", 0),
        ("training", 0),
        *((state, 5) for state in ("saving", "training", "evaluating", "training", "exporting", "training")),
        *((state, 10) for state in ("saving", "training", "evaluating", "training", "exporting", "training", "ended")),
    ]
    assert run.end is not None
    assert (run.end.reason, run.end.failed) == ("the last step was reached", False)
    spent = run.spent[-1]
    parts = (spent.starting, spent.computing, spent.input, spent.saving, spent.evaluating)
    assert min(parts[0], parts[1], *parts[3:]) > 0
    assert sum(parts) == pytest.approx(run.last_seen - run.began, rel=0.25)
    assert (spent.servers, spent.others) == (0, 0)
    assert began - 0.01 < run.began < run.last_seen < time.time() + 0.01


class SlowRows:
    """Rows that come slowly, and the seconds that this took."""

    def __init__(self) -> None:
        self.secs = 0.0

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        while True:
            began = time.monotonic()
            threading.Event().wait(0.05)
            self.secs += time.monotonic() - began
            yield {"x": np.zeros((4, 2), np.float32)}, np.zeros((4, 1), np.float32)


@pytest.mark.parametrize("prefetches", [False, True])
def test_a_slow_input_is_where_the_time_goes(tmp_path: Path, prefetches: bool) -> None:
    rows = SlowRows()

    def read() -> te.data.Dataset:
        data = te.data.Dataset.from_iterable(rows)
        return data.prefetch(1) if prefetches else data

    line(tmp_path, compile=False).train(read, steps=40)
    spent = only_run(tmp_path).spent[-1]
    assert spent.input == pytest.approx(rows.secs, rel=0.1)
    assert spent.computing < rows.secs / 2


def test_an_evaluation_and_a_prediction_alone_record_nothing(tmp_path: Path) -> None:
    line(tmp_path).train(points, steps=1)
    before = read_runs(tmp_path)
    line(tmp_path).evaluate(points, steps=1)
    next(iter(line(tmp_path).predict(points)))
    assert read_runs(tmp_path) == before


class Running:
    """A cluster whose processes run, and the runs that they have recorded."""

    def __init__(self, model_dir: Path, *, servers: int) -> None:
        self._cluster = Cluster(CLUSTER, 1, servers)
        self._model_dir = model_dir
        self.processes: dict[tuple[str, int], Process] = {}
        for task in self._cluster.tasks:
            self.start(task)

    def start(self, task: tuple[str, int]) -> None:
        self.processes[task] = self._cluster.start(task, self._model_dir)

    def runs(self, role: str) -> list[Run]:
        return [run for run in read_runs(self._model_dir) if run.role == role]

    def until(self, holds: Callable[[Run], bool], role: str) -> None:
        """Wait until something holds of the last run of a role."""
        wait_until(lambda: any(map(holds, self.runs(role)[-1:])))

    def replace(self, task: tuple[str, int], role: str, seen_by: str) -> tuple[float, float]:
        """Kill a process; start it again once another role is seen to wait for it. Return the times of both."""
        killed = time.time()
        self.processes[task].kill()
        self.until(lambda run: waits_for(run) == (role,), seen_by)
        again = time.time()
        self.start(task)
        self.until(lambda run: run.changes[-1].state == "training", seen_by)
        return killed, again

    def finish(self) -> None:
        (self._model_dir / "finish").touch()
        assert {one.status: one.output for one in ended(list(self.processes.values()))}.keys() == {0}


def waits_for(run: Run) -> tuple[str, ...]:
    return run.changes[-1].waits_for


def wait_at(time: float, run: Run, role: str) -> tuple[Change, Change]:
    """Return the beginning and the end of the wait for a role at a time."""
    pairs = zip(run.changes, run.changes[1:], strict=False)
    (found,) = [one for one in pairs if one[0].waits_for == (role,) and one[0].time < time < one[1].time]
    return found


def test_a_worker_that_was_killed_is_seen_in_its_lane_and_in_that_of_the_one_that_waits(tmp_path: Path) -> None:
    running = Running(tmp_path, servers=0)
    running.until(lambda run: (run.spent[-1].step or 0) > 60, "chief-0")
    killed, again = running.replace(("worker", 0), "worker-0", "chief-0")
    running.finish()

    lost, replacement = running.runs("worker-0")
    assert lost.end is None
    assert killed - 5 < lost.last_seen < killed + 0.1
    assert replacement.end is not None
    assert replacement.began > again
    (chief,) = running.runs("chief-0")
    begin, end = wait_at(again, chief, "worker-0")
    # A process that is slow on a busy machine keeps others waiting before it is killed, too.
    assert begin.time > killed - 5
    assert end.state == "training"
    assert chief.spent[-1].others > 0.9 * (end.time - begin.time)
    assert chief.end is not None


def test_workers_wait_for_a_parameter_server_that_was_killed(tmp_path: Path) -> None:
    running = Running(tmp_path, servers=1)
    running.until(lambda run: (run.spent[-1].step or 0) > 60, "ps-0")
    killed, again = running.replace(("ps", 0), "ps-0", "chief-0")
    running.finish()

    assert [run.end is None for run in running.runs("ps-0")] == [True, False]
    for role in ("chief-0", "worker-0"):
        (run,) = running.runs(role)
        begin, end = wait_at(again, run, "ps-0")
        assert begin.time > killed - 5
        assert run.spent[-1].servers > 0.9 * (end.time - begin.time)
    server = running.runs("ps-0")[-1]
    assert [change.state for change in server.changes] == ["starting", "serving", "ended"]
    assert min(server.spent[-1].computing, server.spent[-1].others) > 0
