"""Reader of the scalars in TensorBoard's event files, which goes on where it was.

Nearly all events of a file differ only in their time, step and values. So the first event of a kind is taken apart byte
by byte, and numpy takes those numbers out of all events that are equal to it in the other bytes. This needs a tenth of
the time that protocol buffers take, and no package for them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.tfrecord.records import FOOTER_BYTES, HEADER_BYTES, masked_crc32c

_logger = logging.getLogger(__name__)

Results = dict[int, dict[str, float]]
_Numbers = npt.NDArray[Any]

_BLOCK_BYTES = 2**20
# A larger record holds pictures or a graph, and is skipped without reading it.
_MOST_RECORD_BYTES = 2**26
# By the bytes before the place where it was, the reader notices that a file has another content now.
_KNOWN_BYTES = 16
_MOST_LAYOUTS = 16
_MOST_LENGTHS = 256
_MOST_CHUNKS = 32
_MOST_LOOKS_BACK = 3
_MOST_CHECKSUMS = 500

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOATS: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}


class Points(NamedTuple):
    """Points of a curve in the order of writing: steps (int64), values (float64) and times in seconds since 1970."""

    steps: _Numbers
    values: _Numbers
    times: _Numbers

    def by_step(self) -> dict[int, float]:
        """Return the values by step; of several values of a step, the last one."""
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))


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
            if self._most_bytes is not None and (looked == _MOST_LOOKS_BACK or any(map(len, self._files.values()))):
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
        found: dict[str, list[Points]] = {}
        later: int | None = None
        for name in sorted(self._files, reverse=True):
            file = self._files[name]
            for tag, points in file.curves(later).items():
                found.setdefault(tag, []).append(points)
            later = min((one for one in (later, file.least_start) if one is not None), default=None)
        return {tag: _joined(parts[::-1]) for tag, parts in sorted(found.items())}

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
        return sum(chunk.nbytes for file in self._files.values() for chunks in file.groups.values() for chunk in chunks)


def read_scalars(logdir: files.PathLike) -> dict[str, Points]:
    """Return the scalars in the event files of a directory; see `ScalarReader`."""
    reader = ScalarReader(logdir)
    reader.read()
    return reader.curves()


class _Chunk(NamedTuple):
    """Scalars of several events with the same tags: of each its number in the file, step, time, and value by tag."""

    numbers: _Numbers
    steps: _Numbers
    times: _Numbers
    values: _Numbers

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self)

    def only(self, kept: _Numbers) -> _Chunk:
        return self if kept.all() else _Chunk(*(part[kept] for part in self))


@dataclass
class _File:
    """What was read of one file, up to a position.

    `groups` has chunks by the tags of their events. `least_start` is the least step at which a run resumed in it.
    """

    path: str
    most_bytes: int | None = None
    position: int = 0
    groups: dict[tuple[str, ...], list[_Chunk]] = field(default_factory=dict)
    least_start: int | None = None
    _known: bytes = b""
    _events: int = 0
    _is_damaged: bool = False
    _layouts: dict[int, list[_Layout]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(chunk.steps) for chunks in self.groups.values() for chunk in chunks)

    def is_same(self, size: int) -> bool:
        """Return whether the file still begins with what was read."""
        if size <= self.position:
            return size == self.position
        start = self.position - len(self._known)
        return self._known == files.read_part(self.path, start, self.position)

    def read(self, size: int) -> bool:
        before, starts = self._events, self.least_start
        if self.most_bytes is not None and not self.position and size > self.most_bytes:
            tail = files.read_part(self.path, size - self.most_bytes, size)
            self.position = size - self.most_bytes + _first_record(tail)
        wanted = _BLOCK_BYTES
        while self.position + HEADER_BYTES < size and not self._is_damaged:
            data = files.read_part(self.path, self.position, min(size, self.position + wanted))
            taken, needed = self._take(data)
            if needed > _MOST_RECORD_BYTES and self.position + taken + needed <= size:
                taken += needed
            elif not taken and (needed <= wanted or needed > _MOST_RECORD_BYTES):
                break
            wanted = max(_BLOCK_BYTES, min(needed, _MOST_RECORD_BYTES))
            self.position += taken
            self._known = (self._known + data[:taken])[-_KNOWN_BYTES:] if taken <= len(data) else b""
        return (self._events, self.least_start) != (before, starts)

    def _take(self, data: bytes) -> tuple[int, int]:
        """Take the complete records; return how many bytes they have, and how many the next one has, if known."""
        places, lengths, at, needed = [], [], 0, 0
        unpack = struct.Struct("<Q").unpack_from
        while at + HEADER_BYTES <= len(data):
            (length,) = unpack(data, at)
            needed = HEADER_BYTES + length + FOOTER_BYTES
            if at + needed > len(data):
                break
            places.append(at + HEADER_BYTES)
            lengths.append(length)
            at += needed
            needed = 0
        if places:
            try:
                self._decode(data, np.array(places), np.array(lengths))
            except _Damaged as error:
                where = self.position + error.args[0]
                _warn(self.path, where)
                self._is_damaged = True
        return at, needed

    def _decode(self, data: bytes, places: _Numbers, lengths: _Numbers) -> None:
        content = np.frombuffer(data, np.uint8)
        numbers = self._events + np.arange(len(places))
        starts: list[tuple[int, int]] = []
        damaged: int | None = None
        for length in np.unique(lengths).tolist():
            left = np.flatnonzero(lengths == length)
            known = self._layouts.setdefault(length, []) if len(self._layouts) < _MOST_LENGTHS else []
            windows = np.lib.stride_tricks.sliding_window_view(content, length) if length else None
            tried = 0
            while len(left) and windows is not None:
                if tried < len(known):
                    layout = known[tried]
                else:
                    first = int(places[left[0]])
                    try:
                        layout = _Layout.of(data[first : first + length])
                    except (ValueError, IndexError, struct.error):
                        damaged = min(first, first if damaged is None else damaged)
                        left = left[1:]
                        continue
                    if layout.repeats and len(known) < _MOST_LAYOUTS:
                        known.append(layout)
                if tried < len(known):
                    rows = windows[places[left]]
                    same = layout.fits(rows)
                    self._append(layout, numbers[left[same]], rows[same], starts)
                    left = left[~same]
                    tried += 1
                else:
                    self._append(layout, numbers[left[:1]], windows[places[left[:1]]], starts)
                    left = left[1:]
        self._events += len(places)
        if damaged is not None:
            # The points after the damage are left out.
            self._drop(int(numbers[np.searchsorted(places, damaged)]), None)
        for number, step in sorted(starts):
            self._drop(number, step)
            self.least_start = min(step, step if self.least_start is None else self.least_start)
        if damaged is not None:
            raise _Damaged(damaged)

    def _append(self, layout: _Layout, numbers: _Numbers, rows: _Numbers, starts: list[tuple[int, int]]) -> None:
        if not len(numbers) or not (layout.tags or layout.is_start):
            return
        steps = layout.steps(rows)
        if layout.is_start:
            starts += zip(numbers.tolist(), steps.tolist(), strict=True)
        if layout.tags:
            chunks = self.groups.setdefault(layout.tags, [])
            chunks.append(_Chunk(numbers, steps, layout.times(rows), layout.values(rows)))
            if len(chunks) > _MOST_CHUNKS:
                chunks[:] = [_concatenated(chunks)]

    def _drop(self, number: int, step: int | None) -> None:
        """Drop the points before an event from a step on; without a step, those from the event on."""
        for chunks in self.groups.values():
            for place, chunk in enumerate(chunks):
                kept = chunk.numbers < number
                chunks[place] = chunk.only(kept if step is None else ~kept | (chunk.steps < step))

    def curves(self, before: int | None) -> dict[str, Points]:
        """Return the points by tag, of all steps or of those before a step."""
        found: dict[str, list[tuple[_Chunk, int]]] = {}
        for tags, chunks in self.groups.items():
            if chunks:
                chunks[:] = [_concatenated(chunks)]
                chunk = chunks[0] if before is None else chunks[0].only(chunks[0].steps < before)
                for column, tag in enumerate(tags if len(chunk.steps) else ()):
                    found.setdefault(tag, []).append((chunk, column))
        return {tag: _column(parts) for tag, parts in found.items()}


@functools.lru_cache(1000)
def _warn(path: str, place: int) -> None:
    """Say once that a file is damaged; it may be read again and again."""
    _logger.warning("%s is damaged at byte %d; the rest of it is skipped.", path, place)


class _Damaged(Exception):
    """A record is no event. The argument is its place."""


def _concatenated(chunks: list[_Chunk]) -> _Chunk:
    if len(chunks) == 1:
        return chunks[0]
    joined = _Chunk(*map(np.concatenate, zip(*chunks, strict=True)))
    order = np.argsort(joined.numbers, kind="stable")
    return _Chunk(*(part[order] for part in joined))


def _column(parts: list[tuple[_Chunk, int]]) -> Points:
    points = _joined([Points(one.steps, one.values[:, column].astype(np.float64), one.times) for one, column in parts])
    if len(parts) == 1:
        return points
    order = np.argsort(np.concatenate([one.numbers for one, _ in parts]), kind="stable")
    return Points(*(part[order] for part in points))


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


@dataclass(frozen=True)
class _Layout:
    """Where an event has its time, step and scalars; other events may be equal to it in all other bits.

    `same` has the bits that are equal. `at` has for each tag the place and the type of its value, or its value. Only a
    layout that `repeats` fits more than one event.
    """

    event: _Numbers
    same: _Numbers
    time_at: int | None
    step_at: tuple[int, int]
    tags: tuple[str, ...]
    at: tuple[tuple[int, Any] | float, ...]
    is_start: bool
    repeats: bool

    @classmethod
    def of(cls, event: bytes) -> _Layout:
        """Take an event apart; raise a ValueError or an IndexError if it is damaged."""
        time_at, step_at, is_start, repeats = None, (0, 0), False, True
        scalars: list[tuple[str, tuple[int, Any] | float]] = []
        for number, kind, at, to in _fields(event, 0, len(event)):
            if (number, kind) == (1, _FIXED64):
                time_at = at
            elif (number, kind) == (2, _VARINT):
                step_at = at, to
            elif (number, kind) == (5, _BYTES):
                for inner, kind_of, start, end in _fields(event, at, to):
                    if (inner, kind_of) == (1, _BYTES):
                        scalar = _scalar(event, start, end)
                        if scalar is not None:
                            scalars.append(scalar)
                        repeats = repeats and scalar is not None and not isinstance(scalar[1], float)
            else:
                repeats = False
                if (number, kind) == (7, _BYTES):
                    status = [start for inner, _, start, _ in _fields(event, at, to) if inner == 1]
                    is_start = bool(status) and event[status[-1]] == 1
        same = np.full(len(event), 255, np.uint8)
        if time_at is not None:
            same[time_at : time_at + 8] = 0
        same[slice(*step_at)] = 128
        for _, place in scalars:
            if not isinstance(place, float):
                same[place[0] : place[0] + place[1].itemsize] = 0
        tags, places = tuple(tag for tag, _ in scalars), tuple(place for _, place in scalars)
        content = np.frombuffer(event, np.uint8)
        return cls(content, same, time_at, step_at, tags, places, is_start, repeats and bool(tags))

    def fits(self, rows: _Numbers) -> _Numbers:
        same: _Numbers = (((rows ^ self.event) & self.same) == 0).all(axis=1)
        return same

    def steps(self, rows: _Numbers) -> _Numbers:
        start, end = self.step_at
        steps = np.zeros(len(rows), np.uint64)
        for place in range(start, end):
            steps |= (rows[:, place] & 127).astype(np.uint64) << np.uint64(7 * (place - start))
        return steps.view(np.int64)

    def times(self, rows: _Numbers) -> _Numbers:
        return np.zeros(len(rows)) if self.time_at is None else _numbers(rows, self.time_at, np.dtype("<f8"))

    def values(self, rows: _Numbers) -> _Numbers:
        parts = [np.full(len(rows), place) if isinstance(place, float) else _numbers(rows, *place) for place in self.at]
        return np.stack(parts, axis=1)


def _numbers(rows: _Numbers, at: int, kind: Any) -> _Numbers:
    numbers: _Numbers = np.ascontiguousarray(rows[:, at : at + kind.itemsize]).view(kind)[:, 0]
    return numbers


def _fields(data: bytes, at: int, to: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, kind, beginning and end of each field of a message."""
    while at < to:
        key, at = _varint(data, at)
        start, kind = at, key & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, start = _varint(data, at)
            at = start + length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError
        if at > to or not key >> 3:
            raise ValueError
        yield key >> 3, kind, start, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError


