"""Columns: the numpy or Arrow arrays that hold raw data in an input pipeline.

A column of numbers is a numpy array of shape ``[rows, ...]``. A column of strings is an Arrow array, often dictionary
encoded, so that work is done once per distinct string. A column of lists that may differ in length is an Arrow array of
lists (see `lists`). Missing strings become empty strings, and missing lists empty lists. Numbers are never missing: in
their place is what the model names in `Transform.missing`, such as a default, NaN, or -1 for an id.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data import arrow
from torch_estimator.data.coerce import check_integers, convert_objects, unequal_rows_problem
from torch_estimator.data.lists import concat_lists, is_list_type, is_lists, lists_column, padded
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = np.ndarray[Any, Any]
Column: TypeAlias = "Array | pa.Array"
Columns: TypeAlias = dict[str, Column]

MISSING = "the value is missing and has no default"
DEFAULT_CURE = "; give one, as defaults={{{!r}: 0}} does"
LABEL_CURE = "; read it with defaults={{{!r}: float('nan')}}, and leave such rows out with filter"
"""The problem of a missing number, and what to do about it in a file; to be formatted with the name of the column."""

STRINGS = pa.dictionary(pa.int32(), pa.string())
"""The Arrow type for columns of strings."""


def to_numpy(column: Column) -> Array:
    """Convert a column to a numpy array. Strings become `str` objects, and lists are padded.

    >>> to_numpy(pa.array(["a", "b", "a"]).dictionary_encode())
    array(['a', 'b', 'a'], dtype=object)
    """
    if isinstance(column, np.ndarray):
        return column
    if isinstance(column, pa.DictionaryArray):
        values = arrow.to_numpy(column.dictionary)
        return np.asarray(values.take(arrow.to_numpy(column.indices)))
    if is_lists(column):
        return padded(column)
    return arrow.to_numpy(column)


def as_column(
    value: Any,
    name: str | None = None,
    *,
    lists: bool = False,
    incomplete: bool = False,
    missing: float | None = None,
) -> Column:
    """Convert an array (numpy, torch, Arrow, pandas or a list) to a column that shares its memory if possible.

    The values are rows first. With `lists`, a Python list of lists of unequal lengths becomes a column of lists;
    otherwise it is an error. The number `missing` replaces missing and masked numbers; None makes them an error. With
    `incomplete` they are allowed: missing numbers are returned as an Arrow array with nulls, which the caller has to
    replace, but those of floats in an Arrow or masked array as NaN.
    """
    if hasattr(value, "isna") and not isinstance(value.dtype, np.dtype) and value.dtype.kind in "iu":
        # Convert through Arrow, because pandas would turn nullable integers into floats, with NaN for missing values.
        value = pa.array(value, from_pandas=True)
    if (incomplete or missing is not None) and np.ma.is_masked(value):
        value = _unmasked(value)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.Array):
        if incomplete and value.null_count and pa.types.is_floating(value.type):
            value = pc.fill_null(value, pa.scalar(float("nan")).cast(value.type))
        return value if incomplete and is_incomplete(value) else from_arrow(value, name=name, missing=missing)
    if lists and (ragged := _ragged(value)) is not None:
        return from_arrow(ragged, name=name)
    array = _as_array(value, name)
    if array.ndim == 0:
        raise InvalidValueError(f"{_named(name)} must have one row per example, but it is the scalar {value!r}.")
    return from_objects(array, name, incomplete=incomplete, missing=missing) if array.dtype.kind in "OUST" else array


def is_incomplete(column: Column) -> bool:
    """Return whether a column is an Arrow array of numbers of which some or all are missing."""
    if not isinstance(column, pa.Array) or not column.null_count:
        return False
    kind = column.type.value_type if isinstance(column, pa.DictionaryArray) else column.type
    return _is_number(kind) or _is_null(kind) or bool(pa.types.is_decimal(kind))


def from_objects(
    array: Array,
    name: str | None = None,
    *,
    convert: bool = False,
    incomplete: bool = False,
    missing: float | None = None,
) -> Column:
    """Convert an array of objects to a column of strings, numbers or lists. Return other objects unchanged.

    With `convert`, convert decimals and dates, too, as `from_arrow` does. For the others see `as_column`.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        return array
    try:
        encoded = pa.array(array if array.dtype.kind == "O" else array.astype(object), from_pandas=True)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return convert_objects(array.tolist(), name, otherwise=array)
    if incomplete and is_incomplete(encoded):
        return encoded
    kind = encoded.type
    plain = _is_number(kind) or _is_text(kind)
    if convert or plain or (is_list_type(kind) and not is_list_type(kind.value_type)):
        return from_arrow(encoded, name=name, missing=missing)
    return array


