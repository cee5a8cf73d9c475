"""A process that does not outlive this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_estimator.launch import bound


class Child:
    """A command at work, in a process group of its own.

    Args:
        command: What it runs.
        environ: All of its environment.
        stream: Where its stdout and its stderr go, as for ``subprocess.Popen``; by default to those of this process.

    Attributes:
        process: What ``subprocess`` has made.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], *, stream: int | None = None) -> None:
        # Isolated and without site-packages, the script takes some 20 ms.
        binding = [sys.executable, "-I", "-S", str(Path(bound.__file__)), str(os.getpid())]
        self.process = subprocess.Popen(
            [*binding, *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            process_group=0,
        )

    def wait(self) -> int:
        """Waits for its end; returns its exit status, that of a signal negative."""
        status = self.process.wait()
        # What it has left behind would be nobody's.
        self._kill_group(signal.SIGKILL)
        return status

    def send(self, number: int) -> None:
        """Sends a signal to it, and to all that it has started in its group, unless it has ended."""
        if self.process.returncode is None:
            self._kill_group(number)

    def _kill_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
