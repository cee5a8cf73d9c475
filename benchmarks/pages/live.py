"""Writes what a running job writes, without running one: log lines, changes of state, points of curves."""

from __future__ import annotations

import os
import shutil
import threading
import time
from types import TracebackType

from benchmarks.pages import timelines
from benchmarks.pages.corpus import LAST_STEP, ROLES, Corpus, logs_of, write_job_directory
from benchmarks.pages.curves import TAGS
from torch_estimator.activity.timeline import Change, Spent
from torch_estimator.log import time_text
from torch_estimator.runs.training_status import TrainingStatus, write_status
from torch_estimator.summary.event_writer import EventWriter

NAME = "live"
_EVERY_SECS = 0.2


class LiveJob:
    """A job in the corpus until the ``with`` block ends.

    A thread writes five lines a second for each role, and each second that it is alive and, unless told otherwise, a
    point of each curve.
    """

    def __init__(self, corpus: Corpus, *, writes_points: bool = True) -> None:
        self._writes_points = writes_points
        self.model_dir = corpus.folder / NAME
        self._began = time.time() - 30
        self._remove(corpus)
        self.model_dir.mkdir()
        logs = logs_of(corpus.lines)
        self._job = write_job_directory(corpus, NAME, self.model_dir, self._began, "RUNNING", logs)
        write_status(str(self.model_dir), TrainingStatus(run="live", max_steps=10 * LAST_STEP, began=self._began))
        self._events = EventWriter(self.model_dir)
        self._logs = {role: open(f"{self._job.logs}/{role}.log", "ab", buffering=0) for role in ROLES}  # noqa: SIM115
        self._timelines = {}
        for number, role in enumerate(ROLES):
            changes = [Change(time=self._began, state="starting"), Change(time=self._began + 8, state="training")]
            file = timelines.write_run(self.model_dir, role, number, self._began, changes, [self._spent()])
            self._timelines[role] = os.open(file, os.O_RDWR)
        self._step = 0
        self._corpus = corpus
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live job", daemon=True)

    def __enter__(self) -> LiveJob:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        self._events.close()
        for log in self._logs.values():
            log.close()
        for descriptor in self._timelines.values():
            os.close(descriptor)
        self._remove(self._corpus)

    def say(self, text: str, role: str = "worker-1") -> float:
        """Write a line of a log; return when it was written."""
        self._logs[role].write(f"{time_text()} {text}\n".encode())
        return time.time()

    def change(self, state: str, waits_for: str, role: str = "worker-1") -> float:
        """Write a change of state; return when it was written."""
        with self._lock:
            content = timelines.line(Change(time=time.time(), state=state, waits_for=(waits_for,)))
            os.pwrite(self._timelines[role], content, os.fstat(self._timelines[role]).st_size)
            return time.time()

    def point(self, value: float) -> float:
        """Write a point of each curve; return when it was written."""
        with self._lock:
            self._step += 1
            self._events.scalars(dict.fromkeys(TAGS, value), self._step)
            return time.time()

    def _run(self) -> None:
        number = 0
        while not self._ends.wait(_EVERY_SECS):
            number += 1
            for role in ROLES:
                self.say(f"INFO:torch_estimator:step {number}, loss {1000 / (number + 10):.4f}", role)
            if number % 5 == 0:
                if self._writes_points:
                    self.point(1000 / (number + 10))
                for place, role in enumerate(ROLES):
                    head = timelines.head(role, place, self._began, self._spent())
                    os.pwrite(self._timelines[role], head, 0)

    def _spent(self) -> Spent:
        now = time.time()
        return Spent(time=now, step=int(now - self._began), computing=round(now - self._began - 8, 3), starting=8.0)

    @staticmethod
    def _remove(corpus: Corpus) -> None:
        for folder in (corpus.folder / NAME, corpus.jobs_dir / NAME):
            shutil.rmtree(folder, ignore_errors=True)