def _scalar(data: bytes, at: int, to: int) -> tuple[str, tuple[int, Any] | float] | None:
    """Return the tag of a summary's value, and where its number is, or what it is; None if it is no scalar."""
    tag, place, plugin, tensor = "", None, b"", None
    for number, kind, start, end in _fields(data, at, to):
        if (number, kind) == (1, _BYTES):
            tag = data[start:end].decode(errors="replace")
        elif (number, kind) == (2, _FIXED32):
            place = start, _FLOATS[1]
        elif (number, kind) == (8, _BYTES):
            tensor = start, end
        elif (number, kind) == (9, _BYTES):
            for inner, kind_of, first, last in _fields(data, start, end):
                if (inner, kind_of) == (1, _BYTES):
                    names = [data[i:j] for one, _, i, j in _fields(data, first, last) if one == 1]
                    plugin = names[-1] if names else b""
    if place is not None:
        return tag, place
    if tensor is None or plugin != b"scalars":
        return None
    found = _in_tensor(data, *tensor)
    return None if found is None else (tag, found)


def _in_tensor(data: bytes, at: int, to: int) -> tuple[int, Any] | float | None:
    """Return where the only number of a tensor is, as TensorFlow 2 writes scalars."""
    kind_of, content = 0, None
    for number, kind, start, end in _fields(data, at, to):
        if (number, kind) == (1, _VARINT):
            kind_of = data[start]
        elif number in (4, 5, 6) and kind != _VARINT:
            content = start, end
    if kind_of in _FLOATS and content is not None and content[1] - content[0] == _FLOATS[kind_of].itemsize:
        return content[0], _FLOATS[kind_of]
    # Integers and half precision are rare.
    from tensorboard.compat.proto import tensor_pb2
    from tensorboard.util.tensor_util import make_ndarray

    with contextlib.suppress(Exception):
        return float(make_ndarray(tensor_pb2.TensorProto.FromString(data[at:to])).reshape(()))
    return None
