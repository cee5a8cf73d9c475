"""Processes of a job: the interface `Start`, its implementation for this machine, and the copying of output.

`torch_estimator.launch.job.Job` decides when a task is started, stopped and restarted. A `Start` decides how and where
the process of the task runs. To run jobs in another place (Kubernetes, another scheduler), implement `Start`; the job
needs no change.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, TextIO

from torch_estimator.cluster.task import Task
from torch_estimator.launch import die_with_parent
from torch_estimator.launch.layout import Program
from torch_estimator.log import log_format, time_text

_COLORS = (32, 33, 34, 35, 36)

# Split longer lines, because a line is kept in memory until its end, and a process may never write a newline.
_MOST_LINE_BYTES = 2**20

# Wait this long for the last lines of an exited process before its exit is reported.
_LAST_LINES_SECS = 0.01


class RunningProcess(Protocol):
    """A started process, on this machine or elsewhere.

    Attributes:
        pid: Its process id, which the launcher's log names; None if it is not on this machine.
    """

    @property
    def pid(self) -> int | None:
        """Process id on this machine, or None."""

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has exited.

        The job sends SIGTERM to ask for an end and SIGKILL to force it.
        """

    def wait_for_lines(self, secs: float) -> bool:
        """Wait at most `secs` until all output of the process is shown; return whether all is shown.

        An implementation whose output reaches the user by another way returns True.
        """


class Start(Protocol):
    """Function that starts the process of a task: ``start(task, lines, on_exit)``.

    The job calls it in the main thread, at first and for each restart.

    Args:
        task: The task that the process runs.
        lines: Destination of the lines that the process prints: a pair for stdout and a pair for stderr.
        on_exit: Callback for the end of the process, called once, from another thread, with the exit status. The
            status of a process that a signal ended is the signal's number, negative.
    """

    def __call__(self, task: Task, lines: Lines, on_exit: Callable[[int], None], /) -> RunningProcess:
        """Start the process and return it."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalProcess:
    """Process of a task on this machine. ``functools.partial(LocalProcess, program)`` implements `Start`.

    Args:
        program: The program to run.
        task: As for `Start`.
        lines: As for `Start`.
        on_exit: As for `Start`.
    """

    def __init__(self, program: Program, task: Task, lines: Lines, on_exit: Callable[[int], None]) -> None:
        self._on_exit = on_exit
        environ = program.environ(task)
        processes = sum(map(len, task.cluster.values()))
        if processes > 1:
            # Share the cores. If each process computes on all of them, threads wait for threads that do not run: steps
            # of a convolutional network took four times as long, with three processes on two busy cores.
            environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // processes)))
        self._child = Child(program.command(task), environ, stream=subprocess.PIPE)
        pipes = [pipe for pipe in (self._child.process.stdout, self._child.process.stderr) if pipe is not None]
        self._copiers = [LineCopier(pipe, output, prefix) for pipe, (output, prefix) in zip(pipes, lines, strict=True)]
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the program itself, since the wrapper replaces itself with it."""
        return self._child.process.pid

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has exited."""
        self._child.send(number)

    def wait_for_lines(self, secs: float) -> bool:
        """Wait until all output of the process is copied, at most `secs` per stream; return whether all is copied."""
        return all(copier.wait(secs) for copier in self._copiers)

    def _wait(self) -> None:
        status = self._child.wait()
        self.wait_for_lines(_LAST_LINES_SECS)
        self._on_exit(status)


class Child:
    """Child process in its own process group, killed when this process dies.

    Args:
        command: Command line to run.
        environ: Complete environment of the command.
        stream: Destination of its stdout and stderr, as for ``subprocess.Popen``. None shares those of this process.

    Attributes:
        process: The `subprocess.Popen` object.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], *, stream: int | None = None) -> None:
        # -I and -S skip site-packages, so that the script delays the command by only about 20 ms.
        wrapper = [sys.executable, "-I", "-S", str(Path(die_with_parent.__file__)), str(os.getpid())]
        self.process = subprocess.Popen(
            [*wrapper, *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            # In a separate group the child gets no Ctrl-C from the terminal. The launcher decides when to stop it.
            process_group=0,
        )

    def wait(self) -> int:
        """Wait for the child to exit; return its exit status, or -n if signal n ended the child."""
        status = self.process.wait()
        # Kill the processes that the child left running; nothing else would end them.
        self._signal_group(signal.SIGKILL)
        return status

    def send(self, number: int) -> None:
        """Send a signal to the child and to the processes in its group, unless the child has exited."""
        if self.process.returncode is None:
            self._signal_group(number)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Output:
    """Stdout or stderr of the launcher, to which several threads write whole lines.

    Args:
        stream: The stream to write to.
        other: Another output, which may write to the same file (as after ``2>&1``). The two then share a lock.
        on_failure: Callback for the first line that cannot be written. Later lines are dropped.
    """

    def __init__(self, stream: TextIO, *, other: Output | None = None, on_failure: Callable[[OSError], None]) -> None:
        self._file = stream.fileno()
        self._is_log = stream is sys.stderr
        self._colored = stream.isatty() and "NO_COLOR" not in os.environ
        self._on_failure = on_failure
        shared = other is not None and os.path.sameopenfile(self._file, other._file)
        self._lock: threading.Lock = other._lock if other is not None and shared else threading.Lock()
        self._has_failed = False

    def prefix(self, name: str, color: int) -> bytes:
        """Return the start of each line of one process, ``[name]``, in color if the output is a terminal."""
        text = f"[{name}]"
        return (f"\x1b[{_COLORS[color % len(_COLORS)]}m{text}\x1b[0m " if self._colored else f"{text} ").encode()

    def write_log(self, prefix: bytes, line: bytes) -> None:
        """Write one line of a process after its prefix and, on stderr, the time; JSON is written as it is."""
        is_json = log_format() == "json"
        if prefix and not (is_json and line.startswith(b"{")):
            stamp = f"{time_text()} " if self._is_log and log_format() == "" else ""
            line = stamp.encode() + prefix + line
        self.write(line + b"\n")

    def write(self, line: bytes) -> None:
        """Write one whole line; a lock keeps lines of other threads out of it."""
        with self._lock:
            if self._has_failed:
                return
            try:
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError as error:
                self._has_failed = True
                self._on_failure(error)


Lines = Sequence[tuple[Output, bytes]]
"""Destination of a process's stdout and of its stderr: the output, and the prefix of each line."""


class LineCopier:
    """Thread that copies the output of a process line by line. Lines longer than 1 MiB are split.

    Args:
        pipe: Pipe that the process writes to.
        output: Destination of the lines.
        prefix: Start of each copied line.
    """

    def __init__(self, pipe: IO[bytes], output: Output, prefix: bytes) -> None:
        self._pipe, self._output, self._prefix = pipe, output, prefix
        self._is_writing = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def wait(self, secs: float) -> bool:
        """Wait at most `secs` until all output of an exited process is copied; return whether all is copied.

        A process that detached itself may keep the pipe open after the program exited, and the thread then never ends.
        It is enough that the pipe is empty.
        """
        self._thread.join(secs)
        if self._thread.is_alive():
            return not (self._is_writing or select.select([self._pipe], [], [], 0)[0])
        self._pipe.close()
        return True

    def _copy(self) -> None:
        while line := self._pipe.readline(_MOST_LINE_BYTES):
            self._is_writing = True
            self._output.write_log(self._prefix, line.removesuffix(b"\n"))
            self._is_writing = False
