"""Reader of the scalars in TensorBoard's event files, which goes on where it was."""

from __future__ import annotations

import contextlib
import functools
import logging
import struct
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.tfrecord.records import FOOTER_BYTES, HEADER_BYTES, masked_crc32c, records

_logger = logging.getLogger(__name__)

Results = dict[int, dict[str, float]]
_Numbers = npt.NDArray[Any]

_BLOCK_BYTES = 2**20
# A larger record holds pictures or a graph, and is skipped without reading it.
_MOST_RECORD_BYTES = 2**26
# By the bytes before the place where it was, the reader notices that a file has another content now.
_KNOWN_BYTES = 16
_MOST_LOOKS_BACK = 3
_MOST_CHECKSUMS = 500


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

    If a run resumed at a step, the points that earlier runs wrote at this step or later are left out. With
    `most_bytes`, begin in the last so many bytes of the newest file that has points: enough for the last values.
    """

    def __init__(self, logdir: files.PathLike, *, most_bytes: int | None = None) -> None:
        self.logdir = files.as_url(logdir)
        self._most_bytes = most_bytes
        self._files: dict[str, _File] = {}

    def read(self) -> bool:
        """Read what was written since the last call; return whether any point came or went."""
        sizes = {name: size for name, size in files.sizes(self.logdir).items() if "tfevents" in name}
        gone = self._files.keys() - sizes
        for name in gone:
            del self._files[name]
        changed = bool(gone)
        for looked, name in enumerate(sorted(sizes, reverse=self._most_bytes is not None)):
            if self._most_bytes is not None and (
                looked == _MOST_LOOKS_BACK or any(map(_File.nbytes, self._files.values()))
            ):
                break
            file = self._files.get(name)
            if file is None or not file.is_same(sizes[name]):
                changed = changed or file is not None
                file = self._files[name] = _File(files.join(self.logdir, name), self._most_bytes)
            try:
                changed = file.read(sizes[name]) or changed
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


class _File:
    """What was read of one file, up to a position: points by tag, in parts, and the steps at which runs resumed."""

    def __init__(self, path: str, most_bytes: int | None) -> None:
        self.points: defaultdict[str, list[Points]] = defaultdict(list)
        self.starts: list[int] = []
        self._path = path
        self._most_bytes = most_bytes
        self._position = 0
        self._known = b""
        self._is_damaged = False

    def nbytes(self) -> int:
        return sum(part.nbytes for parts in self.points.values() for points in parts for part in points)

    def is_same(self, size: int) -> bool:
        """Return whether the file still begins with what was read."""
        if size <= self._position:
            return size == self._position
        start = self._position - len(self._known)
        return self._known == files.read_part(self._path, start, self._position)

    def read(self, size: int) -> bool:
        """Read on up to a size; return whether there was any event."""
        begin = self._position
        if self._most_bytes is not None and not begin and size > self._most_bytes:
            tail = files.read_part(self._path, size - self._most_bytes, size)
            self._position = size - self._most_bytes + _first_record(tail)
        wanted = _BLOCK_BYTES
        while (left := size - self._position) > HEADER_BYTES and not self._is_damaged:
            data = files.read_part(self._path, self._position, self._position + min(wanted, left))
            if len(data) < min(wanted, left):
                break  # The file is shorter now.
            taken = self._take(data)
            if taken:
                wanted = _BLOCK_BYTES
            else:
                (length,) = struct.unpack_from("<Q", data)
                wanted = HEADER_BYTES + length + FOOTER_BYTES
                if wanted > left:
                    break  # It is not written to its end yet.
                if wanted > _MOST_RECORD_BYTES:
                    taken, wanted = wanted, _BLOCK_BYTES
            self._known = (self._known + data[:taken])[-_KNOWN_BYTES:] if taken <= len(data) else b""
            self._position += taken
        return self._position != begin

    def _take(self, data: bytes) -> int:
        """Take the points of the complete records; return how many bytes those have."""
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # stubs are not a dependency
        from tensorboard.compat.proto import event_pb2

        found: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)
        end = 0
        for start, content in records(data):
            try:
                event = event_pb2.Event.FromString(content)
            except DecodeError:
                _warn(self._path, self._position + start)
                self._is_damaged = True
                break
            end = start + len(content) + FOOTER_BYTES
            step, time = event.step, event.wall_time
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                self._add(found)
                found.clear()
                self.starts.append(step)
                for parts in self.points.values():
                    parts[:] = [points.only(points.steps < step) for points in parts]
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else _in_tensor(value)
                if number is not None:
                    found[value.tag].append((step, number, time))
        self._add(found)
        return end

    def _add(self, found: dict[str, list[tuple[int, float, float]]]) -> None:
        for tag, several in found.items():
            steps, values, times = zip(*several, strict=True)
            points = Points(np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.float64))
            self.points[tag].append(points)


def _in_tensor(value: Any) -> float | None:
    """Return the number of a summary's value as TensorFlow 2 writes scalars; None if it is no scalar."""
    if value.metadata.plugin_data.plugin_name != "scalars":
        return None
    tensor = value.tensor
    if tensor.dtype == 1 and len(tensor.tensor_content) == 4:  # one float, which is nearly all that there is
        return float(struct.unpack("<f", tensor.tensor_content)[0])
    from tensorboard.util.tensor_util import make_ndarray

    with contextlib.suppress(Exception):
        return float(make_ndarray(tensor).reshape(()))
    return None


@functools.lru_cache(1000)
def _warn(path: str, place: int) -> None:
    """Say once that a file is damaged; it may be read again and again."""
    _logger.warning("%s is damaged at byte %d; the rest of it is skipped.", path, place)


def _joined(parts: list[Points]) -> Points:
    return parts[0] if len(parts) == 1 else Points(*map(np.concatenate, zip(*parts, strict=True)))


def _first_record(data: bytes) -> int:
    """Return the place of the first record in the end of a file, which may begin within one; the length if none."""
    at, checked = -1, 0
    # The upper half of the length is always zero.
    while checked < _MOST_CHECKSUMS and (at := data.find(b"\0\0\0\0", at + 1)) >= 0:
        start = at - 4
        if start < 0 or start + HEADER_BYTES > len(data):
            continue
        length, _, check = struct.unpack_from("<III", data, start)
        after = start + HEADER_BYTES + length + FOOTER_BYTES
        if after + 8 <= len(data) and data[after + 4 : after + 8] != b"\0\0\0\0":
            continue
        checked += 1
        if masked_crc32c(data[start : start + 8]) == check:
            return start
    return len(data)
