"""Raw columns as distinct values with codes, or as float32 numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.floating import as_float32

RawColumn: TypeAlias = Any  # pyarrow.Array | numpy.ndarray; pyarrow has no types for mypy
Codes: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Distinct:
    """A column of N rows as its distinct values and, per row, the position of the row's value among them.

    Values may repeat or be unused; work on them instead of on rows.
    """

    values: list[Any]
    codes: Codes


def distinct_strings(column: RawColumn, key: str) -> Distinct:
    """A string column by distinct values; None, NaN in an object array and Arrow nulls become ``''``.

    Raises:
        InvalidValueError: The column does not hold one string per row.
        RowError: One value of an object array is not a string, or not UTF-8.
    """
    array = column if isinstance(column, pa.Array) else _arrow_strings(column, key)
    if pa.types.is_dictionary(array.type) and len(array.dictionary) > max(len(array), 1024):
        array = array.dictionary_decode()
    if not pa.types.is_dictionary(array.type):
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            raise _wrong_dtype(key, "string", array.type)
        array = array.dictionary_encode()
    values = array.dictionary.to_pylist()
    if values and not all(isinstance(value, str) for value in values):
        if not pa.types.is_string(array.type.value_type) and not pa.types.is_large_string(array.type.value_type):
            raise _wrong_dtype(key, "string", array.type.value_type)
        values = [value or "" for value in values]
    return _with_nulls(array.indices, values, "")


def distinct_integers(column: RawColumn, key: str) -> Distinct:
    """An integer column by distinct values; Arrow nulls become -1.

    Raises:
        InvalidValueError: The column does not hold one integer per row.
    """
    if isinstance(column, pa.Array):
        array = column
    else:
        if column.dtype.kind not in "iu":
            raise _wrong_dtype(key, "int64", column.dtype)
        array = arrow.from_numpy(_one_per_row(column, key))
    if not pa.types.is_integer(array.type):
        raise _wrong_dtype(key, "int64", array.type)
    encoded = _signed(array, key).dictionary_encode()
    return _with_nulls(encoded.indices, encoded.dictionary.to_pylist(), -1)


def integers(column: RawColumn, key: str) -> npt.NDArray[np.int64]:
    """An integer column as int64 ``[N]``; Arrow nulls become -1.

    Raises:
        InvalidValueError: The column does not hold one integer per row.
    """
    if isinstance(column, pa.Array):
        if not pa.types.is_integer(column.type):
            raise _wrong_dtype(key, "int64", column.type)
        column = _signed(column, key)
        column = arrow.to_numpy(column.fill_null(-1) if column.null_count else column)
    if column.dtype.kind not in "iu":
        raise _wrong_dtype(key, "int64", column.dtype)
    if column.dtype == np.uint64:
        return integers(arrow.from_numpy(_one_per_row(column, key)), key)
    return _one_per_row(column, key).astype(np.int64, copy=False)


def _signed(array: pa.Array, key: str) -> pa.Array:
    if not pa.types.is_uint64(array.type):
        return array
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidValueError(
            f"raw column {key!r} has integers of {2**63} or more, which int64 does not hold; make them strings."
        ) from error


def is_list(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def numbers(column: RawColumn, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """A column of numbers as float32 ``[N, *shape]``; Arrow nulls become NaN.

    Raises:
        InvalidValueError: The column does not hold numbers of that shape.
        RowError: One number is too large for float32.
    """
    if isinstance(column, pa.Array):
        if not (
            pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)
        ):
            raise _wrong_dtype(key, "float32", column.type)
        column = arrow.to_numpy(column)
        if column.dtype.kind == "O":
            column = column.astype(np.float32)
    if column.dtype.kind not in "biuf":
        raise _wrong_dtype(key, "float32", column.dtype)
    rows = len(column)
    width = math.prod(shape)
    # Arrow has flat lists only, whatever the shape.
    if column.shape[1:] not in ((), (width,), shape) or (column.ndim == 1 and shape != (1,)):
        raise InvalidValueError(
            f"raw column {key!r} must have the shape {shape} per row, but has {column.shape[1:]}; "
            "give numeric_column() the shape of the data."
        )
    return as_float32(column, "number", key).reshape(rows, *shape)


def _with_nulls(indices: Any, values: list[Any], missing: Any) -> Distinct:
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = [*values, missing]
    return Distinct(values, arrow.to_numpy(indices).astype(np.intp, copy=False))


def _arrow_strings(column: npt.NDArray[Any], key: str) -> Any:
    column = _one_per_row(column, key)
    if column.dtype.kind == "S":
        column = column.astype(object)
    if column.dtype.kind not in "OU":
        raise _wrong_dtype(key, "string", column.dtype)
    try:
        return pa.array(column, type=pa.string(), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, UnicodeError):
        raise _not_a_string(column, key) from None


def _one_per_row(column: npt.NDArray[Any], key: str) -> npt.NDArray[Any]:
    if column.ndim == 2 and column.shape[1] == 1:
        return column[:, 0]
    if column.ndim != 1:
        raise InvalidValueError(
            f"raw column {key!r} must have one value per row, but has the shape {column.shape[1:]} per row; "
            "where rows hold lists, give its feature column multivalent=True."
        )
    return column


def _not_a_string(column: npt.NDArray[Any], key: str) -> Exception:
    for row, value in enumerate(column):
        try:
            pa.array([value], type=pa.string(), from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, UnicodeError):
            hint = ""
            if isinstance(value, list | tuple | np.ndarray):
                hint = "; where rows hold lists, give the feature column multivalent=True"
            problem = f"expected a string, but got {value!r} ({type(value).__name__}){hint}"
            return RowError(problem, row=row, column=key)
    return InvalidValueError(f"raw column {key!r} cannot be read as strings.")


def _wrong_dtype(key: str, wanted: str, got: object) -> InvalidValueError:
    if isinstance(got, pa.DataType) and is_list(got):
        cure = "a shape" if wanted == "float32" else "multivalent=True"
        return InvalidValueError(
            f"raw column {key!r} holds lists ({got}), but its feature column reads one value per row; give it {cure}."
        )
    return InvalidValueError(
        f"raw column {key!r} must be {wanted}, but is {got}; change the data's type or the feature column's dtype."
    )
