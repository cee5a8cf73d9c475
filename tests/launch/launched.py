"""Run the launcher in a separate process, on tiny programs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster_jobs import ROOT

_MARK = "LAUNCHED_BY_TEST"
_SECS = 120

BEGINNING = """
import json, os, pathlib, signal, subprocess, sys, time

config = json.loads(os.environ["TF_CONFIG"])
role = config["task"].get("type", "alone")
me = f"{role} {config['task'].get('index', 0)}"
here = pathlib.Path(__file__).parent
(here / f"{me}.pid").write_text(str(os.getpid()))


def nth_start():
    with open(here / f"{me}.starts", "a+") as file:
        file.write("x")
        return file.tell()


def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.005)


def wait_for_end_of(*tasks):
    for task in tasks:
        wait_for(f"{task}.pid")
        while not (process := (here / f"{task}.pid").read_text()) or pathlib.Path("/proc", process).exists():
            time.sleep(0.005)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


"""

LAUNCHED: list[Launched] = []
"""Launchers that the current test started."""


class Launched:
    """Running ``estimator local train`` with a program, ``trainer.task`` in `folder`.

    Args:
        folder: Folder into which the program is written, and the launcher's current folder.
        program: Python code that follows `BEGINNING`.
        options: Options of ``estimator local train``; after ``--``, arguments of the program.
        settings: Further arguments of ``subprocess.Popen``.
    """

    def __init__(self, folder: Path, program: str, *options: str, **settings: Any) -> None:
        self.package = folder / "trainer"
        self.package.mkdir(exist_ok=True)
        (self.package / "task.py").write_text(BEGINNING + textwrap.dedent(program))
        self._streams = {"stdout": folder / "stdout", "stderr": folder / "stderr"}
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        own = [sys.executable, "-m", "torch_estimator.cli", "local", "train", "--module-name", "trainer.task"]
        with contextlib.ExitStack() as files:
            opened = {stream: files.enter_context(path.open("wb")) for stream, path in self._streams.items()}
            # A shell that runs the tests in the background ignores SIGINT, and child processes inherit that.
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            self.process = subprocess.Popen(
                [*own, *options],
                env={**os.environ, "PYTHONPATH": str(ROOT), name: value, **settings.pop("env", {})},
                **{"cwd": folder, **opened, **settings},
            )
            signal.signal(signal.SIGINT, before)
        LAUNCHED.append(self)

    @property
    def out(self) -> str:
        """Everything on stdout so far."""
        return self._streams["stdout"].read_text()

    @property
    def err(self) -> str:
        """Everything on stderr so far."""
        return self._streams["stderr"].read_text()

    @property
    def err_without_pids(self) -> str:
        """The same without the process ids that the launcher names."""
        return re.sub(r" \(pid \d+\)", "", self.err)

    def end(self) -> int:
        """Wait until the launcher and all its processes have ended; return the launcher's exit status."""
        self.process.wait(_SECS)
        wait_until(lambda: not self.left())
        return self.process.returncode

    def clean_up(self) -> None:
        """Kill what a failed test left running."""
        self.process.kill()
        self.process.wait()
        for process in self.left():
            os.kill(process, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def read_until(self, text: str) -> None:
        """Wait until stdout contains a text."""
        wait_until(lambda: text in self.out or self.process.poll() is not None)
        assert text in self.out

    def touch(self, name: str) -> None:
        """Create the file that the program waits for."""
        (self.package / name).touch()

    def starts(self, task: str) -> int:
        """Return how often a program that calls ``nth_start`` was started."""
        return len((self.package / f"{task}.starts").read_text())

    def left(self) -> list[int]:
        """Return the processes that the launcher started, and those that they started."""
        return [one for one in processes_whose_environ_has(self._mark) if one != self.process.pid]


def processes_whose_environ_has(text: str) -> list[int]:
    """Return the ids of the running processes that have a text in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if text.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after two minutes."""
    deadline = time.monotonic() + _SECS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
