"""Supervisor of a job: start every task, restart failed ones, stop the job, and return its exit status."""

from __future__ import annotations

import functools
import math
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch_estimator import files
from torch_estimator.cluster.task import EVALUATOR, PARAMETER_SERVER, Task
from torch_estimator.errors import RESTART_ME, InvalidValueError, UserError
from torch_estimator.launch.process import Lines, Output, Start
from torch_estimator.log import json_line, log_format

_NAME = "launcher"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Interval at which the job checks for a signal while it waits for the last lines of output.
_POLL_SECS = 0.1
# If a signal ends a process, shells report this number plus the number of the signal as its exit status.
_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a job: how often it restarts a task, and how long it waits for tasks to end.

    Args:
        max_restarts: Number of restarts of each task.
        finish_secs: Time that the other tasks may take after the chief has finished successfully.
        stop_secs: Time that a process may take to exit after SIGTERM, before it gets SIGKILL.

    Raises:
        InvalidValueError: A limit is negative or NaN.
    """

    max_restarts: int = 3
    finish_secs: float = 600.0
    stop_secs: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_restarts", "finish_secs", "stop_secs"):
            value = getattr(self, name)
            if not value >= 0:
                raise InvalidValueError(f"{name} must be 0 or more, but got {value}.")


class Job:
    """Supervisor of a program that runs as several tasks at once.

    What the job does when a process exits:

    ======================  =============================================================================
    exit                    reaction
    ======================  =============================================================================
    chief, status 0         The others have `Limits.finish_secs` to finish, then they are stopped.
    other task, status 0    None. Parameter servers are stopped when no chief or worker is left.
    status 2                The job is stopped: it is a user's error, which a restart would repeat.
    any other status        The task is restarted, at most `Limits.max_restarts` times; then the job is
                            stopped. After the chief's success only the evaluator is restarted.
    ======================  =============================================================================

    All events (exits, signals, failures of the output) go through one queue and are handled in the main thread.
    Processes are started in the main thread as well, since Linux ties the life of a child to the thread that started
    it (see `torch_estimator.launch.die_with_parent`).

    Args:
        start: Starts the process of a task.
        tasks: The tasks, a chief among them; each gets a process.
        limits: Limits on restarts and waiting.
        clock: Clock that returns seconds and never goes back.
    """

    def __init__(
        self, start: Start, tasks: Sequence[Task], limits: Limits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start_process = start
        self._tasks = list(tasks)
        self._limits = limits
        self._clock = clock
        self._restarts = Counter[str]()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stderr = Output(sys.stderr, on_failure=self._on_output_failure)
        self._stdout = Output(sys.stdout, other=self._stderr, on_failure=self._on_output_failure)
        self._output_error: OSError | None = None
        self._running: list[_TaskProcess] = []
        self._exited: list[_TaskProcess] = []
        self._status = 0
        # Time by which the other tasks must have finished; None until the chief has finished successfully.
        self._finish_at: float | None = None
        self._is_stopping = False
        self._was_interrupted = False

    def run(self) -> int:
        """Run the job from the main thread; return its exit status, 0 if all tasks finished successfully.

        Raises:
            BrokenPipeError: The reader of the output is gone.
            UserError: The output cannot be written for another reason.
        """
        with _signal_handler(lambda number: self._events.put(functools.partial(self._handle_signal, number))):
            try:
                self._start(self._tasks)
                if len(self._tasks) > 1:
                    self._log(f"started {', '.join(process.with_pid() for process in self._running)}.")
                while self._running:
                    handle_event = self._next_event()
                    handle_event()
                self._wait_for_lines()
            finally:
                for process in self._running:
                    process.kill()
        if isinstance(self._output_error, BrokenPipeError):
            raise self._output_error
        if self._output_error is not None:
            raise UserError(
                f"the job was ended because its output cannot be written: {files.reason(self._output_error)}."
            ) from self._output_error
        return self._status

    def _start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            process = _TaskProcess(task, self._start_process, self._lines(task), on_exit=self._on_exit)
            if self._finish_at is not None:
                process.stop_by(self._finish_at)
            self._running.append(process)

    def _lines(self, task: Task) -> Lines:
        """Return where a task's output goes, and the prefix of its lines, which is empty without a cluster."""
        name, color = str(task), self._tasks.index(task)
        outputs = (self._stdout, self._stderr)
        return [(output, output.prefix(name, color) if task.is_of_cluster else b"") for output in outputs]

    def _next_event(self) -> Callable[[], None]:
        """Wait for the next event or deadline; return the function that handles it."""
        deadline = min(process.deadline for process in self._running)
        try:
            return self._events.get(timeout=min(max(0.0, deadline - self._clock()), threading.TIMEOUT_MAX))
        except queue.Empty:
            return self._handle_deadlines

    def _on_exit(self, process: _TaskProcess, status: int) -> None:
        self._events.put(functools.partial(self._handle_exit, process, status))

    def _handle_exit(self, process: _TaskProcess, status: int) -> None:
        self._running.remove(process)
        self._exited.append(process)
        task = process.task
        if self._is_stopping:
            return
        if process.was_asked_to_stop:
            # The status of a process that got SIGTERM says nothing about the program. It is normal to stop a parameter
            # server. Any other task that had to be stopped did not finish in time, so the job has failed.
            if task.type != PARAMETER_SERVER:
                self._status = self._status or 1
        elif status == 0:
            if task.is_chief:
                self._handle_success(process)
            else:
                self._stop_idle_servers()
        elif self._finish_at is not None and task.type != EVALUATOR:
            self._log(f"{process} {describe_status(status)} after training had finished; it is not restarted.")
            self._status = self._status or shell_status(status)
            self._stop_idle_servers()
        else:
            self._restart_or_stop(process, status)

    def _handle_success(self, chief: _TaskProcess) -> None:
        """Set the deadline of the other tasks, after the chief has finished successfully."""
        self._finish_at = self._clock() + self._limits.finish_secs
        for process in self._running:
            process.stop_by(self._finish_at)
        self._stop_idle_servers()
        others = [process for process in self._running if not process.was_asked_to_stop]
        if others:
            secs = f"{self._limits.finish_secs:g} s"
            self._log(f"{chief} finished successfully; waiting up to {secs} for {_names(others)}.")

    def _stop_idle_servers(self) -> None:
        """Stop the parameter servers if the chief has finished successfully and no task trains any more.

        They do not end by themselves: they serve until they get SIGTERM.
        """
        trains = any(process.task.type not in (PARAMETER_SERVER, EVALUATOR) for process in self._running)
        if self._finish_at is None or trains:
            return
        for process in self._running:
            if process.task.type == PARAMETER_SERVER and not process.was_asked_to_stop:
                process.stop_or_kill(self._clock(), self._limits.stop_secs)

    def _restart_or_stop(self, process: _TaskProcess, status: int) -> None:
        """Restart a failed task, or stop the job if a restart would not help or no restart is left."""
        failure, name = f"{process} {describe_status(status)}", str(process.task)
        most = self._limits.max_restarts
        if status == UserError.exit_status:
            self._stop(status, f"{failure}, an error of the user that a restart would repeat; ending the job.")
        elif self._restarts[name] >= most:
            failure += f" and has no restart left (max_restarts={most})"
            self._stop(shell_status(status), f"{failure}; ending the job.")
        else:
            self._restarts[name] += 1
            self._start([process.task])
            started = self._running[-1].with_pid()
            self._log(f"{failure}; started {started} again, restart {self._restarts[name]} of {most}.")

    def _handle_deadlines(self) -> None:
        """Send SIGTERM to processes that did not finish in time, and SIGKILL to those that did not exit after it."""
        now = self._clock()
        for process in self._running:
            if process.deadline > now:
                continue
            if process.was_asked_to_stop:
                text = f"{process} did not exit within {self._limits.stop_secs:g} s of SIGTERM; sent SIGKILL."
            else:
                text = f"{process} did not finish within {self._limits.finish_secs:g} s of the chief; sent SIGTERM."
            process.stop_or_kill(now, self._limits.stop_secs)
            self._log(text)

    def _handle_signal(self, number: int) -> None:
        """Handle a signal that the launcher got: stop the job at the first signal, kill all processes at the second."""
        if self._was_interrupted:
            for process in self._running:
                process.kill()
            return
        self._was_interrupted = True
        self._stop(shell_status(-number), f"interrupted; stopping {_names(self._running)}.")

    def _on_output_failure(self, error: OSError) -> None:
        self._output_error = error
        self._events.put(functools.partial(self._stop, 1, "the output cannot be written; ending the job."))

    def _stop(self, status: int, reason: str) -> None:
        """Send SIGTERM to all processes and make `status` the exit status of the job."""
        self._status, self._is_stopping = status, True
        for process in self._running:
            if not process.was_asked_to_stop:
                process.stop_or_kill(self._clock(), self._limits.stop_secs)
        self._log(reason)

    def _wait_for_lines(self) -> None:
        for process in self._exited:
            # The reader of the output may be slow, so wait without a limit. A signal ends the wait.
            while self._events.empty() and not process.wait_for_lines(_POLL_SECS):
                pass

    def _log(self, text: str) -> None:
        line = json_line(text, process=_NAME) if log_format() == "json" else text
        self._stderr.write_log(self._stderr.prefix(_NAME, len(self._tasks)), line.encode())


