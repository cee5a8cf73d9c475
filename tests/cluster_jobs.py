"""Clusters of real processes for tests: started with TF_CONFIG, killed, and read afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_SECS = 180


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and all that it printed."""

    status: int
    told: str


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


class Cluster:
    """A chief and workers that run one program.

    Args:
        program: Python.
        workers: How many workers there are beside the chief.
        servers: How many parameter servers there are.
    """

    def __init__(self, program: str, workers: int = 1, servers: int = 0) -> None:
        self._program = program
        self.tasks = [
            ("chief", 0),
            *(("worker", index) for index in range(workers)),
            *(("ps", index) for index in range(servers)),
        ]
        self._spec: dict[str, list[str]] = {}
        for kind, _ in self.tasks:
            self._spec.setdefault(kind, []).append(f"localhost:{free_port()}")

    def start(self, task: tuple[str, int], *arguments: object, **environ: str) -> subprocess.Popen[str]:
        config = {"cluster": self._spec, "task": {"type": task[0], "index": task[1]}}
        return subprocess.Popen(
            [sys.executable, "-c", self._program, *map(str, arguments)],
            env={**os.environ, "TF_CONFIG": json.dumps(config), "PYTHONPATH": str(ROOT), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: object, **environ: str) -> list[Ended]:
        """Runs all tasks to their end; the chief comes first."""
        return ended([self.start(task, *arguments, **environ) for task in self.tasks])


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    try:
        told = [process.communicate(timeout=_SECS)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    return [Ended(process.returncode, text) for process, text in zip(processes, told, strict=True)]