def from_arrow(
    array: pa.Array, *, name: str | None = None, default: Any = None, missing: float | None = None, cure: str = ""
) -> Column:
    """Convert an Arrow array to a column. Strings and lists stay Arrow arrays; numbers become numpy arrays.

    The array holds strings, numbers, booleans, dates (which become strings), or lists of numbers or strings; other
    types are an InvalidTypeError. `default` replaces a missing value: None is '' for strings and a RowError for
    numbers, unless the number `missing` replaces it, also in lists (integers become floats for NaN or a fraction). The
    error begins with the name of the column and ends with `cure`, such as `DEFAULT_CURE`.
    """
    array = arrow.without_extension(array)
    if missing is not None and _is_null(array.type):
        array = array.cast(pa.float64())
    kind = array.type.value_type if isinstance(array, pa.DictionaryArray) else array.type
    if _is_text(kind):
        return _strings(array, "" if default is None else str(default), name)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if pa.types.is_decimal(kind):
        kind = pa.float64()
        array = array.cast(kind)
    if is_list_type(kind):
        return _lists(array, name, default, missing)
    if not _is_number(kind):
        raise InvalidTypeError(f"{_named(name)} has the Arrow type {kind}, which cannot be used; convert it first.")
    return arrow.to_numpy(_without_nulls(array, name, default, missing, cure))


def default_as(value: Any, kind: pa.DataType, name: str | None) -> Any:
    """Convert a default to a Python value of its column's type; true and false are no integers."""
    if pa.types.is_dictionary(kind):
        return value.decode() if isinstance(value, bytes) else str(value)
    given = value.item() if isinstance(value, np.generic) else value
    try:
        if isinstance(given, bool) and pa.types.is_integer(kind):
            raise pa.ArrowTypeError("a boolean")
        return pa.scalar(given).cast(kind).as_py()
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidValueError(
            f"the default {value!r} of {_named(name)} cannot be read as {kind}, the type of the column."
        ) from error


