"""Encoding of rows as serialized tf.Examples and SequenceExamples: whole columns at once, and then row by row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError

Array = np.ndarray[Any, Any]

_FIELDS = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_EMPTY = ("bytes", ())


class ExampleEncoder:
    """Encoder of rows as tf.Examples. A feature must have the same type in all rows.

    The columns named in `lists` become feature lists, which make the rows SequenceExamples.
    """

    def __init__(self, lists: Collection[str] = ()) -> None:
        self._lists = lists
        self._kinds: dict[str, str] = {}

    def encode(self, columns: Mapping[str, Sequence[Any]], rows: int, first: int = 0) -> list[bytes]:
        """Return rows as serialized tf.Examples.

        Args:
            columns: Values by feature, rows first. A value is a number, text, bytes, an array or a list of them. None
                and an empty list are left out. In a feature list the value is a list with such a value for each step.
            rows: Number of rows.
            first: Number of the first row, for messages.

        Raises:
            InvalidTypeError: A value cannot be in a tf.Example, or has another type than in the rows before.
            InvalidValueError: An integer does not fit into int64.
        """
        features, lists = [[b""] * rows], [[b""] * rows]
        for name, values in columns.items():
            place = _Place(name, first)
            if name in self._lists:
                steps = self._feature_lists(values, place)
                lists.append([b"" if one is None else _entry_head(name, "", len(one)) + one for one in steps])
            else:
                kind, encoded = self._values(values, place)
                features.append([one and _entry_head(name, kind, len(one)) + one for one in encoded])
        examples = [_field_1(len(one)) + one for one in map(b"".join, zip(*features, strict=True))]
        if not self._lists:
            return examples
        return [
            example + b"\x12" + _sized(b"".join(row))
            for example, row in zip(examples, zip(*lists, strict=True), strict=True)
        ]

    def _feature_lists(self, values: Sequence[Any], place: _Place) -> list[bytes | None]:
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, list | tuple | np.ndarray):
                raise InvalidTypeError(
                    f"{place(row)} is a feature list, which must be a list of steps, but got {value!r:.100}."
                )
        counts = [0 if value is None else len(value) for value in values]
        rows = np.repeat(np.arange(len(counts)), counts)
        steps = list(chain.from_iterable(value for value in values if value is not None))
        kind, lists = self._values(steps, place.of(rows))
        encoded = [_step_head(kind, len(one)) + one for one in lists]
        bounds = pairwise(accumulate(counts, initial=0))
        return [
            None if value is None else b"".join(encoded[begin:end])
            for value, (begin, end) in zip(values, bounds, strict=True)
        ]

    def _values(self, values: Sequence[Any], place: _Place) -> tuple[str, list[bytes]]:
        """Return the type of a column, and the values of each row as in its list, b"" where there are none."""
        kind, flat, counts = _flattened(values, place)
        if not len(flat):
            return kind, [b""] * len(values)
        before = self._kinds.setdefault(place.name, kind)
        if before != kind:
            raise _other_kind(place(int(np.flatnonzero(counts)[0])), kind, before)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        if kind == "bytes":
            texts = [_field_1(len(text)) + text for text in flat]
            if (counts == 1).all():
                return kind, texts
            return kind, [b"".join(texts[begin:end]) for begin, end in pairwise(bounds.tolist())]
        data, ends = _packed(kind, flat)
        return kind, [data[begin:end] for begin, end in pairwise(ends[bounds].tolist())]


def encode_example(row: Mapping[str, Any]) -> bytes:
    """Return one row as a serialized tf.Example.

    Args:
        row: Values by feature, as in `ExampleEncoder.encode`.

    Raises:
        InvalidTypeError: A value cannot be in a tf.Example.
        InvalidValueError: An integer does not fit into int64.
    """
    return ExampleEncoder().encode({name: [value] for name, value in row.items()}, 1)[0]


class _Place:
    """Function from the place of a value to its name in messages."""

    def __init__(self, name: str, first: int, rows: Array | None = None) -> None:
        self.name, self._first, self._rows = name, first, rows

    def __call__(self, at: int) -> str:
        row = self._first + (at if self._rows is None else int(self._rows[at]))
        return f"feature {self.name!r} of row {row}"

    def of(self, rows: Array) -> _Place:
        """Return the same for the steps of a feature list, given the row of each."""
        return _Place(self.name, self._first, rows)


def _flattened(values: Sequence[Any], place: _Place) -> tuple[str, Any, Array]:
    """Return the type of a column's values, all values as an array or a list of bytes, and their number in each row."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        kind, flat = _numbers(values.reshape(-1), place)
        return kind, flat, np.full(len(values), values.size // max(len(values), 1))
    present: list[Any] = [value for value in values if value is not None]
    is_lists = {type(value) for value in present} <= {list, tuple}
    flat = list(chain.from_iterable(present)) if is_lists else present
    counts = np.array([0 if value is None else len(value) if is_lists else 1 for value in values], np.int64)
    kinds = set(map(type, flat))
    if kinds == {str}:
        return "bytes", [text.encode() for text in flat], counts
    if kinds == {bytes}:
        return "bytes", flat, counts
    if len(kinds) == 1 and kinds <= {bool, int, float}:
        array = np.array(flat)
        if array.dtype.kind in "bif":
            return *_numbers(array, place), counts
    # Values of several types or of another one, such as arrays and numpy's numbers.
    parts = [_EMPTY if value is None else _typed(value, place, at) for at, value in enumerate(values)]
    filled = [(at, kind) for at, (kind, part) in enumerate(parts) if len(part)]
    for at, kind in filled:
        if kind != filled[0][1]:
            raise _other_kind(place(at), kind, filled[0][1])
    kept = [part for _, part in parts if len(part)]
    joined = kept and (np.concatenate(kept) if filled[0][1] != "bytes" else list(chain.from_iterable(kept)))
    return filled[0][1] if filled else "bytes", joined, np.array([len(part) for _, part in parts], np.int64)


def _typed(value: Any, place: _Place, at: int) -> tuple[str, Any]:
    """Return the type of a feature, and its values as an array of numbers or a list of bytes."""
    if isinstance(value, str | bytes):
        return "bytes", [value.encode() if isinstance(value, str) else value]
    array = np.asarray(value)
    if not array.size:
        return _EMPTY
    if array.dtype.kind in "biuf":
        return _numbers(array.reshape(-1), place, at)
    texts = np.asarray(value, dtype=object).reshape(-1).tolist()
    if not all(isinstance(text, str | bytes) for text in texts):
        raise InvalidTypeError(f"{place(at)} must hold numbers, text or bytes, but got {value!r:.100}.")
    return "bytes", [text.encode() if isinstance(text, str) else text for text in texts]


def _numbers(array: Array, place: _Place, at: int | None = None) -> tuple[str, Array]:
    if array.dtype.kind == "f":
        return "float32", array.astype(np.float32)
    if array.dtype == np.uint64 and (array >= 2**63).any():
        row = int(np.argmax(array >= 2**63)) if at is None else at
        raise InvalidValueError(f"{place(row)} holds {array.max()}, which does not fit into int64.")
    return "int64", array.astype(np.int64)


def _other_kind(where: str, kind: str, before: str) -> InvalidTypeError:
    return InvalidTypeError(f"{where} holds {kind}, but the rows before hold {before}; make all of one type.")


@lru_cache(4096)
def _entry_head(name: str, kind: str, size: int) -> bytes:
    """Return the tags and lengths that precede a feature's values; kind '' is a feature list."""
    feature = _feature_head(kind, size) if kind else b""
    inner = b"\x0a" + _varint(len(name.encode())) + name.encode() + b"\x12" + _varint(len(feature) + size) + feature
    return b"\x0a" + _varint(len(inner) + size) + inner


@lru_cache(4096)
def _step_head(kind: str, size: int) -> bytes:
    """Return the tags and lengths that precede the values of a step in a feature list."""
    feature = _feature_head(kind, size) if size else b""
    return b"\x0a" + _varint(len(feature) + size) + feature


def _feature_head(kind: str, size: int) -> bytes:
    """Return the tags and lengths that precede the values in a Feature; numbers are packed."""
    packed = b"" if kind == "bytes" else b"\x0a" + _varint(size)
    return _FIELDS[kind] + _varint(len(packed) + size) + packed


@lru_cache(4096)
def _field_1(size: int) -> bytes:
    """Return what comes before the content of a message's field 1."""
    return b"\x0a" + _varint(size)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _packed(kind: str, numbers: Array) -> tuple[bytes, Array]:
    """Return numbers as they are in a packed list, and where each begins, and the last ends."""
    if kind == "float32":
        return numbers.astype("<f4").tobytes(), 4 * np.arange(len(numbers) + 1)
    if numbers.min() >= 0 and numbers.max() < 128:
        return numbers.astype(np.uint8).tobytes(), np.arange(len(numbers) + 1)
    # The 7 bits in each byte of a varint, which has at most 10.
    bits = numbers.astype(np.uint64)[:, None] >> (7 * np.arange(10)).astype(np.uint64)
    sizes = np.maximum(np.count_nonzero(bits, axis=1), 1)[:, None]
    place = np.arange(10)
    encoded = (bits & 127).astype(np.uint8) | np.where(place < sizes - 1, 128, 0).astype(np.uint8)
    return encoded[place < sizes].tobytes(), np.concatenate([[0], np.cumsum(sizes)])
