"""Logs of a job: a file for each role, with a line for each line that the role printed, after the time.

On object stores, which cannot append, a log is written in segments, ``worker-0.00000001.log``, every few seconds. The
last seconds are lost there if the launcher is killed. A process that outlives its launcher writes
its log itself, ``NAME.raw.log``; lines in it that have no time are read with that of the last one written.
"""

from __future__ import annotations

import heapq
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_estimator import files
from torch_estimator.cluster.task import Task
from torch_estimator.jobs.directory import role_of
from torch_estimator.launch.lines import LAUNCHER
from torch_estimator.log import time_text

_SUFFIX = ".log"
_INFO = re.compile(rb"""(INFO|DEBUG)\b|\{.*"level": "(INFO|DEBUG)\"""")
RAW_SUFFIX = ".raw.log"
"""Ending of the name of a log whose lines need not have a time."""

_SEGMENT_SECS = 3.0
_DIGITS = 8
# A reader takes at most this much of a log at once.
_BLOCK_BYTES = 2**22
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+ ")


class RoleLogs:
    """Writes the lines of a job into a directory or URL. It implements `Lines`; close it at the end.

    The values of secret arguments, where a role prints them, are replaced by ``***``. The lines of the roles may have
    their times in front already.
    """

    def __init__(
        self, directory: str, tasks: Sequence[Task], secrets: Sequence[str] = (), *, have_times: bool = False
    ) -> None:
        self._have_times = have_times
        lines = (line for secret in secrets for line in os.fsencode(secret).splitlines())
        self._secrets = sorted(filter(None, lines), key=len, reverse=True)
        # The last line that each role printed on stderr, but for the log's, which is the reason if it then fails.
        self.last_error: dict[str, str] = {}
        roles = [*(role_of(task) for task in tasks), LAUNCHER]
        self._logs: dict[str, _File | _Segments] = {
            role: _File(directory, role) if files.is_local(directory) else _Segments(directory, role) for role in roles
        }

    def write(self, task: Task | None, line: bytes, is_stderr: bool) -> None:
        """Write one line."""
        for secret in self._secrets:
            line = line.replace(secret, b"***")
        role = LAUNCHER if task is None else role_of(task)
        time = f"{time_text()} ".encode()
        if self._have_times and task is not None:
            time, space, line = line.partition(b" ")
            time += space
        if is_stderr and line.strip() and not _INFO.match(line):
            self.last_error[role] = line.decode(errors="replace").strip()
        self._logs[role].write(time + line + b"\n")

    def close(self) -> None:
        """Write what is still in memory."""
        for log in self._logs.values():
            log.close()


class _File:
    """A log that grows. The kernel keeps two appended lines apart."""

    def __init__(self, directory: str, role: str) -> None:
        path = files.join(directory, role + _SUFFIX)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        os.close(self._descriptor)


class _Segments:
    """A log in numbered segments, which a thread writes."""

    def __init__(self, directory: str, role: str) -> None:
        self._directory, self._role = directory, role
        self._next = 1 + sum(name.startswith(f"{role}.") for name in files.listdir(directory))
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log of {role}", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        with self._lock:
            self._lines.append(line)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._flush()

    def _run(self) -> None:
        while not self._ended.wait(_SEGMENT_SECS):
            try:
                self._flush()
            except OSError:
                # The store may answer again later. What it did not take stays in memory.
                continue

    def _flush(self) -> None:
        with self._lock:
            lines = list(self._lines)
        if lines:
            name = f"{self._role}.{self._next:0{_DIGITS}}{_SUFFIX}"
            files.write_atomic(files.join(self._directory, name), b"".join(lines))
            self._next += 1
            with self._lock:
                del self._lines[: len(lines)]


class LogLine(NamedTuple):
    """A line of a log, with the time in front of it as text."""

    time: str
    role: str
    text: str


@dataclass(slots=True)
class LogReader:
    """Reads the logs in a directory or URL on from where it was, of all roles or of one."""

    directory: str
    role: str | None = None
    _positions: dict[str, int] = field(default_factory=dict)

    def read(self) -> list[LogLine]:
        """Return the lines that were written since the last call, in the order of their times."""
        lines: dict[str, list[LogLine]] = {}
        for name in sorted(files.listdir(self.directory)):
            role = _role_of(name)
            if role and self.role in (None, role):
                lines.setdefault(role, []).extend(self._lines(role, name))
        # Unlike a sort, a merge leaves the lines of each role in their order, also if the clock was set back.
        return list(heapq.merge(*lines.values(), key=lambda line: line.time))

    def _lines(self, role: str, name: str) -> Iterator[LogLine]:
        is_raw = name.endswith(RAW_SUFFIX)
        written = time_text(os.stat(files.join(self.directory, name)).st_mtime) if is_raw else ""
        for line in self._new_lines(name):
            text = line.decode(errors="replace")
            if is_raw and not _TIME.match(text):
                yield LogLine(written, role, text)
            else:
                time, _, text = text.partition(" ")
                yield LogLine(time, role, text)

    def _new_lines(self, name: str) -> Iterator[bytes]:
        path, start = files.join(self.directory, name), self._positions.get(name, 0)
        if files.is_local(path):
            while data := _read(path, start):
                # The writer may be in the middle of the last line.
                end = data.rfind(b"\n") + 1
                if not end:
                    return
                self._positions[name] = start = start + end
                yield from data[: end - 1].split(b"\n")
        elif not start:
            data = files.read_bytes(path)
            self._positions[name] = len(data)
            yield from data.removesuffix(b"\n").split(b"\n")


def _role_of(name: str) -> str:
    return name.removesuffix(_SUFFIX).partition(".")[0] if name.endswith(_SUFFIX) else ""


def _read(path: str, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(_BLOCK_BYTES)
