"""Conversion of raw columns to distinct values, integers, float32 numbers, or lists of these.

A raw column is a numpy or Arrow array with one entry per row. In most columns few values are repeated many times, so
strings and integers are read as `Distinct` values: an encoder then works once for each value instead of for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data import arrow
from torch_estimator.data.lists import is_list_type
from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.raw_feature import ARROW_TYPES, RawDtype
from torch_estimator.floating import as_float32

RawColumn: TypeAlias = Any  # Either a pyarrow.Array or a numpy.ndarray; pyarrow has no types for mypy.
Codes: TypeAlias = npt.NDArray[np.intp]
Offsets: TypeAlias = npt.NDArray[np.int64]
_Values = TypeVar("_Values")


@dataclass(frozen=True, slots=True)
class Distinct:
    """A column of N rows, stored as distinct values and, for each row, the index of its value (its code).

    A value may occur twice, or in no row at all.
    """

    values: list[Any]
    codes: Codes


def distinct_strings(column: RawColumn, key: str) -> Distinct:
    """Return a string column as distinct values and codes (indices of values).

    Arrow nulls, and None and NaN in an object array, become ``''``.
    """
    # A dictionary-encoded column already has distinct values.
    # Encode it anew if its dictionary is larger than the column, so that encoders skip values that do not occur.
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
    """Return an integer column as distinct values and codes (indices of values). Arrow nulls become -1."""
    if isinstance(column, pa.Array):
        array = column
    else:
        if column.dtype.kind not in "iu":
            raise _wrong_dtype(key, "int64", column.dtype)
        array = arrow.from_numpy(_one_per_row(column, key))
    if not pa.types.is_integer(array.type):
        raise _wrong_dtype(key, "int64", array.type)
    encoded = _as_int64(array, key).dictionary_encode()
    return _with_nulls(encoded.indices, encoded.dictionary.to_pylist(), -1)


def integers(column: RawColumn, key: str) -> npt.NDArray[np.int64]:
    """Return an integer column as an int64 array ``[N]``. Arrow nulls become -1."""
    if isinstance(column, pa.Array):
        if not pa.types.is_integer(column.type):
            raise _wrong_dtype(key, "int64", column.type)
        column = _as_int64(column, key)
        column = arrow.to_numpy(column.fill_null(-1) if column.null_count else column)
    if column.dtype.kind not in "iu":
        raise _wrong_dtype(key, "int64", column.dtype)
    if column.dtype == np.uint64:
        return integers(arrow.from_numpy(_one_per_row(column, key)), key)
    return _one_per_row(column, key).astype(np.int64, copy=False)


def _as_int64(array: pa.Array, key: str) -> pa.Array:
    """Convert an Arrow array of uint64 to int64. Return an array of another integer type unchanged."""
    if not pa.types.is_uint64(array.type):
        return array
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidValueError(
            f"raw column {key!r} has integers of {2**63} or more, which int64 does not hold; make them strings."
        ) from error


def numbers(column: RawColumn, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return a column of numbers as float32 ``[N, *shape]``; Arrow nulls become NaN."""
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
    # Accept flat rows of `width` numbers for every shape, because Arrow lists are flat.
    if column.shape[1:] not in ((), (width,), shape) or (column.ndim == 1 and shape != (1,)):
        raise InvalidValueError(
            f"raw column {key!r} must have the shape {shape} per row, but has {column.shape[1:]}; "
            "give numeric_column() the shape of the data."
        )
    return as_float32(column, "number", key).reshape(rows, *shape)


@dataclass(frozen=True, slots=True)
class Lists(Generic[_Values]):
    """A column of N rows with any number of values each; those of row i are at ``offsets[i]`` to ``offsets[i + 1]``."""

    values: _Values
    offsets: Offsets


def list_values(column: RawColumn, key: str, dtype: RawDtype) -> Lists[Distinct]:
    """Return a column of lists of strings or integers, with the items as distinct values and codes.

    Rows may be Arrow lists, lists or arrays in an object array, rows of an array ``[N, n]``, or single values.
    """
    read = distinct_strings if dtype == "string" else distinct_integers
    return _read_lists(column, key, dtype, read)


