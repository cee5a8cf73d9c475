"""Clusters of real processes for tests, started with TF_CONFIG."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO, TextIOWrapper
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[1]

_SECS = 180

# Importing torch takes three CPU-seconds. Processes forked from a server that has imported it skip that.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.cluster_imports"])


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit status of a process, and everything that it printed."""

    status: int
    output: str


_given: set[int] = set()
"""Ports that `free_port` has returned."""


def free_port() -> int:
    """Return a free port below those that the kernel gives to outgoing connections, and another one each time."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("localhost", port))
            _given.add(port)
            return port


class Cluster:
    """A chief, workers and parameter servers that run one program.

    Args:
        program: Python code.
        workers: Number of workers in addition to the chief.
        servers: Number of parameter servers.
        chief: Whether the cluster has a chief. Without one, worker 0 takes its part.

    Attributes:
        tasks: Type and index of each task, the chief first.
        spec: Addresses of the tasks, by type.
    """

    def __init__(self, program: str, workers: int = 1, servers: int = 0, *, chief: bool = True) -> None:
        self._program = program
        self.tasks = [
            *([("chief", 0)] if chief else []),
            *(("worker", index) for index in range(workers)),
            *(("ps", index) for index in range(servers)),
        ]
        self.spec: dict[str, list[str]] = {}
        for kind, _ in self.tasks:
            self.spec.setdefault(kind, []).append(f"localhost:{free_port()}")

    def start(self, task: tuple[str, int], *arguments: object, **environ: str) -> Process:
        """Start the process of one task."""
        config = {"cluster": self.spec, "task": {"type": task[0], "index": task[1]}}
        return Process(self._program, [str(one) for one in arguments], {"TF_CONFIG": json.dumps(config), **environ})

    def run(self, *arguments: object, **environ: str) -> list[Ended]:
        """Run all tasks to their end; return the results in the order of `tasks`."""
        return ended([self.start(task, *arguments, **environ) for task in self.tasks])


class Process:
    """Forked process that runs a program as ``python -c`` does.

    Args:
        program: Python code.
        arguments: The program's ``sys.argv[1:]``.
        environ: Variables added to the environment of the tests.
    """

    def __init__(self, program: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        output, write_end = _PROCESSES.Pipe(duplex=False)
        self._output = output
        self.stdout = TextIOWrapper(FileIO(output.fileno(), closefd=False), encoding="utf-8")
        self._process = _PROCESSES.Process(
            target=_run, args=(program, arguments, {**os.environ, **environ}, write_end), daemon=True
        )
        self._process.start()
        write_end.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status: None while the process runs, the number of a signal negative."""
        return self._process.exitcode

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> str:
        """Wait for the process to end; return what it printed and was not read yet."""
        texts: list[str] = []
        reading = Thread(target=lambda: texts.append(self.stdout.read()), daemon=True)
        reading.start()
        reading.join(_SECS)
        assert not reading.is_alive(), f"{self.pid} has not ended within {_SECS} s"
        self._process.join(_SECS)
        self._output.close()
        return texts[0]


def _run(program: str, arguments: Sequence[str], environ: Mapping[str, str], tells: Connection) -> None:
    os.dup2(tells.fileno(), 1)
    os.dup2(tells.fileno(), 2)
    tells.close()
    # A shell that runs the tests in the background ignores SIGINT, and child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def ended(processes: Sequence[Process]) -> list[Ended]:
    """Wait for the end of all processes; kill those that are left where one takes too long."""
    try:
        outputs = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(process.status or 0, text) for process, text in zip(processes, outputs, strict=True)]


def wait_until(holds: Callable[[], bool], *processes: Process) -> None:
    """Wait until a condition holds; fail if one of the processes ends before."""
    deadline = time.monotonic() + _SECS
    while not holds():
        for process in processes:
            assert process.status is None, process.wait()
        assert time.monotonic() < deadline
        time.sleep(0.02)
