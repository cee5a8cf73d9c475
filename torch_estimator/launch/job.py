"""Supervisor of a job: start every task, restart failed ones, stop the job, and return its exit status."""

from __future__ import annotations

import functools
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch_estimator import files
from torch_estimator.activity import Records
from torch_estimator.cluster.task import EVALUATOR, PARAMETER_SERVER, Task
from torch_estimator.errors import RESTART_ME, InvalidValueError, UserError
from torch_estimator.launch.hangs import Hangs
from torch_estimator.launch.lines import LAUNCHER, Lines, Terminal, WriteLine
from torch_estimator.launch.process import Start
from torch_estimator.log import json_line, log_format
from torch_estimator.processes.child import signal_name
from torch_estimator.processes.events import Events
from torch_estimator.processes.restarts import Restarts

# Interval at which the job checks for a signal while it waits for the last lines of output.
_POLL_SECS = 0.1
# If a signal ends a process, shells report this number plus the number of the signal as its exit status.
_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a job: how often it restarts each task, and how long it waits for tasks to end.

    `finish_secs` is the time that the other tasks may take after the chief has finished successfully, and `stop_secs`
    the time that a process may take to exit after SIGTERM, before it gets SIGKILL. A task that has run for
    `forget_secs` before it failed has all its restarts again. A task that hangs for `hang_secs` is ended and restarted;
    for 0 the job gets no records. Raise an InvalidValueError if a limit is negative or NaN.
    """

    max_restarts: int = 3
    finish_secs: float = 600.0
    stop_secs: float = 10.0
    forget_secs: float = math.inf
    hang_secs: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_restarts", "finish_secs", "stop_secs", "forget_secs", "hang_secs"):
            value = getattr(self, name)
            if not value >= 0:
                raise InvalidValueError(f"{name} must be 0 or more, but got {value}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job: a process was started or has exited, or the job began to fail.

    `status` is the exit status of the process, negative for a signal, or, if the job ends, the status that it will
    have; `reason` then says why, in a sentence. Of a process that was ended because it hung, `reason` says how it did.
    """

    kind: Literal["started", "exited", "ending"]
    task: Task | None = None
    pid: int | None = None
    status: int | None = None
    reason: str = ""


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
    none, since it hangs    The process is ended, as `Limits.stop_secs` says. Then the same.
    ======================  =============================================================================

    All events (exits, signals, failures of the output) go through one queue and are handled in the main thread.
    Processes are started in the main thread as well, since Linux ties the life of a child to the thread that started it
    (see `torch_estimator.processes.die_with_parent`).

    The tasks include a chief. `lines` takes the lines of all processes; None shows them on the terminal. `observe` is
    called in the main thread with each event. `records` are those of all tasks, by which the job ends one that hangs;
    None leaves it alone. If `leaves` returns True at a signal to the launcher, the tasks go on
    without it. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        start: Start,
        tasks: Sequence[Task],
        limits: Limits,
        *,
        lines: Lines | None = None,
        observe: Callable[[Event], object] = lambda event: None,
        records: Records | None = None,
        leaves: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start_process = start
        self._leaves = leaves
        self._tasks = list(tasks)
        self._limits = limits
        self._lines = Terminal(self._tasks) if lines is None else lines
        self._observe = observe
        self._hangs = None if records is None else Hangs(records, clock)
        self._clock = clock
        self._restarts = {
            str(task): Restarts(most=limits.max_restarts, forget_secs=limits.forget_secs) for task in self._tasks
        }
        self._events = Events()
        self._output_error: OSError | None = None
        self._running: list[_TaskProcess] = []
        self._exited: list[_TaskProcess] = []
        self._status = 0
        # Time of the next look for tasks that hang.
        self._look_at = math.inf if self._hangs is None else clock() + self._hangs.every_secs
        # Time by which the other tasks must have finished; None until the chief has finished successfully.
        self._finish_at: float | None = None
        self._is_stopping = False
        self._was_interrupted = False

    @property
    def was_interrupted(self) -> bool:
        """Whether the launcher got a signal, at which the job ended."""
        return self._was_interrupted

    def run(self) -> int:
        """Run the job from the main thread; return its exit status, 0 if all tasks finished successfully.

        Raise a BrokenPipeError if the reader of the output is gone, and a UserError if the output cannot be written for
        another reason.
        """
        with self._events.on_signals(self._handle_signal):
            try:
                self._start(self._tasks)
                if len(self._tasks) > 1:
                    self._log(f"started {', '.join(process.with_pid() for process in self._running)}.")
                while self._running:
                    deadline = min(self._look_at, *(process.deadline for process in self._running))
                    if not self._events.handle_one(max(0.0, deadline - self._clock())):
                        self._handle_deadlines()
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
            if self._hangs is not None:
                self._hangs.begin(task)
            write = functools.partial(self._write, task)
            process = _TaskProcess(task, self._start_process, write, self._on_exit, self._clock())
            if self._finish_at is not None:
                process.stop_by(self._finish_at)
            self._running.append(process)
            self._observe(Event(kind="started", task=task, pid=process.pid))

    def _on_exit(self, process: _TaskProcess, status: int) -> None:
        self._events.put(lambda: self._handle_exit(process, status))

    def _handle_exit(self, process: _TaskProcess, status: int) -> None:
        self._running.remove(process)
        self._exited.append(process)
        task = process.task
        self._observe(Event(kind="exited", task=task, pid=process.pid, status=status, reason=process.hang or ""))
        if self._is_stopping:
            return
        if process.was_asked_to_stop and process.hang is None:
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
            self._log(f"{process} {process.how_it_ended(status)} after training had finished; it is not restarted.")
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
        failure, most = f"{process} {process.how_it_ended(status)}", self._limits.max_restarts
        restarts = self._restarts[str(process.task)]
        if status == UserError.exit_status:
            self._stop(status, f"{failure}, an error of the user that a restart would repeat; ending the job.")
        elif restarts.next_pause(self._clock() - process.started_at) == math.inf:
            failure += f" and has no restart left (max_restarts={most})"
            self._stop(shell_status(status), f"{failure}; ending the job.")
        else:
            self._start([process.task])
            started = self._running[-1].with_pid()
            self._log(f"{failure}; started {started} again, restart {restarts.made} of {most}.")

    def _handle_deadlines(self) -> None:
        """Send SIGTERM to processes that did not finish in time or hang, and SIGKILL to those that stay after it."""
        now = self._clock()
        if self._hangs is not None and now >= self._look_at:
            self._look_at = now + self._hangs.every_secs
            for process in self._running:
                if not process.was_asked_to_stop and (how := self._hangs.reason(process.task)):
                    process.hang = how
                    process.stop_or_kill(now, self._limits.stop_secs)
                    self._log(f"{process} {how}; sent SIGTERM.")
        for process in self._running:
            if process.deadline > now:
                continue
            if process.was_asked_to_stop:
                text = f"{process} did not exit within {self._limits.stop_secs:g} s of SIGTERM; sent SIGKILL."
            else:
                text = f"{process} did not finish within {self._limits.finish_secs:g} s of the chief; sent SIGTERM."
                if process.task.type != PARAMETER_SERVER:
                    self._observe(Event(kind="ending", status=1, reason=text))
            process.stop_or_kill(now, self._limits.stop_secs)
            self._log(text)

    def _handle_signal(self, number: int) -> None:
        """Handle a signal that the launcher got: stop the job at the first signal, kill all processes at the second."""
        if self._was_interrupted:
            for process in self._running:
                process.kill()
            return
        self._was_interrupted = True
        if self._leaves():
            self._log(f"interrupted; {_names(self._running)} will go on.")
            self._status, self._running = shell_status(-number), []
            return
        self._stop(shell_status(-number), f"interrupted; stopping {_names(self._running)}.")

    def _stop(self, status: int, reason: str) -> None:
        """Send SIGTERM to all processes and make `status` the exit status of the job."""
        self._status, self._is_stopping = status, True
        for process in self._running:
            if not process.was_asked_to_stop:
                process.stop_or_kill(self._clock(), self._limits.stop_secs)
        self._observe(Event(kind="ending", status=status, reason=reason))
        self._log(reason)

    def _wait_for_lines(self) -> None:
        for process in self._exited:
            # The reader of the output may be slow, so wait without a limit. A signal ends the wait.
            while self._events.is_empty and not process.wait_for_lines(_POLL_SECS):
                pass

    def _log(self, text: str) -> None:
        line = json_line(text, process=LAUNCHER) if log_format() == "json" else text
        self._write(None, line.encode(), True)

    def _write(self, task: Task | None, line: bytes, is_stderr: bool) -> None:
        try:
            self._lines.write(task, line, is_stderr)
        except OSError as error:
            if self._output_error is not None:
                return
            self._output_error = error
            self._events.put(lambda: self._stop(1, "the output cannot be written; ending the job."))


