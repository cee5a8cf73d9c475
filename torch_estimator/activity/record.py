"""What this process does, for its launcher: a small file that says so every few seconds, where one is asked for.

A process that hangs cannot say so itself. So a thread reads counters that exist anyway, and writes for how long they
have stayed the same. It writes ages and no times, since clocks differ.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch_estimator import files
from torch_estimator.activity.state import STATE
from torch_estimator.activity.writer import Writer
from torch_estimator.runs.state_file import StateFile, encoded

FILE = "TORCH_ESTIMATOR_ACTIVITY"
"""Environment variable of a process that is to write its record: the seconds between two writes, and the file."""

_MOST_SECS_BETWEEN_WRITES = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a process does: the content of its file.

    Attributes:
        doing: ``starting``, ``training``, ``evaluating``, ``saving``, ``exporting`` or ``serving``; empty outside of
            what this package does.
        waits_for: Names of the tasks that it waits for.
        progress: Global step, or number of batches of the evaluation; None where nothing is counted.
        idle_secs: Seconds for which all of this has stayed the same.
        writes: Number of this write of the process.
    """

    doing: str = ""
    waits_for: list[str] = field(default_factory=list)
    progress: float | None = None
    idle_secs: float = 0.0
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a job: where each role writes its own. A role that hangs is noticed after `hang_secs`."""

    folder: str
    hang_secs: float

    @property
    def every_secs(self) -> float:
        """Seconds between two writes, and between two looks."""
        return min(self.hang_secs / 4, _MOST_SECS_BETWEEN_WRITES)

    def of(self, role: str) -> StateFile[Record]:
        """Return the file of a role."""
        return StateFile(files.join(self.folder, f"{role}.json"), Record)

    def environ(self, role: str) -> dict[str, str]:
        """Return the variables that have the process of a role write its record."""
        return {FILE: f"{self.every_secs:g} {self.of(role).path}"}


class Unchanged:
    """Seconds for which a value has stayed the same, by looks that come every `every_secs`.

    A look that comes much later counts as if it had not: this process, or the whole machine, was stopped meanwhile.
    """

    def __init__(self, every_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_secs = 2 * every_secs
        self._clock = clock
        self._value: Any = None
        self._secs = 0.0
        self._looked_at = clock()

    def look(self, value: Any) -> float:
        """Return for how many seconds looks have seen this value."""
        now = self._clock()
        same = value == self._value
        self._secs = self._secs + min(now - self._looked_at, self._most_secs) if same else 0.0
        self._value, self._looked_at = value, now
        return self._secs


def start() -> None:
    """Start to write the record, if one is asked for."""
    # The variable is for this process, and not for others that it starts.
    if given := os.environ.pop(FILE, ""):
        secs, _, path = given.partition(" ")
        writer = _Writer(path, float(secs))
        writer.begin()
        atexit.register(writer.end)


class _Writer(Writer):
    def __init__(self, path: str, every_secs: float) -> None:
        super().__init__(every_secs)
        self._path = path
        self._unchanged = Unchanged(every_secs)
        self._writes = 0

    def write(self) -> None:
        word, progress = STATE.innermost()
        waits_for = STATE.waits_for()
        self._writes += 1
        idle_secs = self._unchanged.look((STATE.changes, word, waits_for, progress))
        record = Record(doing=word, waits_for=waits_for, progress=progress, idle_secs=idle_secs, writes=self._writes)
        # A sync would wait for checkpoints on the same disk.
        files.write_atomic(self._path, encoded(record), synced=False)

    def end(self) -> None:
        """Remove the record before Python stops its threads: the rest of the exit may take long on a busy machine."""
        self.stop(self.every_secs)
        with contextlib.suppress(Exception):
            files.remove_tree(self._path)
