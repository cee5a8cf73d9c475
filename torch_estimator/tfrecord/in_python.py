"""The functions of ``examples.c`` in Python, for machines without a C compiler. They are slower by far."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_estimator.tfrecord.records import FOOTER_BYTES, HEADER_BYTES, masked_crc32c, record

if TYPE_CHECKING:
    from torch_estimator.tfrecord.engine import Index, Scan

Array = np.ndarray[Any, Any]

_BYTES_FIELD, _FLOATS_FIELD, _INTEGERS_FIELD = 10, 18, 26
_KINDS = {_BYTES_FIELD: 1, _FLOATS_FIELD: 2, _INTEGERS_FIELD: 3}
_VARINT, _PACKED, _FIXED32 = 8, 10, 13
_FEATURES, _LISTS = 10, 18
_STEPS = 4


def scan(data: bytes, position: int, stop: int) -> Scan:
    """Return the records that begin between `position` and `stop`; see `engine.Engine`."""
    from torch_estimator.tfrecord.engine import BAD_DATA, BAD_LENGTH, NEEDS_MORE, Scan

    starts, lengths, status = [], [], 0
    while position < stop:
        start = position + HEADER_BYTES
        if start > len(data):
            status = NEEDS_MORE
            break
        if not _has_valid_length(data, position):
            status = BAD_LENGTH
            break
        (length,) = struct.unpack_from("<Q", data, position)
        if start + length + FOOTER_BYTES > len(data):
            status = NEEDS_MORE
            break
        (checksum,) = struct.unpack_from("<I", data, start + length)
        if masked_crc32c(data[start : start + length]) != checksum:
            status = BAD_DATA
            break
        starts.append(start)
        lengths.append(length)
        position = start + length + FOOTER_BYTES
    return Scan(np.array(starts, np.int64), np.array(lengths, np.int64), position, status)


def frame(contents: Sequence[bytes]) -> bytes:
    """Return contents as records; see `engine.Engine`."""
    return b"".join(map(record, contents))


def find(data: bytes, position: int, stop: int) -> int:
    """Return the first position of a record's valid header; see `engine.Engine`."""
    content = np.frombuffer(data, np.uint8)
    last = min(stop, len(data) - HEADER_BYTES + 1)
    if position >= last:
        return -1
    # A record has less than 2^40 bytes, so that most positions need no checksum.
    high = content[position + 5 : last + 5] | content[position + 6 : last + 6] | content[position + 7 : last + 7]
    for place in np.flatnonzero(high == 0) + position:
        if _has_valid_length(data, int(place)):
            return int(place)
    return -1


def index(data: bytes, starts: Array, lengths: Array, names: tuple[bytes, ...], *, lists: bool = False) -> Index:
    """Return where the values of the named features, or the steps of lists, are; see `engine.Engine`."""
    places = {name: place for place, name in enumerate(names)}
    found = np.zeros((4, len(names), len(starts)), np.int64)
    damaged = np.zeros(len(starts), bool)
    read = _steps if lists else _list
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        try:
            for name, feature in _entries(data, start, start + length, _LISTS if lists else _FEATURES):
                place = places.get(name)
                if place is not None:
                    # If a key is there twice, its last entry counts.
                    found[:, place, row] = read(data, *feature)
        except ValueError:
            damaged[row] = True
    return _index(found, damaged)


def steps(data: bytes, position: Array, size: Array, count: Array) -> Index:
    """Index all steps of one feature list as one feature; see `engine.Engine`."""
    found = np.zeros((4, 1, int(count.sum())), np.int64)
    damaged = np.zeros(found.shape[2], bool)
    features = (item[1:] for item in _items(data, position, size, count) if item[0] == _PACKED)
    for step, feature in enumerate(features):
        try:
            found[:, 0, step] = _list(data, *feature)
        except ValueError:
            damaged[step] = True
    return _index(found, damaged)


def floats(data: bytes, position: Array, size: Array, count: Array) -> Array:
    """Return the numbers of one feature in all rows; see `engine.Engine`."""
    parts = [
        bytes(data[begin:end])
        for field, begin, end in _items(data, position, size, count)
        if field in (_PACKED, _FIXED32)
    ]
    return np.frombuffer(b"".join(parts), "<f4").astype(np.float32)


def integers(data: bytes, position: Array, size: Array, count: Array) -> Array:
    """Return the numbers of one feature in all rows; see `engine.Engine`."""
    numbers: list[int] = []
    for field, begin, end in _items(data, position, size, count):
        while field in (_PACKED, _VARINT) and begin < end:
            number, begin = _varint(data, begin, end)
            number &= 2**64 - 1
            numbers.append(number - 2**64 if number >= 2**63 else number)
    return np.array(numbers, np.int64)


