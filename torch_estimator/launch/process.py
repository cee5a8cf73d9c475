"""One process of a job."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from torch_estimator.cluster.task import Task
from torch_estimator.launch.output import Output


class Running(Protocol):
    """What has been started for a task, wherever that is."""

    def send(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""

    def wait_for_lines(self, secs: float) -> bool:
        """Waits until all that it has written is copied; returns whether it is."""


Lines = Sequence[tuple[Output, bytes]]
"""For stdout and stderr: where lines go, and what they begin with."""

Start = Callable[[Task, Lines, Callable[[int], None]], Running]
"""Starts what a task runs; calls back, from another thread, with its exit status, that of a signal negative."""


class Process:
    """A program at work as one task.

    Args:
        task: Which one.
        start: How it is started.
        lines: Where its output goes.
        on_end: Called from another thread with the process and its exit status, that of a signal negative.

    Attributes:
        was_told: Whether it has been told to end.
        deadline: When it will be told, or killed where it was, on the caller's clock.
    """

    def __init__(self, task: Task, start: Start, lines: Lines, on_end: Callable[[Process, int], None]) -> None:
        self.task = task
        self.was_told = False
        self.deadline = math.inf
        self._running = start(task, lines, lambda status: on_end(self, status))

    def __str__(self) -> str:
        return str(self.task) if self.task.is_of_cluster else "the program"

    def end_by(self, deadline: float) -> None:
        """Sets a time, unless there is an earlier one."""
        self.deadline = min(self.deadline, deadline)

    def press(self, now: float, stop_secs: float) -> None:
        """Tells it to end, and kills it where it was told."""
        self.deadline = math.inf if self.was_told else now + stop_secs
        self._running.send(signal.SIGKILL if self.was_told else signal.SIGTERM)
        self.was_told = True

    def kill(self) -> None:
        """Kills it, and all that it has started in its group."""
        self.was_told = True
        self.deadline = math.inf
        self._running.send(signal.SIGKILL)

    def wait_for_lines(self, secs: float) -> bool:
        """Waits until all that it has written is copied; returns whether it is."""
        return self._running.wait_for_lines(secs)
