"""Reader of the scalars in TensorBoard's event files, which goes on where it was."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.summary.scalar_file import ScalarFile

Results = dict[int, dict[str, float]]
_Numbers = npt.NDArray[Any]


class Points(NamedTuple):
    """Points of a curve in the order of writing: steps (int64), values (float64) and times in seconds since 1970."""

    steps: _Numbers
    values: _Numbers
    times: _Numbers

    def by_step(self) -> dict[int, float]:
        """Return the values by step; of several values of a step, the last one."""
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))

    def only(self, kept: _Numbers) -> Points:
        """Return the points for which an array of booleans is true."""
        return self if kept.all() else Points(*(part[kept] for part in self))


class ScalarReader:
    """Reads the scalars in the event files of a directory on from where it was.

    If a run resumed at a step, the points that earlier runs wrote at this step or later are left out.
    """

    def __init__(self, logdir: files.PathLike) -> None:
        self.logdir = files.as_url(logdir)
        self._files: dict[str, _File] = {}

    def read(self) -> bool:
        """Read what was written since the last call; return whether any point came or went."""
        sizes = {name: size for name, size in files.sizes(self.logdir).items() if "tfevents" in name}
        gone = self._files.keys() - sizes
        for name in gone:
            del self._files[name]
        changed = bool(gone)
        for name in sorted(sizes):
            file = self._files.get(name)
            if file is None or not file.is_same(sizes[name]):
                changed = changed or file is not None
                file = self._files[name] = _File(files.join(self.logdir, name))
            try:
                changed = file.read_on(sizes[name]) or changed
            except FileNotFoundError:
                del self._files[name]
        return changed

    def curves(self) -> dict[str, Points]:
        """Return the points that were read, by tag."""
        found: defaultdict[str, list[Points]] = defaultdict(list)
        later: list[int] = []
        for _, file in sorted(self._files.items(), reverse=True):
            for tag, parts in file.points.items():
                parts[:] = [_joined(parts)]
                points = parts[0].only(parts[0].steps < min(later)) if later else parts[0]
                if len(points.steps):
                    found[tag].insert(0, points)
            later += file.starts
        return {tag: _joined(parts) for tag, parts in sorted(found.items())}

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
        return sum(map(_File.nbytes, self._files.values()))


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

    def nbytes(self) -> int:
        return sum(part.nbytes for parts in self.points.values() for points in parts for part in points)

    def read_on(self, size: int) -> bool:
        """Read on up to a size; return whether there was any event."""
        begin = self.position
        for start, found in self.read(size):
            if start is not None:
                self.starts.append(start)
                for parts in self.points.values():
                    parts[:] = [points.only(points.steps < start) for points in parts]
            for tag, several in found.items():
                steps, values, times = zip(*several, strict=True)
                points = Points(np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.float64))
                self.points[tag].append(points)
        return self.position != begin


def _joined(parts: list[Points]) -> Points:
    return parts[0] if len(parts) == 1 else Points(*map(np.concatenate, zip(*parts, strict=True)))
