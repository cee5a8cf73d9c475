"""A process of a job on this machine."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

from torch_estimator.cluster.task import Task
from torch_estimator.launch.child import Child
from torch_estimator.launch.layout import tf_config
from torch_estimator.launch.output import Copying
from torch_estimator.launch.process import Lines
from torch_estimator.launch.program import Program

# A process that is to be started again at once does not wait for its last lines.
_LAST_LINES_SECS = 0.01


class LocalProcess:
    """A program at work as one task; ``functools.partial(LocalProcess, program)`` is a `Start`.

    Args:
        program: What it runs.
        task: Which one.
        lines: Where its stdout and its stderr go.
        on_end: Called from another thread with its exit status, that of a signal negative.
    """

    def __init__(self, program: Program, task: Task, lines: Lines, on_end: Callable[[int], None]) -> None:
        self._on_end = on_end
        self._child = Child(program.command(task), program.environ(tf_config(task)), stream=subprocess.PIPE)
        pipes = [pipe for pipe in (self._child.process.stdout, self._child.process.stderr) if pipe is not None]
        self._copies = [Copying(pipe, output, prefix) for pipe, (output, prefix) in zip(pipes, lines, strict=True)]
        threading.Thread(target=self._wait, daemon=True).start()

    def send(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        self._child.send(number)

    def wait_for_lines(self, secs: float) -> bool:
        """Waits until all that it has written is copied; returns whether it is."""
        return all(copy.wait(secs) for copy in self._copies)

    def _wait(self) -> None:
        status = self._child.wait()
        self.wait_for_lines(_LAST_LINES_SECS)
        self._on_end(status)
