"""Conversion of columns of Python objects that Arrow refuses, with errors that name the wrong value."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_estimator.errors import RowError

_MAX_SHOWN = 40
# This matches an integer of 19 or more digits. Digits after a decimal point do not match.
_MANY_DIGITS = re.compile(rb"(?<![\d.])\d{19}")

BY_TYPE = "give strings, floats or a numpy array of uint64"
"""What a user can do about large integers in memory, for messages."""


def convert_objects(values: Sequence[Any], name: str | None, *, otherwise: Any = None) -> Any:
    """Convert the objects of one column to an array of numbers or a list of `str`.

    Return `otherwise` if some values are neither text nor numbers.
    """
    kinds = [None if _is_missing(value) else _kind(value) for value in values]
    present = [kind for kind in kinds if kind is not None]
    if not present or "other" in present:
        return otherwise
    first = present[0]
    for row, kind in enumerate(kinds):
        if kind is not None and kind != first:
            problem = f"{_shorten(values[row])} is a {kind}, but the values before are {first}s; make all of one kind"
            raise RowError(problem, row=row, column=name)
    return _numbers(values, name) if first == "number" else _texts(values, name)


def unequal_rows_problem(value: Any) -> str | None:
    """Return an error message if `value` is a list whose rows have unequal lengths; else return None."""
    if not isinstance(value, list | tuple):
        return None
    lengths = [len(row) if isinstance(row, list | tuple | np.ndarray) else None for row in value]
    for row, length in enumerate(lengths):
        if length != lengths[0]:
            problem = f"row 0 holds {_values(lengths[0])}, but row {row} holds {_values(length)}"
            return problem if None in lengths else f"{problem}; give pyarrow.array(...) if lists may differ in length"
    return None


def check_integers(rows: Sequence[Any], name: str | None, cure: str = BY_TYPE) -> None:
    """Check that int64 can hold every value of a column of integers. Otherwise the column would become floats.

    Each row is a value or a list of values.
    """
    values = [[value for value in _flat(row) if not _is_missing(value)] for row in rows]
    if not all(isinstance(value, int | np.integer) for row in values for value in row):
        return
    for row, present in enumerate(values):
        for value in present:
            if not -(2**63) <= value < 2**63:
                raise RowError(f"{_shorten(value)} does not fit into int64; {cure}", row=row, column=name)


def has_large_integers(text: bytes) -> bool:
    """Return whether a text may contain integers that int64 cannot hold. A caller can then run an exact test."""
    return _MANY_DIGITS.search(text) is not None


def _flat(row: Any) -> list[Any]:
    return [value for part in row for value in _flat(part)] if isinstance(row, list | tuple) else [row]


def _numbers(values: Sequence[Any], name: str | None) -> Any:
    check_integers(values, name)
    array = np.asarray([math.nan if _is_missing(value) else value for value in values])
    if array.dtype.kind in "biuf":
        return array
    row = next(row for row, value in enumerate(values) if not _is_missing(value) and np.asarray(value).dtype == object)
    raise RowError(f"{_shorten(values[row])} does not fit into 64 bits; {BY_TYPE}", row=row, column=name)


def _texts(values: Sequence[Any], name: str | None) -> list[str]:
    texts: list[str] = []
    for row, value in enumerate(values):
        try:
            text = value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else ""
            text.encode()
        except UnicodeError as error:
            raise RowError(f"{_shorten(value)} is not UTF-8 text", row=row, column=name) from error
        texts.append(text)
    return texts


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def _kind(value: Any) -> str:
    if isinstance(value, str | bytes):
        return "string"
    return "number" if isinstance(value, bool | int | float | np.number | np.bool_) else "other"


def _values(length: int | None) -> str:
    if length is None:
        return "one value"
    return f"a list of {length}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
