"""What roles noted, and the events of jobs, of the jobs that somebody looks at; read on from where it was."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from torch_estimator.activity.timeline import Run, TimelineReader
from torch_estimator.console.rows import changed_at
from torch_estimator.console.sources import Found, main_folder
from torch_estimator.errors import UserError
from torch_estimator.jobs.directory import JobEvent

# The timelines of a job with 8 roles take a megabyte or two.
_MOST_JOBS = 16


@dataclass
class _Job:
    reader: TimelineReader | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    events_at: float = -1.0
    events: list[JobEvent] = field(default_factory=list)


class Timelines:
    """The timelines and events of the jobs that were asked for last."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, found: Found) -> tuple[list[Run], list[JobEvent]]:
        """Return the runs of the roles of a job, and its events; empty lists where there are none."""
        key = f"{found.id} {found.folder}"
        with self._lock:
            if key not in self._jobs:
                self._jobs[key] = _Job(TimelineReader(main_folder(found)) if found.folder else None)
            job = self._jobs[key]
            self._jobs.move_to_end(key)
            while len(self._jobs) > _MOST_JOBS:
                self._jobs.popitem(last=False)
        runs: list[Run] = []
        with job.lock:
            if job.reader is not None:
                # What is damaged or gone is not there.
                with contextlib.suppress(OSError, UserError, ValueError):
                    runs = job.reader.runs()
            changed = changed_at(found)
            if found.job is not None and found.trial is None and (not changed or changed != job.events_at):
                with contextlib.suppress(OSError, UserError, ValueError):
                    job.events, job.events_at = found.job.events(), changed
            return runs, job.events
