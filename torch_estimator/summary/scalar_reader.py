"""Reader of the scalars in TensorBoard's event files, which goes on where it was."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.summary.scalar_file import ScalarFile, event_files

Results = dict[int, dict[str, float]]
_Numbers = npt.NDArray[Any]

# What an array takes beside its numbers.
_ARRAY_BYTES = 112
_LEAST_POINTS = 1000


class Points(NamedTuple):
    """Points of a curve in the order of writing: steps (int64), values (float64) and times in seconds since 1970."""

    steps: _Numbers
    values: _Numbers
    times: _Numbers

    def by_step(self) -> dict[int, float]:
        """Return the values by step; of several values of a step, the last one."""
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))

    def only(self, kept: _Numbers) -> Points:
        """Return the points for which an array of booleans is true; no copy of them where these are the first ones."""
        count = int(kept.sum())
        chosen = slice(count) if kept[:count].all() else kept
        return self if count == len(kept) else Points(*(part[chosen] for part in self))

    def thinned(self) -> Points:
        """Return half of the points at most: the least and the greatest of spans of as many steps."""
        # The spans are of steps, since of older points fewer are left from the last time.
        x = self.steps.astype(np.float64)
        if x[-1] <= x[0] or (np.diff(x) < 0).any():
            x = np.arange(float(len(x)))
        kept = extremes(x, self.values, len(x) // 4)
        return Points(*(part[kept] for part in self))


class ScalarReader:
    """Reads the scalars in the event files of a directory on from where it was.

    If a run resumed at a step, the points that earlier runs wrote at this step or later are left out.
    """

    def __init__(self, logdir: files.PathLike) -> None:
        self.logdir = files.as_url(logdir)
        self.is_behind = False
        self._files: dict[str, _File] = {}

    def read(self, until: float = inf) -> bool:
        """Read what was written since the last call; return whether any point came or went.

        After `until`, by `time.monotonic`, it stops when it has read something; `is_behind` says that more is there.
        """
        sizes = event_files(self.logdir)
        gone = self._files.keys() - sizes
        for name in gone:
            del self._files[name]
        changed = bool(gone)
        self.is_behind = False
        for name in sorted(sizes):
            if changed and time.monotonic() > until:
                self.is_behind = True
                break
            file = self._files.get(name)
            if file is None or not file.is_same(sizes[name]):
                changed = changed or file is not None
                file = self._files[name] = _File(files.join(self.logdir, name))
            try:
                changed = file.read_on(sizes[name], until) or changed
                self.is_behind = self.is_behind or file.is_behind
            except FileNotFoundError:
                del self._files[name]
        return changed

    def curves(self) -> dict[str, Points]:
        """Return the points that were read, by tag."""
        return {tag: joined(parts) for tag, parts in self.parts().items()}

    def parts(self) -> dict[str, list[Points]]:
        """Return the points that were read, by tag, in one part for each file: they are held only once."""
        found: defaultdict[str, list[Points]] = defaultdict(list)
        later: list[int] = []
        for _, file in sorted(self._files.items(), reverse=True):
            file.join()
            for tag, (points,) in file.points.items():
                points = points.only(points.steps < min(later)) if later else points
                if len(points.steps):
                    found[tag].insert(0, points)
            later += file.starts
        return dict(sorted(found.items()))

    def thin(self) -> bool:
        """Halve the longest curves, so that the extremes of short spans stay; return whether that made any shorter."""
        several = [parts for file in self._files.values() for parts in file.points.values()]
        longest = max((len(points.steps) for parts in several for points in parts), default=0)
        if longest < _LEAST_POINTS:
            return False
        for parts in several:
            parts[:] = [points.thinned() if 2 * len(points.steps) > longest else points for points in parts]
        return True

    def results(self) -> Results:
        """Read on, and return the scalars by step. If a step has a scalar several times, the last value counts."""
        self.read()
        results: Results = {}
        for tag, points in self.curves().items():
            for step, value in points.by_step().items():
                results.setdefault(step, {})[tag] = value
        return dict(sorted(results.items()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the points take."""
        arrays = (array for file in self._files.values() for parts in file.points.values() for array in _arrays(parts))
        # Tags that were written together share steps and times.
        return sum({id(one): one.nbytes + _ARRAY_BYTES for one in arrays}.values())


def read_scalars(logdir: files.PathLike) -> dict[str, Points]:
    """Return the scalars in the event files of a directory; see `ScalarReader`."""
    reader = ScalarReader(logdir)
    reader.read()
    return reader.curves()


class _File(ScalarFile):
    """What was read of one file: points by tag, in parts, and the steps at which runs resumed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.points: defaultdict[str, list[Points]] = defaultdict(list)
        self.starts: list[int] = []

    def read_on(self, size: int, until: float) -> bool:
        """Read on up to a size or a time; return whether there was any event."""
        begin = self.position
        for start, found in self.read(size, until):
            made: dict[tuple[Any, ...], _Numbers] = {}
            if start is not None:
                self.starts.append(start)
                for parts in self.points.values():
                    parts[:] = [points.only(points.steps < start) for points in parts]
            for tag, several in found.items():
                steps, values, times = zip(*several, strict=True)
                for key, dtype in ((("steps", steps), np.int64), (("times", times), np.float64)):
                    if key not in made:
                        made[key] = np.array(key[1], dtype)
                points = Points(made["steps", steps], np.array(values, np.float64), made["times", times])
                self.points[tag].append(points)
        return self.position != begin

    def join(self) -> None:
        """Make one part of those of each tag. What tags share they still share."""
        made: dict[tuple[int, ...], _Numbers] = {}

        def once(arrays: tuple[_Numbers, ...]) -> _Numbers:
            # All arrays that are looked for were there before the first one was made and another one went.
            key = tuple(map(id, arrays))
            if key not in made:
                made[key] = np.concatenate(arrays)
            return made[key]

        for parts in self.points.values():
            parts[:] = [joined(parts, once)]


def joined(parts: list[Points], join: Callable[[tuple[_Numbers, ...]], _Numbers] = np.concatenate) -> Points:
    """Return several points as one."""
    return parts[0] if len(parts) == 1 else Points(*map(join, zip(*parts, strict=True)))


def _arrays(several: Iterable[Points]) -> Iterable[_Numbers]:
    """Return what holds the numbers: a part of an array keeps all of it."""
    return (part if part.base is None else part.base for points in several for part in points)


def extremes(x: _Numbers, y: _Numbers, buckets: int) -> _Numbers:
    """Return the places of the least and the greatest `y` of each bucket of `x`, and of the first and last point.

    `x` is ascending. NaN is kept only in buckets of nothing else.
    """
    low, high = x[0], x[-1]
    parts = np.zeros(len(x)) if high <= low else (x - low) / (high - low)
    places = (parts * (buckets - 1e-9)).astype(np.int64)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    kept = [np.array([0, len(x) - 1])]
    for worst, pick in ((np.inf, np.minimum), (-np.inf, np.maximum)):
        filled = np.where(np.isnan(y), worst, y)
        best = pick.reduceat(filled, starts)
        # The first point of each bucket that has its extreme.
        hits = np.flatnonzero(filled == np.repeat(best, np.diff(np.append(starts, len(x)))))
        kept.append(hits[np.unique(places[hits], return_index=True)[1]])
    return np.unique(np.concatenate(kept))
