"""A new place to run jobs is one class: the supervisor restarts, stops and reports through `Start` alone."""

from __future__ import annotations

import functools
import json
import re
import signal
import threading
from collections.abc import Callable

import pytest

from torch_estimator.cluster.task import Task
from torch_estimator.launch.job import Job, Limits
from torch_estimator.launch.layout import Layout
from torch_estimator.launch.process import Lines, Start
from torch_estimator.log import LOG_FORMAT


class Pod:
    """Process of a toy cluster: it exits with the next status of its task, or serves until it gets a signal.

    Args:
        statuses: Exit statuses of each task's successive starts; None runs until a signal comes.
        task: As for `Start`.
        lines: As for `Start`.
        on_exit: As for `Start`.
    """

    def __init__(
        self, statuses: dict[str, list[int | None]], task: Task, lines: Lines, on_exit: Callable[[int], None]
    ) -> None:
        self._on_exit = on_exit
        (stdout, prefix), _ = lines
        stdout.write(prefix + f"at {task.address}\n".encode())
        status = statuses[str(task)].pop(0)
        if status is not None:
            threading.Thread(target=on_exit, args=(status,)).start()

    @property
    def pid(self) -> None:
        pass

    def send(self, number: int) -> None:
        self._on_exit(-number)

    def wait_for_lines(self, secs: float) -> bool:
        return True


def test_a_job_runs_restarts_and_stops_tasks_in_a_new_place(capfd: pytest.CaptureFixture[str]) -> None:
    statuses: dict[str, list[int | None]] = {"chief 0": [-signal.SIGKILL, 0], "ps 0": [None]}
    start: Start = functools.partial(Pod, statuses)
    tasks = Layout(worker_count=0, parameter_server_count=1).tasks(["pod-0:2222", "pod-1:2222"])
    assert Job(start, tasks, Limits()).run() == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["[chief 0] at pod-0:2222", "[ps 0] at pod-1:2222", "[chief 0] at pod-0:2222"]
    assert err.splitlines() == [
        "[launcher] started chief 0, ps 0.",
        "[launcher] chief 0 was killed by SIGKILL; started chief 0 again, restart 1 of 3.",
    ]
    assert statuses == {"chief 0": [], "ps 0": []}


def test_a_job_ends_with_the_status_of_a_task_that_fails_too_often(capfd: pytest.CaptureFixture[str]) -> None:
    statuses: dict[str, list[int | None]] = {"chief 0": [3, 3], "worker 0": [None]}
    tasks = Layout(worker_count=1).tasks(["pod-0:2222", "pod-1:2222"])
    assert Job(functools.partial(Pod, statuses), tasks, Limits(max_restarts=1)).run() == 3
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "[launcher] chief 0 ended with status 3 and has no restart left (max_restarts=1); ending the job."


def test_the_launchers_lines_on_stderr_have_the_time(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LOG_FORMAT)
    tasks = Layout(worker_count=0, parameter_server_count=1).tasks(["pod-0:2222", "pod-1:2222"])
    assert Job(functools.partial(Pod, {"chief 0": [0], "ps 0": [None]}), tasks, Limits()).run() == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["[chief 0] at pod-0:2222", "[ps 0] at pod-1:2222"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4} \[launcher\] started chief 0, ps 0\.\n", err)


def test_the_launchers_lines_may_be_json(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    tasks = Layout(worker_count=0, parameter_server_count=1).tasks(["pod-0:2222", "pod-1:2222"])
    assert Job(functools.partial(Pod, {"chief 0": [0], "ps 0": [None]}), tasks, Limits()).run() == 0
    (line,) = capfd.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["process"], found["level"], found["message"]) == ("launcher", "INFO", "started chief 0, ps 0.")
