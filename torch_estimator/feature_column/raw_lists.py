"""Raw columns whose rows hold any number of values: the values one after the other, and where each row begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data import arrow
from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.raw_values import (
    Distinct,
    RawColumn,
    distinct_integers,
    distinct_strings,
    is_list,
    numbers,
)

Offsets = npt.NDArray[np.int64]
_Values = TypeVar("_Values")


@dataclass(frozen=True, slots=True)
class Lists(Generic[_Values]):
    """Values of N rows.

    Attributes:
        values: Those of all rows.
        offsets: int64 ``[N + 1]``; row i has the values from ``offsets[i]`` to ``offsets[i + 1]``.
    """

    values: _Values
    offsets: Offsets


def list_values(column: RawColumn, key: str, dtype: str) -> Lists[Distinct]:
    """A column of lists of ``"string"`` or ``"int64"`` by distinct values.

    Rows may be Arrow lists, lists or arrays in an object array, rows of an array ``[N, n]``, or single values.

    Raises:
        InvalidValueError: The column holds something else.
        RowError: One value does.
    """
    read = distinct_strings if dtype == "string" else distinct_integers
    return _read(column, key, dtype, read)


def list_numbers(column: RawColumn, key: str) -> Lists[npt.NDArray[np.float32]]:
    """A column of lists of numbers as float32 ``[values of all rows]``; Arrow nulls become NaN.

    Raises:
        InvalidValueError: The column holds something else.
    """
    return _read(column, key, "float32", lambda values, key: numbers(values, key, (1,)).ravel())


def one_per_row(rows: int) -> Offsets:
    """The offsets of rows with one value each."""
    return np.arange(rows + 1, dtype=np.int64)


_EMPTY = {"string": pa.string(), "int64": pa.int64(), "float32": pa.float32()}


def _read(column: RawColumn, key: str, dtype: str, read: Callable[[Any, str], _Values]) -> Lists[_Values]:
    values, offsets = _flat(column, key)
    if isinstance(values, pa.Array) and pa.types.is_null(values.type):
        values = values.cast(_EMPTY[dtype])
    try:
        return Lists(read(values, key), offsets)
    except RowError as error:
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        raise RowError(error.problem, row=row, column=key) from error


def _flat(column: RawColumn, key: str) -> tuple[Any, Offsets]:
    if not isinstance(column, pa.Array):
        if column.ndim == 2:
            rows, each = column.shape
            return column.reshape(-1), np.arange(rows + 1, dtype=np.int64) * each
        if column.ndim != 1:
            raise InvalidValueError(
                f"raw column {key!r} must hold a list per row, but has the shape {column.shape[1:]} per row."
            )
        if column.dtype.kind != "O":
            return column, one_per_row(len(column))
        column = _from_objects(column, key)
    if not is_list(column.type):
        return column, one_per_row(len(column))
    lengths = arrow.to_numpy(pc.fill_null(pc.list_value_length(column), 0))
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return column.flatten(), offsets


def _from_objects(column: npt.NDArray[Any], key: str) -> Any:
    """Arrow's reading of objects: lists where there is any, else values."""
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, UnicodeError, OverflowError):
        pass
    # Bare values beside lists, or a value that is to blame, which only the row by row reading finds.
    for row, value in enumerate(column):
        try:
            pa.array([value], from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, UnicodeError, OverflowError):
            raise RowError(f"{value!r} is no list of values of one type", row=row, column=key) from None
    try:
        return pa.array([_as_list(value) for value in column], from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        problem = str(error).splitlines()[0].rstrip(".")
        raise InvalidValueError(f"raw column {key!r} must hold lists of values of one type: {problem}.") from error


def _as_list(value: Any) -> Any:
    return value if value is None or isinstance(value, list | tuple | np.ndarray) else [value]
