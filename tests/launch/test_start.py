"""A new place to run jobs is one class: the supervisor restarts, stops and reports through `Start` alone."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import re
import signal
import threading
from collections.abc import Callable

import pytest

from torch_estimator.cluster.task import Task
from torch_estimator.errors import UserError
from torch_estimator.launch.job import Event, Job, Limits
from torch_estimator.launch.layout import Layout
from torch_estimator.launch.lines import WriteLine
from torch_estimator.launch.process import Start
from torch_estimator.log import LOG_FORMAT


class Pod:
    """Process of a toy cluster: it exits with the next status of its task, or serves until it gets a signal.

    Args:
        statuses: Exit statuses of each task's successive starts; None runs until a signal comes.
        task: As for `Start`.
        write: As for `Start`.
        on_exit: As for `Start`.
    """

    def __init__(
        self, statuses: dict[str, list[int | None]], task: Task, write: WriteLine, on_exit: Callable[[int], None]
    ) -> None:
        self._on_exit = on_exit
        write(f"at {task.address}".encode(), False)
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


def test_lines_and_events_go_to_the_objects_that_a_job_is_given() -> None:
    class Log:
        def __init__(self) -> None:
            self.lines: list[tuple[str, bytes, bool]] = []

        def write(self, task: Task | None, line: bytes, is_stderr: bool) -> None:
            self.lines.append((str(task or ""), line, is_stderr))

    log, events = Log(), list[Event]()
    tasks = Layout(worker_count=0).tasks(["pod-0:2222"])
    limits = Limits(max_restarts=1)
    assert Job(functools.partial(Pod, {"chief 0": [3, 4]}), tasks, limits, lines=log, observe=events.append).run() == 4
    chief, reason = tasks[0], "chief 0 ended with status 4 and has no restart left (max_restarts=1); ending the job."
    assert log.lines == [
        ("chief 0", b"at pod-0:2222", False),
        ("chief 0", b"at pod-0:2222", False),
        ("", b"chief 0 ended with status 3; started chief 0 again, restart 1 of 1.", True),
        ("", reason.encode(), True),
    ]
    assert events == [
        Event(kind="started", task=chief),
        Event(kind="exited", task=chief, status=3),
        Event(kind="started", task=chief),
        Event(kind="exited", task=chief, status=4),
        Event(kind="ending", status=4, reason=reason),
    ]


def test_a_job_ends_where_its_lines_cannot_be_written() -> None:
    class Full:
        def write(self, task: Task | None, line: bytes, is_stderr: bool) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    tasks = Layout(worker_count=0, parameter_server_count=1).tasks(["pod-0:2222", "pod-1:2222"])
    with pytest.raises(UserError, match=r"its output cannot be written: No space left on device\."):
        Job(functools.partial(Pod, {"chief 0": [None], "ps 0": [None]}), tasks, Limits(), lines=Full()).run()


def test_a_task_that_has_run_for_long_has_all_its_restarts_again(capfd: pytest.CaptureFixture[str]) -> None:
    # A day passes whenever the job looks at the clock.
    days = itertools.count()
    limits = Limits(max_restarts=1, forget_secs=1.0)
    tasks = Layout(worker_count=0).tasks(["pod-0:2222"])
    start = functools.partial(Pod, {"chief 0": [3, 3, 3, 0]})
    assert Job(start, tasks, limits, clock=lambda: 86_400.0 * next(days)).run() == 0
    assert capfd.readouterr().err.count("started chief 0 again, restart 1 of 1.") == 3


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