def texts(data: bytes, position: Array, size: Array, count: Array) -> tuple[Array, Array]:
    """Return the bytes of one feature in all rows, and where each value begins; see `engine.Engine`."""
    parts = [bytes(data[begin:end]) for field, begin, end in _items(data, position, size, count) if field == _PACKED]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return np.frombuffer(b"".join(parts), np.uint8), offsets


def feature_kinds(data: bytes, start: int, length: int) -> dict[str, tuple[int, int]]:
    """Return the kind and the number of values of each feature of a tf.Example by name.

    Raise a ValueError if it is none.
    """
    found = {}
    for name, feature in _entries(data, start, start + length, _FEATURES):
        kind, _, _, count = _list(data, *feature)
        found[name.decode()] = kind, count
    return found


def step_kinds(data: bytes, start: int, length: int) -> dict[str, list[tuple[int, int]]]:
    """Return the kind and the number of values of each step of each feature list of a SequenceExample, by name.

    Raise a ValueError if the record is not a SequenceExample.
    """
    found = {}
    for name, feature_list in _entries(data, start, start + length, _LISTS):
        lists = [_list(data, *step) for field, *step in _fields(data, *feature_list) if field == _PACKED]
        found[name.decode()] = [(kind, count) for kind, _, _, count in lists]
    return found


def _has_valid_length(data: bytes, position: int) -> bool:
    (checksum,) = struct.unpack_from("<I", data, position + 8)
    return bool(masked_crc32c(data[position : position + 8]) == checksum)


def _entries(data: bytes, begin: int, end: int, field: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the name of each feature or feature list of a tf.Example, and where its message begins and ends."""
    for outer, *example in _fields(data, begin, end):
        if outer != field:
            continue
        for inner, *entry in _fields(data, *example):
            if inner != _PACKED:
                continue
            name, feature = b"", (0, 0)
            for part, start, stop in _fields(data, *entry):
                if part == _PACKED:
                    name = bytes(data[start:stop])
                elif part == 18:
                    feature = start, stop
            yield name, feature


def _list(data: bytes, begin: int, end: int) -> tuple[int, int, int, int]:
    """Return the kind of a feature's list, its position, its size and the number of its values."""
    found = (0, 0, 0, 0)
    for field, start, stop in _fields(data, begin, end):
        if field in _KINDS:
            found = _KINDS[field], start, stop - start, _count(data, field, start, stop)
    return found


def _steps(data: bytes, begin: int, end: int) -> tuple[int, int, int, int]:
    """Return the same of a feature list, whose values are its steps."""
    return _STEPS, begin, end - begin, sum(field == _PACKED for field, _, _ in _fields(data, begin, end))


def _index(found: Array, damaged: Array) -> Index:
    """Return an index of kinds, positions, sizes and counts: int64 ``[4, features, rows]``."""
    from torch_estimator.tfrecord.engine import Index

    return Index(found[1], found[2], found[3], found[0].astype(np.uint8), damaged)


def _count(data: bytes, kind: int, begin: int, end: int) -> int:
    count = 0
    for field, start, stop in _fields(data, begin, end):
        if kind == _FLOATS_FIELD and field == _PACKED:
            if (stop - start) % 4:
                raise ValueError("a list of floats is damaged")
            count += (stop - start) // 4
        elif kind == _INTEGERS_FIELD and field == _PACKED:
            while start < stop:
                _, start = _varint(data, start, stop)
                count += 1
        elif (kind, field) in ((_BYTES_FIELD, _PACKED), (_FLOATS_FIELD, _FIXED32), (_INTEGERS_FIELD, _VARINT)):
            count += 1
    return count


def _items(data: bytes, position: Array, size: Array, count: Array) -> Iterator[tuple[int, int, int]]:
    for begin, length, values in zip(position.tolist(), size.tolist(), count.tolist(), strict=True):
        if values:
            yield from _fields(data, begin, begin + length)


def _fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message: number and wire type as in the message, and where the content begins and ends.

    Raise a ValueError if the message is damaged.
    """
    while begin < end:
        tag, begin = _varint(data, begin, end)
        kind = tag & 7
        start = begin
        if tag >> 3 == 0 or tag >= 2**32 or kind in (3, 4, 6, 7):
            raise ValueError("no field of a message")
        if kind == 0:
            _, begin = _varint(data, begin, end)
        elif kind == 2:
            length, start = _varint(data, begin, end)
            begin = start + length
        else:
            begin += 8 if kind == 1 else 4
        if begin > end:
            raise ValueError("a field is cut off")
        yield tag, start, begin


def _varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[begin : min(end, begin + 10)]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & (2**64 - 1), begin + place + 1
    raise ValueError("a number does not end")
