"""One process of a job."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torch_estimator.cluster.task import Task
from torch_estimator.jobs import bound
from torch_estimator.jobs.local_cluster import tf_config
from torch_estimator.jobs.output import Copying, Output
from torch_estimator.jobs.program import Program

# A process that is to be started again at once does not wait for its last lines.
_LAST_LINES_SECS = 0.01


class Process:
    """A program at work as one task, in a process group of its own.

    Args:
        task: Which one.
        program: What it runs.
        outputs: Where its stdout and its stderr go.
        color: Number of its color there.
        on_end: Called from another thread with the process and its exit status, that of a signal negative.

    Attributes:
        was_told: Whether it has been told to end.
        deadline: When it will be told, or killed where it was, on the caller's clock.
    """

    def __init__(
        self,
        task: Task,
        program: Program,
        outputs: Sequence[Output],
        color: int,
        on_end: Callable[[Process, int], None],
    ) -> None:
        self.task = task
        self.was_told = False
        self.deadline = math.inf
        self._on_end = on_end
        # Isolated and without site-packages, the script takes some 20 ms.
        binding = [sys.executable, "-I", "-S", str(Path(bound.__file__)), str(os.getpid())]
        self._process = subprocess.Popen(
            [*binding, *program.command(task)],
            env=program.environ(tf_config(task)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        self._copies = [
            Copying(pipe, output, output.prefix(str(task), color) if task.is_of_cluster else b"")
            for pipe, output in zip(pipes, outputs, strict=True)
        ]
        threading.Thread(target=self._wait, daemon=True).start()

    def __str__(self) -> str:
        return str(self.task) if self.task.is_of_cluster else "the program"

    def end_by(self, deadline: float) -> None:
        """Sets a time, unless there is an earlier one."""
        self.deadline = min(self.deadline, deadline)

    def press(self, now: float, stop_secs: float) -> None:
        """Tells it to end, and kills it where it was told."""
        self.deadline = math.inf if self.was_told else now + stop_secs
        self._send(signal.SIGKILL if self.was_told else signal.SIGTERM)
        self.was_told = True

    def kill(self) -> None:
        """Kills it, and all that it has started in its group."""
        self.was_told = True
        self.deadline = math.inf
        self._send(signal.SIGKILL)

    def wait_for_lines(self, secs: float) -> bool:
        """Waits until all that it has written is copied; returns whether it is."""
        return all(copy.wait(secs) for copy in self._copies)

    def _wait(self) -> None:
        status = self._process.wait()
        # What it has left behind would be nobody's.
        self._kill_group(signal.SIGKILL)
        self.wait_for_lines(_LAST_LINES_SECS)
        self._on_end(self, status)

    def _send(self, number: int) -> None:
        if self._process.returncode is None:
            self._kill_group(number)

    def _kill_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
