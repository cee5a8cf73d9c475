"""Lines that the processes of a job print: copy them whole, and show them on the launcher's terminal."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Protocol, TextIO

from torch_estimator.cluster.task import Task
from torch_estimator.log import log_format, time_text

LAUNCHER = "launcher"
"""Name of the launcher in its own lines."""

_COLORS = (32, 33, 34, 35, 36)

# Split longer lines, because a line is kept in memory until its end, and a process may never write a newline.
_MOST_LINE_BYTES = 2**20

WriteLine = Callable[[bytes, bool], None]
"""Function that takes one line of a process, without its newline, and whether the line is from stderr."""


class Lines(Protocol):
    """Destination of all lines of a job: a terminal, files, or both."""

    def write(self, task: Task | None, line: bytes, is_stderr: bool) -> None:
        """Write one line, without its newline, of a task's process, or of the launcher itself if the task is None.

        Several threads call this at once. If it raises an OSError, the job is ended.
        """


class Terminal:
    """Shows the lines on stdout and stderr of this process, each after the name of its task. It implements `Lines`."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        stderr = _Stream(sys.stderr)
        self._streams = (_Stream(sys.stdout, other=stderr), stderr)
        names = [*(str(task) for task in tasks if task.is_of_cluster), LAUNCHER]
        self._colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}

    def write(self, task: Task | None, line: bytes, is_stderr: bool) -> None:
        """Write a line after its prefix and, on stderr, the time; JSON is written as it is."""
        stream = self._streams[is_stderr]
        name = LAUNCHER if task is None else str(task)
        # A program without a cluster has no color, and its lines no prefix.
        is_json = log_format() == "json" and line.startswith(b"{")
        if name in self._colors and not is_json:
            prefix = f"\x1b[{self._colors[name]}m[{name}]\x1b[0m " if stream.is_colored else f"[{name}] "
            stamp = f"{time_text()} " if is_stderr and log_format() == "" else ""
            line = f"{stamp}{prefix}".encode() + line
        stream.write(line + b"\n")


class _Stream:
    """Stdout or stderr, to which several threads write whole lines. Two of the same file (``2>&1``) share a lock."""

    def __init__(self, stream: TextIO, *, other: _Stream | None = None) -> None:
        self._file = stream.fileno()
        self.is_colored = stream.isatty() and "NO_COLOR" not in os.environ
        shared = other is not None and os.path.sameopenfile(self._file, other._file)
        self._lock: threading.Lock = other._lock if other is not None and shared else threading.Lock()
        self._has_failed = False

    def write(self, line: bytes) -> None:
        """Write a whole line; a lock keeps lines of other threads out of it. After an error, drop later lines."""
        with self._lock:
            if self._has_failed:
                return
            try:
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError:
                self._has_failed = True
                raise


class LineCopier:
    """Thread that copies the output of a process line by line. Lines longer than 1 MiB are split."""

    def __init__(self, pipe: IO[bytes], write: WriteLine, is_stderr: bool) -> None:
        self._pipe, self._write, self._is_stderr = pipe, write, is_stderr
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
            self._write(line.removesuffix(b"\n"), self._is_stderr)
            self._is_writing = False
