"""Submit tiny programs as jobs, in a directory of the test, and end what a failed test left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_estimator.cli.main import main
from torch_estimator.jobs.directory import FINAL, JobDirectory, names
from torch_estimator.jobs.kinds import status_of

SECS = 120

BEGINNING = """
import json, os, pathlib, signal, sys, time

task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task.get('type', 'chief')}-{task.get('index', 0)}"
here = pathlib.Path.cwd()


def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.005)


"""


# At first worker 0 hangs, and the others wait for it.
WORKER_HANGS = """
from torch_estimator.activity import doing, waiting

is_first = not (here / me).exists()
(here / me).touch()
with doing("training", lambda: 412):
    if me == "worker-0" and is_first:
        time.sleep(1000)
    with waiting(lambda: ["worker 0"]):
        wait_for("go")
"""


class Jobs:
    """The jobs of a test, whose current directory is `folder`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def program(self, code: str) -> None:
        """Write ``trainer/task.py``."""
        (self.folder / "trainer").mkdir(exist_ok=True)
        (self.folder / "trainer" / "task.py").write_text(BEGINNING + textwrap.dedent(code))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run ``estimator jobs``; return its status, stdout and stderr."""
        self._capsys.readouterr()
        try:
            status = main(["jobs", *arguments])
        except SystemExit as exit:
            status = int(str(exit.code))
        return status, *self._capsys.readouterr()

    def submit(self, name: str, *arguments: str) -> None:
        """Submit ``trainer.task``; options, then ``--`` and arguments of the program."""
        status, _, err = self.run("submit", "training", name, "--module-name", "trainer.task", *arguments)
        assert status == 0, err

    def directory(self, name: str) -> JobDirectory:
        return JobDirectory(str(self.folder / "jobs"), name)

    def wait(self, name: str) -> str:
        """Wait for the end of a job; return its state."""
        wait_until(lambda: status_of(self.directory(name)).state in FINAL)
        return status_of(self.directory(name)).state

    def wait_for_line(self, name: str, role: str, text: str) -> None:
        """Wait until a role has printed a text."""
        wait_until(lambda: text in self.log(name, role))

    def log(self, name: str, role: str) -> str:
        """Return the log of a role without the times."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "jobs" / name / "logs" / f"{role}.log").read_text().splitlines()
            return "\n".join(line.partition(" ")[2] for line in lines)
        return ""

    def describe(self, name: str) -> dict[str, Any]:
        return json.loads(self.run("describe", name, "--format", "json")[1])

    def pid(self, name: str, role: str) -> int:
        """Return the process id that the events name for a role, the newest one."""
        return int(self.describe(name)["roles"][role]["pid"])

    def launcher(self, name: str) -> int:
        launched = self.directory(name).launched()
        assert launched is not None and launched.pid is not None
        return launched.pid


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Jobs]:
    """Jobs in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCH_ESTIMATOR_JOBS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    found = Jobs(tmp_path, capsys)
    yield found
    for name in names(str(tmp_path / "jobs")):
        if status_of(found.directory(name)).state not in FINAL:
            os.kill(found.launcher(name), signal.SIGKILL)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after two minutes."""
    deadline = time.monotonic() + SECS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