class _TaskProcess:
    """Process that runs a task, and the time on the job's clock at which the job sends it SIGTERM or SIGKILL."""

    def __init__(
        self, task: Task, start: Start, write: WriteLine, on_exit: Callable[[_TaskProcess, int], None], now: float
    ) -> None:
        self.task = task
        self.started_at = now
        # Whether the process got SIGTERM or SIGKILL from the job, and when it gets the next of these signals.
        self.was_asked_to_stop = False
        self.deadline = math.inf
        # How it hung, if that is why it was asked to stop.
        self.hang: str | None = None
        self._process = start(task, write, lambda status: on_exit(self, status))

    def __str__(self) -> str:
        return str(self.task) if self.task.is_of_cluster else "the program"

    @property
    def pid(self) -> int | None:
        """Process id, if it is on this machine."""
        return self._process.pid

    def with_pid(self) -> str:
        """Return the name of the process and its process id, with which the user can look at it or stop it."""
        return str(self) if self.pid is None else f"{self} (pid {self.pid})"

    def how_it_ended(self, status: int) -> str:
        """Return a phrase that says how the process ended, and why if it hung."""
        return " and ".join(filter(None, (self.hang, describe_status(status))))

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
    return f"was killed by {signal_name(status)}"


def shell_status(status: int) -> int:
    """Return the exit status that a shell reports for a process: 128 + n if signal n ended the process.

    >>> shell_status(-9), shell_status(3)
    (137, 3)
    """
    return _SIGNALLED - status if status < 0 else status


def _names(processes: Sequence[_TaskProcess]) -> str:
    return ", ".join(map(str, processes))
