"""A cluster that `estimator local train` has started, as a storm sees it: its lines as they come, and its processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.storms.common import ROOT, Child, StormError

LAUNCHER = "launcher"

_LINE = re.compile(r"(?:\S+ )?\[(\w+(?: \d+)?)\] (.*)")
_ENDING_SECS = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a process, such as ``worker 0``, or the launcher (`LAUNCHER`) printed, without that name.

    `at` is when it was read, in seconds.
    """

    at: float
    name: str
    text: str


class StormCluster(Child):
    """A launcher and its processes, which are killed when the launcher is, so that none is left behind.

    `options` are those of `estimator local train`; all lines go to the file `log`.
    """

    def __init__(self, options: Sequence[str], log: Path) -> None:
        command = [sys.executable, "-m", "torch_estimator.cli", "local", "train", *options]
        variables = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        super().__init__(command, variables, log_file=log)

    def next_line(self, secs: float) -> Line | None:
        """Return the next line, or None if none comes for `secs`, or if it is of no process.

        Raise an EOFError if all processes have ended.
        """
        line = self.read(secs)
        found = _LINE.match(line[1]) if line else None
        return Line(line[0], found[1], found[2]) if line and found else None

    def running(self) -> dict[str, int]:
        """The processes by name, such as ``worker 0``, with their ids."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            # Processes come and go.
            with contextlib.suppress(OSError, StopIteration, ValueError, KeyError):
                state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
                if int(parent) != self.process.pid or state == "Z":
                    continue
                environ = (folder / "environ").read_bytes().split(b"\0")
                config = next(one for one in environ if one.startswith(b"TF_CONFIG="))
                task = json.loads(config.partition(b"=")[2])["task"]
                found[f"{task['type']} {task['index']}"] = int(folder.name)
        return found

    def kill(self, name: str) -> float | None:
        """Kills a process with SIGKILL; returns when, or None where there was none."""
        process = self.running().get(name)
        if process is None:
            return None
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            return at
        return None

    def wait(self) -> int:
        """Waits for the launcher's end; returns its exit status."""
        try:
            return self.process.wait(_ENDING_SECS)
        except subprocess.TimeoutExpired:
            raise StormError(
                f"the launcher had not ended {_ENDING_SECS:.0f} s after its last line; see {self.log_file}."
            ) from None
