"""What was read of the runs that somebody looks at: curves, reduced to what a screen can show, and timelines.

It is kept in memory within bounds, and files are read on from where they were. No request waits long for it: what takes
more than a second to read, the next requests read on.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.activity import timeline
from torch_estimator.console.rows import changed_at, preferred
from torch_estimator.console.sources import Found, folders_with_events, main_folder
from torch_estimator.console.texts import clean, number
from torch_estimator.errors import UserError
from torch_estimator.jobs.directory import JobEvent
from torch_estimator.summary.scalar_reader import Points, ScalarReader, extremes, joined

MOST_RUNS = 12
"""Most runs that are compared."""

MOST_CHARTS = 200
"""Most charts of a page."""

_MOST_BYTES = 48 * 2**20
# A third of it for one run: to draw a curve takes several times its memory.
_MOST_PART = 3
# The timelines of a job with 8 roles take a megabyte or two, and are not counted.
_MOST_KEPT = 24
# A run that nobody has asked for so long is forgotten before others lose points.
_IDLE_SECS = 60.0
_WAIT_SECS = 1.0
_READ_SECS = 0.5
_LOOK_SECS = 2.0

_Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve with its tag, and the path of the directory in the run's folder that it was found in."""

    place: str
    tag: str
    parts: list[Points]

    @property
    def points(self) -> Points:
        """All of its points, in the order of writing."""
        return joined(self.parts)


@dataclass
class _Run:
    """The readers of one folder and those below it, by their paths in it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    timelines_lock: threading.Lock = field(default_factory=threading.Lock)
    asked_at: float = 0.0
    is_behind: bool = False
    nbytes: int = 0
    readers: dict[str, ScalarReader] = field(default_factory=dict)
    looked_at: float = -_LOOK_SECS
    read_at: float = -_READ_SECS
    version: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    timelines: timeline.TimelineReader | None = None
    events: list[JobEvent] = field(default_factory=list)
    events_at: float = -1.0

    def update(self, most_bytes: float = inf) -> None:
        """Make the curves of what was read, with at most so many bytes if fewer points do it."""
        while True:
            # The curves are parts of what the readers hold.
            parts = {place: reader.parts() for place, reader in sorted(self.readers.items())}
            self.nbytes = sum(reader.nbytes for reader in self.readers.values())
            if self.nbytes <= most_bytes or not max(self.readers.values(), key=_bytes_of).thin():
                break
        self.curves = {
            f"{place}/{tag}" if place else tag: Curve(place, tag, several)
            for place, tags in parts.items()
            for tag, several in tags.items()
        }


def _bytes_of(held: ScalarReader | _Run) -> int:
    return held.nbytes


class Curves:
    """The curves, timelines and events of the runs that were asked for last."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, found: Found, until: float | None = None) -> tuple[int, dict[str, Curve]]:
        """Return the curves of a run by name, such as ``eval/loss``, and a number that grows when they change.

        `until` is when to stop waiting for other requests that read the run, by `time.monotonic`. If `is_behind`, these
        are the points that were read so far.
        """
        if not found.folder:
            return 0, {}
        run = self._run(found)
        until = wait_until() if until is None else until
        if run.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            try:
                self._read(found, run)
            finally:
                run.lock.release()
        version, curves = run.version, run.curves
        self._bound()
        return version, curves

    def is_behind(self, found: Found) -> bool:
        """Return whether more of a run is written than was read."""
        run = self._runs.get(_key(found))
        return run is not None and run.is_behind

    def timelines(self, found: Found) -> tuple[list[timeline.Run], list[JobEvent]]:
        """Return what the roles of a job noted, and its events; empty lists where there are none."""
        run, runs = self._run(found), []
        with run.timelines_lock:
            # What is damaged or gone is not there.
            if found.folder:
                run.timelines = run.timelines or timeline.TimelineReader(main_folder(found))
                with contextlib.suppress(OSError, UserError, ValueError):
                    runs = run.timelines.runs()
            changed = changed_at(found)
            if found.job is not None and found.trial is None and (not changed or changed != run.events_at):
                with contextlib.suppress(OSError, UserError, ValueError):
                    run.events, run.events_at = found.job.events(), changed
            return runs, run.events

    def _run(self, found: Found) -> _Run:
        with self._lock:
            run = self._runs.setdefault(_key(found), _Run())
            self._runs.move_to_end(_key(found))
            run.asked_at = time.monotonic()
            if len(self._runs) > _MOST_KEPT:
                self._runs.popitem(last=False)
            return run

    @property
    def nbytes(self) -> int:
        """Bytes of memory that all curves take."""
        return sum(run.nbytes for run in self._runs.values())

    def _bound(self) -> None:
        """Forget what nobody looks at, then thin the largest runs: those of a comparison all have their part."""
        least = self._most_bytes / MOST_RUNS
        with self._lock:
            while len(self._runs) > 1 and self.nbytes > self._most_bytes:
                oldest = next(iter(self._runs.values()))
                largest = max(self._runs.values(), key=_bytes_of)
                is_thinner = False
                if time.monotonic() - oldest.asked_at < _IDLE_SECS and largest.nbytes > least:
                    if not largest.lock.acquire(blocking=False):
                        # The request that reads it comes here next.
                        break
                    try:
                        before = largest.nbytes
                        largest.update(max(least, before / 2))
                        is_thinner = largest.nbytes < before
                    finally:
                        largest.lock.release()
                if not is_thinner:
                    self._runs.popitem(last=False)

    def _read(self, found: Found, run: _Run) -> None:
        folder, now = found.folder, time.monotonic()
        if now - run.read_at < _READ_SECS:
            return
        has_changed = False
        if now - run.looked_at > _LOOK_SECS:
            there = []
            with contextlib.suppress(OSError):
                there = [place for place in folders_with_events(folder) if found.has(place)]
            has_changed = any(place not in there for place in run.readers)
            run.readers = {
                place: run.readers.get(place) or ScalarReader(files.join(folder, place) if place else folder)
                for place in there
            }
            run.looked_at = now
        until, is_behind = wait_until(), False
        # A large file must not keep small ones from being read.
        for reader in sorted(run.readers.values(), key=_bytes_of):
            if is_behind := has_changed and time.monotonic() > until:
                break
            # A directory may be removed at any moment.
            with contextlib.suppress(OSError):
                has_changed = reader.read(until) or has_changed
        run.is_behind = is_behind or any(reader.is_behind for reader in run.readers.values())
        if has_changed:
            run.update(self._most_bytes / _MOST_PART)
            run.version += 1
        if not run.is_behind:
            run.read_at = time.monotonic()


