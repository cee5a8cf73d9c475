"""Encoding of rows as serialized tf.Examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError

_FIELDS = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}


class ExampleEncoder:
    """Encoder of rows as tf.Examples. A feature must have the same type in all rows."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}

    def encode(self, row: Mapping[str, Any], number: int) -> bytes:
        """Return a row as a serialized tf.Example.

        Args:
            row: Values by feature: a number, text, bytes, an array or a list of them. A feature whose value is None or
                an empty list is left out.
            number: Number of the row, for messages.

        Raises:
            InvalidTypeError: A value cannot be in a tf.Example, or has another type than in the rows before.
            InvalidValueError: An integer does not fit into int64.
        """
        entries = []
        for name, value in row.items():
            where = f"feature {name!r} of row {number}"
            kind, values = _typed(value, where)
            if not len(values):
                continue
            before = self._kinds.setdefault(name, kind)
            if before != kind:
                raise InvalidTypeError(
                    f"{where} holds {kind}, but the rows before hold {before}; make all of one type."
                )
            feature = _FIELDS[kind] + _sized(_list(kind, values))
            entries.append(b"\x0a" + _sized(b"\x0a" + _sized(name.encode()) + b"\x12" + _sized(feature)))
        return b"\x0a" + _sized(b"".join(entries))


def _typed(value: Any, where: str) -> tuple[str, Any]:
    """Return the type of a feature, and its values as an array of numbers or a list of bytes."""
    if value is None:
        return "bytes", ()
    if isinstance(value, str | bytes):
        return "bytes", [value.encode() if isinstance(value, str) else value]
    array = np.asarray(value)
    if not array.size:
        return "bytes", ()
    if array.dtype.kind == "f":
        return "float32", array.reshape(-1).astype("<f4")
    if array.dtype.kind in "biu":
        if array.dtype == np.uint64 and (array >= 2**63).any():
            raise InvalidValueError(f"{where} holds {array.max()}, which does not fit into int64.")
        return "int64", array.reshape(-1)
    texts = np.asarray(value, dtype=object).reshape(-1).tolist()
    if not all(isinstance(text, str | bytes) for text in texts):
        raise InvalidTypeError(f"{where} must hold numbers, text or bytes, but got {value!r:.100}.")
    return "bytes", [text.encode() if isinstance(text, str) else text for text in texts]


def _list(kind: str, values: Any) -> bytes:
    if kind == "bytes":
        return b"".join(b"\x0a" + _sized(text) for text in values)
    if kind == "float32":
        return b"\x0a" + _sized(values.tobytes())
    return b"\x0a" + _sized(_varints(int(value) & (2**64 - 1) for value in values))


def _sized(content: bytes) -> bytes:
    return _varints([len(content)]) + content


def _varints(numbers: Iterable[int]) -> bytes:
    encoded = bytearray()
    for number in numbers:
        while number > 127:
            encoded.append(number & 127 | 128)
            number >>= 7
        encoded.append(number)
    return bytes(encoded)
