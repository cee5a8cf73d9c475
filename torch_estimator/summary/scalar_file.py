"""Reader of the scalars of one of TensorBoard's event files, and of the last scalars of a directory.

It imports no NumPy, which takes longer to import than the list of the console to read.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_estimator import files
from torch_estimator.tfrecord.records import FOOTER_BYTES, HEADER_BYTES, masked_crc32c, records

_logger = logging.getLogger(__name__)

_BLOCK_BYTES = 2**18
# A larger record holds pictures or a graph, and is skipped without reading it.
_MOST_RECORD_BYTES = 2**26
# By the bytes before the place where it was, the reader notices that a file has another content now.
_KNOWN_BYTES = 16
_MOST_LOOKS_BACK = 20
_LONGEST_END_BYTES = 2**23
_MOST_CHECKSUMS = 500
# A stretch of zeros looks like many records without content, but for the checksum of their length.
_EMPTY_CHECK = struct.pack("<I", masked_crc32c(bytes(8)))

PointsByTag = dict[str, list[tuple[int, float, float]]]
"""Points by tag in the order of writing: step, value, and when it was written in seconds since 1970."""

Part = tuple[int | None, PointsByTag]
"""Points that were written one after the other, and before them the step at which a run resumed, if it did."""


class ScalarFile:
    """Reads the scalars of a file on from where it was, at first from a position at which a record begins."""

    def __init__(self, path: str, position: int = 0) -> None:
        self.position = position
        self.is_behind = False
        self._path = path
        self._known = b""
        self._is_damaged = False

    def is_same(self, size: int) -> bool:
        """Return whether the file still begins with what was read."""
        if size <= self.position:
            return size == self.position
        start = self.position - len(self._known)
        return self._known == files.read_part(self._path, start, self.position)

    def read(self, size: int, until: float = math.inf) -> Iterator[Part]:
        """Yield what was written up to a size.

        After `until`, by `time.monotonic`, it ends with the block that it reads; `is_behind` says that more is there.
        """
        wanted = _BLOCK_BYTES
        self.is_behind = False
        while (left := size - self.position) > HEADER_BYTES and not self._is_damaged:
            data = files.read_part(self._path, self.position, self.position + min(wanted, left))
            if len(data) < min(wanted, left):
                break  # The file is shorter now.
            parts, taken = self.parts(data)
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
            self.position += taken
            yield from parts
            if taken and time.monotonic() > until:
                self.is_behind = size - self.position > HEADER_BYTES and not self._is_damaged
                break

    def parts(self, data: bytes) -> tuple[list[Part], int]:
        """Return the parts in the complete records of what was read here, and how many bytes those have."""
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # stubs are not a dependency
        from tensorboard.compat.proto import event_pb2

        found: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)
        parts: list[Part] = [(None, found)]
        end = 0
        for start, content in records(data):
            try:
                if not content and data[start - FOOTER_BYTES : start] != _EMPTY_CHECK:
                    raise DecodeError("zeros, as a crash leaves them")
                event = event_pb2.Event.FromString(content)
            except DecodeError:
                _warn(self._path, self.position + start)
                self._is_damaged = True
                break
            end = start + len(content) + FOOTER_BYTES
            step, written = event.step, event.wall_time
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                found = defaultdict(list)
                parts.append((step, found))
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else _in_tensor(value)
                if number is not None:
                    found[value.tag].append((step, number, written))
        return parts, end


def event_files(logdir: str) -> dict[str, int]:
    """Return the sizes of the event files in a directory, by name."""
    return {name: size for name, size in files.sizes(logdir).items() if "tfevents" in name}


class Ends(NamedTuple):
    """The last points of a directory by tag, and whether they are all that there are."""

    points: PointsByTag
    are_all: bool


def last_scalars(logdir: str, most_bytes: int, *, most_files: int = 1) -> Ends:
    """Return the last points of the newest event files of a directory that have any, as far as they are in their ends.

    An end is of `most_bytes`, or longer if it has no points. What a run that resumed has done again is left out.
    """
    last: PointsByTag = {}
    resumed: list[int] = []
    sizes = event_files(logdir)
    names = sorted(sizes, reverse=True)
    for place, name in enumerate(names[:_MOST_LOOKS_BACK]):
        path, size = files.join(logdir, name), sizes[name]
        begin = size
        parts: list[Part] = []
        with contextlib.suppress(FileNotFoundError):
            for length in (most_bytes, 16 * most_bytes, _LONGEST_END_BYTES):
                begin = max(0, size - length)
                data = files.read_part(path, begin, size)
                skipped = _first_record(data) if begin else 0
                begin += skipped
                parts, _ = ScalarFile(path, begin).parts(data[skipped:])
                if begin == 0 or any(found for _, found in parts):
                    break
        for start, found in reversed(parts):
            for tag, points in found.items():
                if kept := [point for point in points if not resumed or point[0] < min(resumed)]:
                    last[tag] = kept + last.get(tag, [])
            resumed += [] if start is None else [start]
        most_files -= any(found for _, found in parts)
        if begin or not most_files:
            return Ends(dict(sorted(last.items())), not begin and place + 1 == len(names))
    return Ends(dict(sorted(last.items())), len(names) <= _MOST_LOOKS_BACK)


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
