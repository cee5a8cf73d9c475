"""Columns of lists of any length: conversion to and from Arrow arrays, and padding to numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data import arrow
from torch_estimator.errors import InvalidTypeError, RowError

if TYPE_CHECKING:
    from collections.abc import Callable

Array: TypeAlias = np.ndarray[Any, Any]


def is_list_type(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list type, with fixed or variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_lists(column: Any) -> bool:
    """Return whether a column holds lists that may differ in length."""
    return isinstance(column, pa.ListArray)


def lists_column(array: pa.Array, convert: Callable[[pa.Array], Any], name: str | None) -> Any:
    """Convert an Arrow array of lists to a column. Missing lists become empty lists.

    `convert` makes a column from the values of all lists. Return a numpy array ``[rows, length]`` if the type has a
    fixed length and the lists hold numbers; else an Arrow array of lists.
    """
    lengths = arrow.to_numpy(pc.fill_null(pc.list_value_length(array), 0))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if pa.types.is_null(array.type.value_type) and not offsets[-1]:
        # All lists are empty, so the type of their values is unknown. Use Arrow's null type for it.
        return pa.ListArray.from_arrays(arrow.from_numpy(offsets.astype(np.int32)), pa.nulls(0))
    try:
        values = convert(array.flatten())
    except RowError as error:
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        raise RowError(error.problem, row=row, column=name) from error
    if is_lists(values) or getattr(values, "ndim", 1) != 1:
        raise InvalidTypeError(f"{_named(name)} must hold lists of numbers or of strings, but is {array.type}.")
    if pa.types.is_fixed_size_list(array.type) and isinstance(values, np.ndarray) and not array.null_count:
        return values.reshape(len(array), array.type.list_size)
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    return pa.ListArray.from_arrays(arrow.from_numpy(offsets.astype(np.int32)), pa.array(values))


def concat_lists(columns: list[pa.ListArray]) -> pa.ListArray:
    """Return the rows of several columns of lists as one column.

    Integers become floats if another column has floats. Columns of empty lists, whose type is unknown, can be joined
    with columns of any type. Raise pyarrow.ArrowException if some columns hold numbers and some strings.
    """
    kinds = {column.type for column in columns}
    if len(kinds) > 1:
        values = pa.unify_schemas([pa.schema({"": kind.value_type}) for kind in kinds], promote_options="permissive")
        kind = pa.list_(values.field(0).type)
        columns = [column.cast(kind) for column in columns]
    return pa.concat_arrays(columns)


def list_lengths(column: pa.ListArray) -> Array:
    """Return the length of every list: int64 ``[rows]``."""
    return arrow.to_numpy(column.value_lengths()).astype(np.int64)


def as_lists(column: Any) -> Any:
    """Convert a column with one or several values per row to a column of lists.

    A single value becomes a list of one value, and an array ``[rows, length]`` becomes lists of that length. Other
    columns are returned unchanged.
    """
    if is_lists(column):
        return column
    if not isinstance(column, np.ndarray):
        values, length = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column, 1
    elif column.ndim <= 2 and column.dtype.kind in "biuf":
        values, length = arrow.from_numpy(column.reshape(-1)), column.size // max(len(column), 1)
    elif column.ndim == 2 and column.dtype.kind in "OUST":
        values, length = _of_objects(column.reshape(-1)), column.shape[1]
    else:
        return column
    if values is None:
        return column
    offsets = np.arange(len(column) + 1, dtype=np.int32) * length
    return pa.ListArray.from_arrays(arrow.from_numpy(offsets.astype(np.int32)), values)


def _of_objects(values: Array) -> pa.Array | None:
    """Convert objects to an Arrow array of numbers or strings, with '' if missing. Return None for other objects."""
    try:
        array = pa.array(values if values.dtype.kind == "O" else values.astype(object), from_pandas=True)
        if pa.types.is_binary(array.type):
            array = array.cast(pa.string())
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if pa.types.is_string(array.type) or pa.types.is_null(array.type):
        return pc.fill_null(array.cast(pa.string()), "")
    return array if pa.types.is_integer(array.type) or pa.types.is_floating(array.type) else None


def fill_empty(column: pa.ListArray, value: float) -> pa.ListArray:
    """Return lists of numbers with lists of `value`, as long as the longest one, in place of empty ones."""
    lengths = list_lengths(column)
    if lengths.all():
        return column
    filled = np.where(lengths == 0, lengths.max(), lengths)
    offsets = np.concatenate([[0], np.cumsum(filled)])
    values = np.full(offsets[-1], value, np.float64)
    values[np.repeat(lengths > 0, filled)] = arrow.to_numpy(column.flatten())
    return pa.ListArray.from_arrays(arrow.from_numpy(offsets.astype(np.int32)), pa.array(values))


def as_matrix(column: pa.ListArray, name: str | None) -> Array:
    """Convert lists of equal length to a numpy array ``[rows, length]``. Strings become `str` objects."""
    lengths = list_lengths(column)
    if len(other := np.flatnonzero(lengths != lengths[:1])):
        raise RowError(
            f"the list has length {lengths[other[0]]}, but those before have {lengths[0]}; lists must be of one length",
            row=int(other[0]),
            column=name,
        )
    values = _values(column)
    return values.reshape(len(column), int(lengths[0]) if len(lengths) else 0, *values.shape[1:])


def padded(column: pa.ListArray, *, value: Any = None, length: int | None = None) -> Array:
    """Convert lists to a numpy array ``[rows, length]``. Short lists are padded at the end.

    Lists of lists become an array of more dimensions, each as long as the longest list. The padding value is 0, False
    or '' for None; ValueError or OverflowError if it does not fit the type of the lists. `length` is at least that of
    the longest list, which it is by default.

    >>> padded(pa.array([[1, 2], [], [3]])).tolist()
    [[1, 2], [0, 0], [3, 0]]
    """
    lengths = list_lengths(column)
    values = _values(column, value)
    if value is None:
        value = "" if values.dtype == object else 0
    width = int(lengths.max(initial=0)) if length is None else length
    if isinstance(value, str) != (values.dtype == object) or np.asarray(value).astype(values.dtype) != value:
        raise ValueError(f"{value!r} is no {values.dtype}")
    result = np.full((len(lengths), width, *values.shape[1:]), value, dtype=values.dtype)
    result[np.arange(width) < lengths[:, None]] = values
    return result


def _values(column: pa.ListArray | pa.FixedSizeListArray, padding: Any = None) -> Array:
    """Return the values of all lists, one after the other; those that are lists of any length are padded."""
    if pa.types.is_null(column.type.value_type):
        return np.empty(0, np.float32)
    items = column.flatten()
    if is_lists(items):
        return padded(items, value=padding)
    if pa.types.is_fixed_size_list(items.type):
        values = _values(items, padding)
        return values.reshape(len(items), items.type.list_size, *values.shape[1:])
    return arrow.to_numpy(items)


def _named(name: str | None) -> str:
    return "a column" if name is None else f"column {name!r}"
