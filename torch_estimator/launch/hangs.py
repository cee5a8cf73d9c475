"""Which processes of a job hang, by the records that they write (`torch_estimator.activity`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from torch_estimator import files
from torch_estimator.activity import Record, Records, Unchanged
from torch_estimator.cluster.task import Task, role_of
from torch_estimator.errors import UserError

# What the counter of an activity counts.
_UNITS = {"training": "step", "evaluating": "batch"}


class Hangs:
    """Tells a task that hangs: one without progress that waits for nobody, or one that no longer writes its record.

    A program that does not use this package writes no record, and is never said to hang. `clock` returns monotonic
    seconds; ages in the records are by the clock of the process that writes them.
    """

    def __init__(self, records: Records, clock: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock = clock
        self._writes: dict[str, Unchanged] = {}
        files.makedirs(records.folder)

    @property
    def every_secs(self) -> float:
        """Seconds between two calls of `reason` for a task."""
        return self._records.every_secs

    def begin(self, task: Task) -> None:
        """Forget the record of the task's last process, since another one is about to start."""
        self._writes.pop(role_of(task), None)
        # A store that does not answer must not end the job.
        with contextlib.suppress(OSError):
            self._records.of(role_of(task)).remove()

    def reason(self, task: Task) -> str | None:
        """Return how the task hangs, such as ``made no step for 60 s (last: step 412, training)``; None if it does not.

        Call it regularly for each task that runs.
        """
        role, secs = role_of(task), self._records.hang_secs
        try:
            record = self._records.of(role).read()
        except (OSError, UserError):
            # A store that does not answer says nothing about the task.
            record = None
        if record is None:
            self._writes.pop(role, None)
            return None
        if role not in self._writes:
            self._writes[role] = Unchanged(self.every_secs, self._clock)
        silent = self._writes[role].look(record.writes)
        if silent >= secs:
            return f"did not even write its record for {silent:.0f} s ({_last(record)})"
        if record.doing and not record.waits_for and record.idle_secs >= secs:
            return f"made no {_UNITS.get(record.doing, 'progress')} for {record.idle_secs:.0f} s ({_last(record)})"
        return None


def _last(record: Record) -> str:
    unit = _UNITS.get(record.doing)
    parts = [f"{unit} {record.progress:.0f}"] if unit is not None and record.progress is not None else []
    parts += [record.doing] if record.doing else []
    parts += [f"waiting for {', '.join(record.waits_for)}"] if record.waits_for else []
    return f"last: {', '.join(parts) or 'the program itself'}"