def list_integers(column: RawColumn, key: str) -> Lists[npt.NDArray[np.int64]]:
    """Return a column of lists of integers, with the items as int64. Arrow nulls become -1."""
    return _read_lists(column, key, "int64", integers)


def list_numbers(column: RawColumn, key: str) -> Lists[npt.NDArray[np.float32]]:
    """Return a column of lists of numbers, with the items as float32. Arrow nulls become NaN."""
    return _read_lists(column, key, "float32", lambda values, key: numbers(values, key, (1,)).ravel())


def even_offsets(rows: int, each: int = 1) -> Offsets:
    """Return the offsets of rows that have `each` values: ``[0, each, 2 * each, ...]``."""
    return np.arange(rows + 1, dtype=np.int64) * each


def _with_nulls(indices: Any, values: list[Any], missing: Any) -> Distinct:
    """Return `Distinct` for the indices and values of an Arrow dictionary. Null rows get the value `missing`."""
    if indices.null_count:
        indices = indices.fill_null(len(values))
        values = [*values, missing]
    return Distinct(values, arrow.to_numpy(indices).astype(np.intp, copy=False))


def _arrow_strings(column: npt.NDArray[Any], key: str) -> Any:
    """Convert a numpy column of strings, bytes or objects to an Arrow array of strings."""
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
    """Return a numpy column ``[N]`` or ``[N, 1]`` as ``[N]``; raise InvalidValueError for another shape."""
    if column.ndim == 2 and column.shape[1] == 1:
        return column[:, 0]
    if column.ndim != 1:
        raise InvalidValueError(
            f"raw column {key!r} must have one value per row, but has the shape {column.shape[1:]} per row; "
            "where rows hold lists, give its feature column multivalent=True."
        )
    return column


def _not_a_string(column: npt.NDArray[Any], key: str) -> Exception:
    """Return an error that names the first row whose value Arrow cannot convert to a string."""
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
    if isinstance(got, pa.DataType) and is_list_type(got):
        cure = "a shape" if wanted == "float32" else "multivalent=True"
        return InvalidValueError(
            f"raw column {key!r} holds lists ({got}), but its feature column reads one value per row; give it {cure}."
        )
    return InvalidValueError(
        f"raw column {key!r} must be {wanted}, but is {got}; change the data's type or the feature column's dtype."
    )


def _read_lists(column: RawColumn, key: str, dtype: RawDtype, read: Callable[[Any, str], _Values]) -> Lists[_Values]:
    """Return a column of lists. `read` converts the items of all rows at once, as if each row had one value."""
    values, offsets = _values_and_offsets(column, key)
    if isinstance(values, pa.Array) and pa.types.is_null(values.type):
        # Give the values a type, because Arrow does not know the type if no row has a value.
        values = values.cast(ARROW_TYPES[dtype])
    try:
        return Lists(read(values, key), offsets)
    except RowError as error:
        # Report the number of the row, which the user knows, instead of the position among all values.
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        raise RowError(error.problem, row=row, column=key) from error


def _values_and_offsets(column: RawColumn, key: str) -> tuple[Any, Offsets]:
    """Return the values of all rows as one column, and the offset at which the values of each row begin."""
    if not isinstance(column, pa.Array):
        if column.ndim == 2:
            rows, each = column.shape
            return column.reshape(-1), even_offsets(rows, each)
        if column.ndim != 1:
            raise InvalidValueError(
                f"raw column {key!r} must hold a list per row, but has the shape {column.shape[1:]} per row."
            )
        if column.dtype.kind != "O":
            return column, even_offsets(len(column))
        column = _from_objects(column, key)
    if not is_list_type(column.type):
        return column, even_offsets(len(column))
    lengths = arrow.to_numpy(pc.fill_null(pc.list_value_length(column), 0))
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return column.flatten(), offsets


def _from_objects(column: npt.NDArray[Any], key: str) -> Any:
    """Convert an object array to an Arrow array: of lists if any row is a list, else of single values."""
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, UnicodeError, OverflowError):
        pass
    # Arrow fails if lists and bare values are mixed, or if it cannot convert the value of one row.
    # Convert each row alone to find such a row, so that the error can name it.
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
