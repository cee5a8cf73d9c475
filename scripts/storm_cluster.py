"""A cluster that `estimator local train` has started, as a storm sees it: its lines as they come, and its processes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.kill_storm import ROOT, StormError

LAUNCHER = "launcher"

_LINE = re.compile(r"(?:\S+ )?\[(\w+(?: \d+)?)\] (.*)")
_ENDING_SECS = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """What one process has said.

    Attributes:
        at: When it was read, in seconds.
        name: Of the process, such as ``worker 0``, or `LAUNCHER`.
        text: Without the name.
    """

    at: float
    name: str
    text: str


class StormCluster:
    """A launcher and its processes; leaves none behind.

    Args:
        options: Of `estimator local train`.
        log: Takes all lines.
    """

    def __init__(self, options: Sequence[str], log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torch_estimator.cli", "local", "train", *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next_line(self, secs: float) -> Line | None:
        """The next line; None where there is none for so many seconds.

        Raises:
            EOFError: All processes have ended.
        """
        try:
            line = self._lines.get(timeout=max(0.0, secs))
        except queue.Empty:
            return None
        if line is None:
            raise EOFError
        return line

    def running(self) -> dict[str, int]:
        """The processes by name, such as ``worker 0``, with their ids."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            # Processes come and go.
            with contextlib.suppress(OSError, StopIteration, ValueError, KeyError):
                state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
                if int(parent) != self._process.pid or state == "Z":
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
            return self._process.wait(_ENDING_SECS)
        except subprocess.TimeoutExpired:
            raise StormError(
                f"the launcher had not ended {_ENDING_SECS:.0f} s after its last line; see {self._log}."
            ) from None

    def close(self) -> None:
        """Ends what still runs; the processes of a launcher that is killed are killed, too."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, self._log.open("w") as log:
            for text in output:
                at = time.monotonic()
                log.write(f"{at:.3f} {text}")
                log.flush()
                found = _LINE.match(text)
                if found:
                    self._lines.put(Line(at, found[1], found[2]))
        self._lines.put(None)