def is_strings(column: Column) -> bool:
    """Return whether a column holds strings."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind in "OUST"
    return not is_lists(column)


def take(column: Column, indices: Array) -> Column:
    """Return a column with the rows at `indices`, in this order."""
    if isinstance(column, np.ndarray):
        return column.take(indices, axis=0)
    return column.take(arrow.from_numpy(indices))


def concat(columns: Sequence[Column]) -> Column:
    """Return the rows of several columns, which have the same type and shape, as one column."""
    if len(columns) == 1:
        return columns[0]
    try:
        if all(isinstance(column, np.ndarray) for column in columns):
            return np.concatenate(columns)
        if all(map(is_lists, columns)):
            return concat_lists(list(columns))
        arrays: list[Any] = [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
        if len({array.type for array in arrays}) > 1:
            arrays = [array.cast(STRINGS) for array in arrays]
        return pa.concat_arrays(arrays)
    except (ValueError, TypeError, pa.ArrowException) as error:
        kinds = sorted({_kind(column) for column in columns})
        raise InvalidValueError(
            f"rows of different kinds cannot be in one batch: {', '.join(kinds)} ({error})."
        ) from error


def replace_empty(strings: pa.DictionaryArray, default: str, *, also: Sequence[str] = ()) -> pa.DictionaryArray:
    """Return dictionary encoded strings with empty ones, and those in `also`, replaced by `default`.

    >>> replace_empty(pa.array(["a", "", "b"]).dictionary_encode(), "b").to_pylist()
    ['a', 'b', 'b']
    """
    values = strings.dictionary.to_pylist()
    missing = {"", *also}
    if missing.isdisjoint(values):
        return strings
    values = [default if value in missing else value for value in values]
    distinct = list(dict.fromkeys(values))
    place = {value: index for index, value in enumerate(distinct)}
    lookup = np.array([place[value] for value in values], dtype=np.int32)
    indices = lookup[arrow.to_numpy(strings.indices)]
    return pa.DictionaryArray.from_arrays(arrow.from_numpy(indices), pa.array(distinct, pa.string()))


def read_only(column: Column) -> Column:
    """Return a read-only view of an array. Batches are copied from it, so no model can change its numbers in place."""
    if isinstance(column, np.ndarray):
        column = column.view()
        column.flags.writeable = False
    return column


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor, without importing PyTorch, which readers of files do without."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _kind(column: Column) -> str:
    if isinstance(column, np.ndarray):
        return f"{column.dtype} of shape {[len(column), *column.shape[1:]]}"
    return str(column.type)


def _as_array(value: Any, name: str | None) -> Array:
    if is_tensor(value):
        if str(value.dtype) == "torch.bfloat16":
            raise InvalidTypeError(f"{_named(name)} is a bfloat16 tensor, which numpy does not have; give float32.")
        return np.asarray(value.detach().cpu().numpy())
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if np.ma.is_masked(value):
        row = int(np.argwhere(np.ma.getmaskarray(value))[0, 0]) if value.ndim else 0
        raise RowError("the value is masked; replace it, as with array.filled(0)", row=row, column=name)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        problem = unequal_rows_problem(value) or str(error).rstrip(".")
        raise InvalidTypeError(f"{_named(name)} cannot be made an array: {problem}.") from error
    if isinstance(value, list | tuple) and array.dtype.kind == "f" and (np.abs(array) >= 2.0**63).any():
        # numpy makes floats of integers that no integer type can hold. Raise an error if the list has such integers.
        check_integers(value, name)
    # A tensor can only be made of numbers in the byte order of this machine.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _unmasked(array: Any) -> Any:
    """Return a masked array with missing values in place of the masked ones, or unchanged if its type has none."""
    if array.dtype.kind == "f":
        return array.filled(np.nan)
    if array.ndim == 1 and array.dtype.kind in "iuOUS":
        values = array.data if array.dtype.kind in "iu" else array.data.astype(object)
        return pa.array(values, mask=np.ma.getmaskarray(array))
    return array


def _ragged(value: Any) -> pa.Array | None:
    """Convert a Python list of lists of unequal lengths to an Arrow array. Return None for any other value."""
    if unequal_rows_problem(value) is None or not all(isinstance(row, list | tuple) for row in value):
        return None
    try:
        return pa.array(value)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_null(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind))


def _is_text(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_temporal,
        pa.types.is_null,
    )
    return any(test(kind) for test in tests)


def _strings(array: pa.Array, default: str, name: str | None) -> pa.DictionaryArray:
    try:
        if not isinstance(array, pa.DictionaryArray):
            array = arrow.as_text(array).dictionary_encode()
        elif array.type != STRINGS:
            array = pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), arrow.as_text(array.dictionary))
    except pa.ArrowInvalid:
        # A value is not UTF-8. Convert the values one by one, so that the error names this value.
        return pa.array(convert_objects(array.to_pylist(), name), pa.string()).dictionary_encode()
    if array.null_count:
        values = [*array.dictionary.to_pylist(), default]
        indices = pc.fill_null(array.indices, pa.scalar(len(values) - 1, pa.int32()))
        array = pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()))
        array = array.dictionary_decode().dictionary_encode()
    return replace_empty(array, default) if default else array


def _without_nulls(array: pa.Array, name: str | None, default: Any, missing: float | None, cure: str) -> pa.Array:
    if not array.null_count:
        return array
    if default is None and missing is not None:
        default = missing
        if pa.types.is_boolean(array.type) or not (pa.types.is_floating(array.type) or float(missing).is_integer()):
            # An integer that a float cannot hold is rounded, as elsewhere.
            array = array.cast(pa.float64(), safe=False)
    if default is None:
        row = int(np.flatnonzero(arrow.to_numpy(array.is_null()))[0])
        raise RowError(f"{MISSING}{cure.format(name)}", row=row, column=name)
    return pc.fill_null(array, pa.scalar(default_as(default, array.type, name)).cast(array.type))


def _lists(array: pa.Array, name: str | None, default: Any, missing: float | None) -> Column:
    if default is not None:
        raise InvalidValueError(
            f"{_named(name)} holds lists, which cannot have the default {default!r}: a missing list is an empty one."
        )
    return lists_column(array, lambda values: from_arrow(values, name=name, missing=missing), name)


def _named(name: str | None) -> str:
    return "a column" if name is None else f"column {name!r}"
