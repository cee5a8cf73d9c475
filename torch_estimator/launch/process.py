"""Processes of a job: the interface `Start`, and its implementation for this machine.

`torch_estimator.launch.job.Job` decides when a task is started, stopped and restarted. A `Start` decides how and where
the process of the task runs. To run jobs in another place (Kubernetes, another scheduler), implement `Start`; the job
needs no change.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch_estimator.cluster.task import Task
from torch_estimator.launch.layout import Program
from torch_estimator.launch.lines import LineCopier, WriteLine
from torch_estimator.processes.child import Child

# Wait this long for the last lines of an exited process before its exit is reported.
_LAST_LINES_SECS = 0.01


class RunningProcess(Protocol):
    """A started process, on this machine or elsewhere."""

    @property
    def pid(self) -> int | None:
        """Process id on this machine, which the launcher's log names; None if the process is elsewhere."""

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has exited.

        The job sends SIGTERM to ask for an end and SIGKILL to force it.
        """

    def wait_for_lines(self, secs: float) -> bool:
        """Wait at most `secs` until all output of the process is shown; return whether all is shown.

        An implementation whose output reaches the user by another way returns True.
        """


class Start(Protocol):
    """Function that starts the process of a task: ``start(task, write, on_exit)``.

    The job calls it in the main thread, at first and for each restart.

    `write` takes the lines that the process prints, from any thread. `on_exit` is called once, from another thread,
    with the exit status: the negative number of the signal, if a signal ended the process.
    """

    def __call__(self, task: Task, write: WriteLine, on_exit: Callable[[int], None], /) -> RunningProcess:
        """Start the process and return it."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ChildProcess:
    """A command that runs for a task as a child of this process."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], write: WriteLine, on_exit: Callable[[int], None]
    ) -> None:
        self._on_exit = on_exit
        self._child = Child(command, environ, stream=subprocess.PIPE)
        process = self._child.process
        assert process.stdout is not None and process.stderr is not None
        self._copiers = [LineCopier(process.stdout, write, False), LineCopier(process.stderr, write, True)]
        self._child.watch(self._report)

    @property
    def pid(self) -> int | None:
        """Process id of the command."""
        return self._child.pid

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has exited."""
        self._child.send(number)

    def wait_for_lines(self, secs: float) -> bool:
        """Wait until all output of the process is copied, at most `secs` per stream; return whether all is copied."""
        return all(copier.wait(secs) for copier in self._copiers)

    def _report(self, status: int) -> None:
        self.wait_for_lines(_LAST_LINES_SECS)
        self._on_exit(status)


class LocalProcess(ChildProcess):
    """Process of a task on this machine. ``functools.partial(LocalProcess, program)`` implements `Start`.

    `settings` are variables that its environment has beside those of the program.
    """

    def __init__(
        self,
        program: Program,
        task: Task,
        write: WriteLine,
        on_exit: Callable[[int], None],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        environ = {**program.environ(task), **(settings or {})}
        processes = sum(map(len, task.cluster.values()))
        if processes > 1:
            # Share the cores. If each process computes on all of them, threads wait for threads that do not run: steps
            # of a convolutional network took four times as long, with three processes on two busy cores.
            environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // processes)))
        super().__init__(program.command(task), environ, write, on_exit)
