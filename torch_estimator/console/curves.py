"""What was read of the runs that somebody looks at: curves, reduced to what a screen can show, and timelines.

It is kept in memory within bounds, and files are read on from where they were.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
from torch_estimator.summary.scalar_reader import Points, ScalarReader

MOST_RUNS = 12
"""Most runs that are compared."""

MOST_CHARTS = 200
"""Most charts of a page."""

_MOST_BYTES = 48 * 2**20
# The timelines of a job with 8 roles take a megabyte or two, and are not counted.
_MOST_KEPT = 24
_READ_SECS = 0.5
_LOOK_SECS = 2.0

_Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve with its tag, and the path of the directory in the run's folder that it was found in."""

    place: str
    tag: str
    points: Points


@dataclass
class _Run:
    """The readers of one folder and those below it, by their paths in it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    readers: dict[str, ScalarReader] = field(default_factory=dict)
    looked_at: float = -_LOOK_SECS
    read_at: float = -_READ_SECS
    version: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)
    timelines: timeline.TimelineReader | None = None
    events: list[JobEvent] = field(default_factory=list)
    events_at: float = -1.0

    @property
    def nbytes(self) -> int:
        # The curves are arrays of their own.
        curves = sum(part.nbytes for curve in self.curves.values() for part in curve.points)
        return curves + sum(reader.nbytes for reader in self.readers.values())


class Curves:
    """The curves, timelines and events of the runs that were asked for last."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, found: Found) -> tuple[int, dict[str, Curve]]:
        """Return the curves of a run by name, such as ``eval/loss``, and a number that grows when they change."""
        if not found.folder:
            return 0, {}
        run = self._run(found)
        with run.lock:
            self._read(found, run)
            version, curves = run.version, run.curves
        with self._lock:
            while len(self._runs) > 1 and self.nbytes > self._most_bytes:
                self._runs.popitem(last=False)
        return version, curves

    def timelines(self, found: Found) -> tuple[list[timeline.Run], list[JobEvent]]:
        """Return what the roles of a job noted, and its events; empty lists where there are none."""
        run, runs = self._run(found), []
        with run.lock:
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
            run = self._runs.setdefault(f"{found.id} {found.folder}", _Run())
            self._runs.move_to_end(f"{found.id} {found.folder}")
            if len(self._runs) > _MOST_KEPT:
                self._runs.popitem(last=False)
            return run

    @property
    def nbytes(self) -> int:
        """Bytes of memory that all curves take."""
        return sum(run.nbytes for run in self._runs.values())

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
        for reader in run.readers.values():
            # A directory may be removed at any moment.
            with contextlib.suppress(OSError):
                has_changed = reader.read() or has_changed
        if has_changed:
            run.curves = {
                f"{place}/{tag}" if place else tag: Curve(place, tag, points)
                for place, reader in sorted(run.readers.items())
                for tag, points in reader.curves().items()
            }
            run.version += 1
        run.read_at = time.monotonic()


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
    low, high = x[0], x[-1]
    parts = np.zeros(len(x)) if high <= low else (x - low) / (high - low)
    places = (parts * (buckets - 1e-9)).astype(np.int64)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    kept = [np.array([0, len(x) - 1])]
    for worst, pick in ((np.inf, np.minimum), (-np.inf, np.maximum)):
        filled = np.where(np.isnan(y), worst, y)
        extremes = pick.reduceat(filled, starts)
        # The first point of each bucket that has its extreme.
        hits = np.flatnonzero(filled == np.repeat(extremes, np.diff(np.append(starts, len(x)))))
        kept.append(hits[np.unique(places[hits], return_index=True)[1]])
    chosen = np.unique(np.concatenate(kept))
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