def wait_until() -> float:
    """Return until when a request that begins now may wait."""
    return time.monotonic() + _WAIT_SECS


def _key(found: Found) -> str:
    return f"{found.id} {found.folder}"


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves of one tag, of the training and of evaluations: their names, and their last values as text."""

    title: str
    names: tuple[str, ...]
    last: str


def charts_of(curves: Mapping[str, Curve], text: str = "") -> list[Chart]:
    """Return the charts of a run whose titles have a text. The charts that say most come first."""
    by_tag: dict[str, list[str]] = {}
    for name, curve in curves.items():
        by_tag.setdefault(curve.tag, []).append(name)
    first = preferred(by_tag)
    best = None if first is None else first[0]
    order = sorted(by_tag, key=lambda tag: (tag != "loss", tag != best, tag == "global_step/sec", tag))
    charts = []
    for tag in order:
        names = sorted(by_tag[tag], key=lambda name: (bool(curves[name].place), name))
        shown = [curves[name] for name in names[:4]]
        last = ", ".join(f"{label_of(one)} {number(float(one.points.values[-1]))}" for one in shown)
        title = clean(tag, 120)
        if text.lower() in title.lower():
            charts.append(Chart(title, tuple(names), last))
    return charts


def set_of(curves: Iterable[str]) -> str:
    """Return a text that changes when curves with other names are there, by which a page asks for its charts again."""
    return f"{zlib.crc32(chr(10).join(sorted(curves)).encode(errors='replace')):08x}"


def label_of(curve: Curve) -> str:
    """Return what a curve is called in its chart."""
    usual = {"": "training", "train": "training", "eval": "evaluation"}
    return usual.get(curve.place) or clean(curve.place.removeprefix("eval_"), 60)


def reduced(x: _Numbers, y: _Numbers, buckets: int) -> tuple[_Numbers, _Numbers]:
    """Return at most two points of each bucket of `x`, its least and its greatest `y`, and the first and last point.

    `x` is ascending. What was one peak among a million points stays one. NaN is kept only in buckets of nothing else.
    """
    if len(x) <= 2 * buckets:
        return x, y
    chosen = extremes(x, y, buckets)
    return x[chosen], y[chosen]


def between(points: Points, by: str, low: float | None, high: float | None) -> tuple[_Numbers, _Numbers]:
    """Return `x`, ascending, and `y` of a curve by ``step`` or ``time`` within bounds, and one point on either side."""
    x = points.steps.astype(np.float64) if by == "step" else points.times
    y = points.values
    if len(x) > 1 and (np.diff(x) < 0).any():
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    first = 0 if low is None else max(0, int(np.searchsorted(x, low, "left")) - 1)
    last = len(x) if high is None else int(np.searchsorted(x, high, "right")) + 1
    return x[first:last], y[first:last]