class _TaskProcess:
    """Process that runs a task, and the time at which the job sends it SIGTERM or SIGKILL.

    Args:
        task: The task.
        start: Starts the process.
        lines: Destination of its output.
        on_exit: Callback from another thread, with this object and the exit status (negative for a signal).

    Attributes:
        was_asked_to_stop: Whether the process got SIGTERM or SIGKILL from the job.
        deadline: When the process gets the next of these signals, on the job's clock; infinity for never.
    """

    def __init__(self, task: Task, start: Start, lines: Lines, on_exit: Callable[[_TaskProcess, int], None]) -> None:
        self.task = task
        self.was_asked_to_stop = False
        self.deadline = math.inf
        self._process = start(task, lines, lambda status: on_exit(self, status))

    def __str__(self) -> str:
        return str(self.task) if self.task.is_of_cluster else "the program"

    def with_pid(self) -> str:
        """Return the name of the process and its process id, with which the user can look at it or stop it."""
        return str(self) if self._process.pid is None else f"{self} (pid {self._process.pid})"

    def stop_by(self, deadline: float) -> None:
        """Move the time at which the job sends the next signal to `deadline`, unless it is earlier already."""
        self.deadline = min(self.deadline, deadline)

    def stop_or_kill(self, now: float, stop_secs: float) -> None:
        """Send SIGTERM, with a deadline `stop_secs` later; on the second call, send SIGKILL."""
        if self.was_asked_to_stop:
            self.kill()
            return
        self.was_asked_to_stop = True
        self.deadline = now + stop_secs
        self._process.send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self.was_asked_to_stop = True
        self.deadline = math.inf
        self._process.send(signal.SIGKILL)

    def wait_for_lines(self, secs: float) -> bool:
        """Wait at most `secs` until all output of the process is shown; return whether all is shown."""
        return self._process.wait_for_lines(secs)


def describe_status(status: int) -> str:
    """Return a phrase that says how a process with this exit status ended.

    >>> describe_status(-9), describe_status(143), describe_status(1)
    ('was killed by SIGKILL', 'was preempted (status 143)', 'ended with status 1')
    """
    if status == RESTART_ME:
        return f"was preempted (status {status})"
    if status >= 0:
        return f"ended with status {status}"
    names = {member.value: member.name for member in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"


def shell_status(status: int) -> int:
    """Return the exit status that a shell reports for a process: 128 + n if signal n ended the process.

    >>> shell_status(-9), shell_status(3)
    (137, 3)
    """
    return _SIGNALLED - status if status < 0 else status


@contextmanager
def _signal_handler(handle: Callable[[int], None]) -> Iterator[None]:
    """While the body runs, call `handle` with the number of each signal that asks the job to end.

    Signals that are ignored, as SIGHUP is under nohup, stay ignored.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = [number for number in _SIGNALS if before[number] != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, lambda number, frame: handle(number))
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


def _names(processes: Sequence[_TaskProcess]) -> str:
    return ", ".join(map(str, processes))
