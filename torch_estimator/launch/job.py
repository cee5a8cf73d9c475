"""The processes of a job, from the start of the first to the end of the last."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from torch_estimator import files
from torch_estimator.cluster.task import EVALUATOR, PARAMETER_SERVER, Task
from torch_estimator.errors import UserError
from torch_estimator.launch.limits import Limits
from torch_estimator.launch.output import Output
from torch_estimator.launch.process import Lines, Process, Start
from torch_estimator.launch.signals import signals_to
from torch_estimator.launch.status import USER_ERROR, described, for_shells

_NAME = "launcher"
_LOOK_EVERY_SECS = 0.1


class Job:
    """A program as several tasks at once.

    Whatever happens is put into a queue, from signal handlers and from a thread per process, and dealt with in the
    main thread, which also starts all processes: on Linux those of this machine are killed when it is gone, however
    that comes.

    Args:
        start: Starts a process.
        tasks: One process each; the chief is among them.
        limits: What is put up with.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, start: Start, tasks: Sequence[Task], limits: Limits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start_one = start
        self._tasks = list(tasks)
        self._restarts = Counter[str]()
        self._limits = limits
        self._clock = clock
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stderr = Output(sys.stderr, on_failure=self._output_failed)
        self._stdout = Output(sys.stdout, beside=self._stderr, on_failure=self._output_failed)
        self._output_error: OSError | None = None
        self._running: list[Process] = []
        self._ended: list[Process] = []
        self._status = 0
        self._finish_at: float | None = None
        self._is_ending = False
        self._is_asked_to_end = False

    def run(self) -> int:
        """Runs all of it, from the main thread; returns the exit status, 0 where all have ended well.

        Raises:
            BrokenPipeError: Nobody reads the output any more.
            UserError: The output cannot be written.
        """
        with signals_to(lambda number: self._events.put(functools.partial(self._asked_to_end, number))):
            try:
                self._start(self._tasks)
                if len(self._tasks) > 1:
                    self._say(f"started {self._names(self._running)}.")
                while self._running:
                    self._next_event()()
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

    def _next_event(self) -> Callable[[], None]:
        deadline = min(process.deadline for process in self._running)
        try:
            return self._events.get(timeout=min(max(0.0, deadline - self._clock()), threading.TIMEOUT_MAX))
        except queue.Empty:
            return self._press

    def _start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            process = Process(task, self._start_one, self._lines_of(task), on_end=self._tell_end)
            if self._finish_at is not None:
                process.end_by(self._finish_at)
            self._running.append(process)

    def _lines_of(self, task: Task) -> Lines:
        name, color = str(task), self._tasks.index(task)
        outputs = (self._stdout, self._stderr)
        return [(output, output.prefix(name, color) if task.is_of_cluster else b"") for output in outputs]

    def _tell_end(self, process: Process, status: int) -> None:
        self._events.put(functools.partial(self._take_end, process, status))

    def _take_end(self, process: Process, status: int) -> None:
        self._running.remove(process)
        self._ended.append(process)
        if self._is_ending:
            return
        task = process.task
        if process.was_told:
            # What it says then says nothing about the program; a server that nobody has trained with ends only so.
            self._status = self._status or int(self._finish_at is not None and task.type != PARAMETER_SERVER)
        elif status == 0:
            if task.is_chief:
                self._take_success(process)
            else:
                self._end_servers()
        elif self._finish_at is not None and task.type != EVALUATOR:
            self._take_late_failure(str(process), status)
        else:
            self._take_failure(process, status)

    def _take_success(self, chief: Process) -> None:
        """The training is over."""
        self._finish_at = self._clock() + self._limits.finish_secs
        for process in self._running:
            process.end_by(self._finish_at)
        self._end_servers()
        others = [process for process in self._running if not process.was_told]
        if others:
            self._say(f"{chief} has ended well; waiting for {self._names(others)}.")

    def _end_servers(self) -> None:
        """As soon as the chief has ended well, and nobody trains any more: they serve until they are told."""
        servers = [process for process in self._running if process.task.type == PARAMETER_SERVER]
        trains = any(process.task.type not in (PARAMETER_SERVER, EVALUATOR) for process in self._running)
        if self._finish_at is not None and not trains:
            for process in servers:
                if not process.was_told:
                    process.press(self._clock(), self._limits.stop_secs)

    def _take_late_failure(self, name: str, status: int) -> None:
        self._say(f"{name} {described(status)} although the training has ended well.")
        self._status = self._status or for_shells(status)
        self._end_servers()

    def _take_failure(self, process: Process, status: int) -> None:
        """Starts a process again, or ends the job."""
        failure, task = f"{process} {described(status)}", process.task
        if status == USER_ERROR:
            self._end(status, f"{failure}, which says that its user has to act; ending the job.")
        elif self._restarts[str(task)] >= self._limits.max_restarts:
            allowed = f"max_restarts={self._limits.max_restarts}"
            self._end(for_shells(status), f"{failure}, once more than {allowed} allows; ending the job.")
        else:
            self._restarts[str(task)] += 1
            self._start([task])
            again = f"restart {self._restarts[str(task)]} of {self._limits.max_restarts}"
            self._say(f"{failure}; started {self._running[-1]} again, {again}.")

    def _press(self) -> None:
        now = self._clock()
        for process in self._running:
            if process.deadline <= now:
                how = "killed" if process.was_told else "told to stop"
                process.press(now, self._limits.stop_secs)
                self._say(f"{process} had not ended in time, and was {how}.")

    def _end(self, status: int, why: str) -> None:
        self._status, self._is_ending = status, True
        for process in self._running:
            if not process.was_told:
                process.press(self._clock(), self._limits.stop_secs)
        self._say(why)

    def _asked_to_end(self, number: int) -> None:
        if self._is_asked_to_end:
            for process in self._running:
                process.kill()
            return
        self._is_asked_to_end = True
        self._end(for_shells(-number), f"interrupted; stopping {self._names(self._running)}.")

    def _output_failed(self, error: OSError) -> None:
        self._output_error = error
        self._events.put(functools.partial(self._end, 1, "the output cannot be written; ending the job."))

    def _wait_for_lines(self) -> None:
        for process in self._ended:
            # Another signal ends this, too.
            while self._events.empty() and not process.wait_for_lines(_LOOK_EVERY_SECS):
                pass

    def _names(self, processes: Sequence[Process]) -> str:
        return ", ".join(map(str, processes))

    def _say(self, text: str) -> None:
        self._stderr.write(self._stderr.prefix(_NAME, len(self._tasks)) + text.encode() + b"\n")
