"""Rows of a chunk on their way to the model, and Arrow columns turned into numpy arrays and codes of strings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data.arrow import from_numpy, without_extension
from torch_estimator.data.columns import Array
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.convert import converted, is_convertible
from torch_estimator.data.sources.left_out import wrong_rows
from torch_estimator.errors import DataError, RowError
from torch_estimator.export.dtypes import Integers
from torch_estimator.export.signatures import TensorInfo
from torch_estimator.json_text import shortened


@dataclass(frozen=True, slots=True)
class Texts:
    """Column of strings, each distinct one stored once; `codes` has the index of each row's string.

    The codes are integers ``[rows]``, and for an output also ``[rows, n]``; `distinct` is an object array.
    """

    distinct: Array
    codes: Array

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | Array) -> Texts:
        return Texts(self.distinct, self.codes[rows])

    def values(self) -> Array:
        """Return the string of each row."""
        return self.distinct[self.codes]


Column = Array | Texts | list[Any]
"""Values of an input, one per row: an array, strings, or Python values."""


@dataclass(slots=True)
class Rows:
    """Rows of a chunk that could be read, as inputs and keys by column, and those that could not, with the reasons.

    A row has a place in the chunk, from 0: its line, or its row in a Parquet file. There are `length` places; `numbers`
    are those of the rows that could be read, and `rejected` has those of the others.
    """

    columns: dict[str, Column]
    keys: dict[str, pa.Array | list[Any]]
    numbers: Array
    length: int
    rejected: list[tuple[int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def reject(self, reasons: dict[int, str]) -> Rows:
        """Return the rows without those in `reasons`, which are numbered among these rows, not by place."""
        if not reasons:
            return self
        kept = np.setdiff1d(np.arange(len(self)), np.fromiter(reasons, np.int64))
        rejected = [(int(self.numbers[index]), reason) for index, reason in reasons.items()]
        return Rows(
            {name: taken(column, kept) for name, column in self.columns.items()},
            {name: taken(column, kept) for name, column in self.keys.items()},
            self.numbers[kept],
            self.length,
            [*self.rejected, *rejected],
        )


def taken(column: Any, rows: slice | Array) -> Any:
    """Return some rows of a column."""
    if isinstance(column, pa.Array):
        return column.slice(rows.start, rows.stop - rows.start) if isinstance(rows, slice) else _take(column, rows)
    if isinstance(column, list) and not isinstance(rows, slice):
        return [column[row] for row in rows]
    return column[rows]


def _take(column: pa.Array, rows: Array) -> pa.Array:
    return column.take(from_numpy(rows.astype(np.int64)))


def texts_of(array: pa.Array, info: TensorInfo) -> Texts:
    """Return a column of Arrow strings; nulls become the input's default or ``''``."""
    array = pa.nulls(len(array), pa.string()) if pa.types.is_null(array.type) else array
    array = array if isinstance(array, pa.DictionaryArray) else array.dictionary_encode()
    distinct = np.empty(len(array.dictionary) + 1, object)
    distinct[:-1] = ["" if text is None else text for text in array.dictionary.to_pylist()]
    distinct[-1] = "" if info.default is None else _one(info.default)
    return Texts(distinct, _filled(array.indices, len(distinct) - 1))


def numbers_of(array: pa.Array, name: str, info: TensorInfo) -> tuple[Array, dict[int, str]]:
    """Convert an Arrow column of numbers, booleans or strings to the type of an input; nulls become its default.

    Return the reason for each row that has no number, too.
    """
    reasons: dict[int, str] = {}
    array = pa.nulls(len(array), pa.int8()) if pa.types.is_null(array.type) else array
    array, wrong = as_read(array, name, info)
    if info.default is None and array.null_count:
        reasons = dict.fromkeys(_places(array.is_null()), f"Input {name} is missing.")
    reasons |= wrong
    dtype = info.type.numpy
    # The type of the column may be too narrow for the default.
    is_missing = _bits(array.is_null()) if info.default is not None and array.null_count else None
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    values = _filled(array, 0) if array.type != pa.float16() else _filled(array.cast(pa.float32()), 0)
    if isinstance(info.type, Integers) and values.dtype != dtype:
        limits = np.iinfo(dtype)
        # A comparison of unsigned integers with negative limits would be made in floats, so compare with 0 there.
        least = max(limits.min, 0) if values.dtype.kind == "u" else limits.min
        for row in np.flatnonzero((values < least) | (values > limits.max)).tolist():
            reasons.setdefault(row, str(info.type.too_large(name, values[row])))
    with np.errstate(over="ignore"):
        values = values.astype(dtype, copy=False)
    if is_missing is not None:
        values[is_missing] = _one(info.default)
    return values, reasons


def lists_of(array: pa.Array, name: str, info: TensorInfo) -> tuple[Column, dict[int, str]]:
    """Convert an Arrow column of lists for an input of several values per row; nulls become its default.

    The lists may have any length if the input takes that. Return the reason for each row that is missing without a
    default or has the wrong number of values, too.
    """
    reasons: dict[int, str] = {}
    if info.default is None and array.null_count and not info.holds_lists:
        reasons = dict.fromkeys(_places(array.is_null()), f"Input {name} is missing.")
    size = int(np.prod(info.shape[1:]))
    if not info.holds_lists and len(info.shape) == 2:
        lengths = _filled(pc.list_value_length(array), size).astype(np.int64)
        for row in np.flatnonzero(lengths != size).tolist():
            reasons.setdefault(row, f"Input {name} takes {size} values, but has {lengths[row]}.")
        values = array.flatten()
        if not reasons and not array.null_count and not values.null_count and info.dtype != "DT_STRING":
            numbers, wrong = numbers_of(values, name, info)
            if not wrong:
                return numbers.reshape(len(array), size), {}
    rows: list[Any] = array.to_pylist()
    default = info.default if info.default is not None else [info.type.padding] * (0 if info.holds_lists else size)
    return [default if row is None else row for row in rows], reasons


def as_read(array: pa.Array, name: str, info: TensorInfo) -> tuple[pa.Array, dict[int, str]]:
    """Convert an Arrow column as training does; return the reason for each row that cannot be converted, too.

    Such a row becomes null. A column that the input takes as it is, is returned unchanged.
    """
    array = without_extension(array)
    if _fits(array.type, info):
        return array, {}
    kind = _wanted(array.type, info)
    try:
        return converted(array, kind, name), {}
    except RowError:
        wrong = wrong_rows(len(array), lambda start, stop: converted(array[start:stop], kind, name))
    is_wrong = np.zeros(len(array), np.int8)
    is_wrong[[*wrong]] = 1
    usable = pc.if_else(from_numpy(is_wrong).cast(pa.bool_()), pa.nulls(1, array.type)[0], array)
    reasons = {row: f"Input {name} takes {info.type.wanted}, but has {shortened(array[row].as_py())}." for row in wrong}
    return converted(usable, kind, name), reasons


def check_type(kind: pa.DataType, name: str, info: TensorInfo, where: str) -> None:
    """Raise a DataError if a Parquet column cannot be given to an input."""
    takes_lists = not info.is_single
    given = kind
    for _ in info.shape[1:]:
        given = given.value_type if is_list_type(given) else given
    # pyarrow writes a column without any value as a column of nulls.
    fits = is_list_type(kind) == takes_lists or info.holds_lists
    fits = fits and not is_list_type(given)
    fits = fits and (_fits(kind, info) or is_convertible(kind, _wanted(kind, info)))
    if not fits and not (pa.types.is_null(kind) and not takes_lists):
        wanted = f"{'lists of ' if takes_lists else ''}{info.type.wanted}"
        raise DataError(f"{where}: column {name!r} holds {kind}, but the input takes {wanted}.")


def _fits(kind: pa.DataType, info: TensorInfo) -> bool:
    """Return whether values of a type, or lists of them, can be given to an input as they are."""
    if info.holds_lists and not is_list_type(kind):
        return False
    while is_list_type(kind):
        kind = kind.value_type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if info.dtype == "DT_STRING":
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return is_number and np.dtype(kind.to_pandas_dtype()).kind in info.type.kinds


def _wanted(kind: pa.DataType, info: TensorInfo, *, in_list: bool = False) -> pa.DataType:
    """Return the Arrow type of an input, in lists like those of a type, or else in one if the input takes lists."""
    if not is_list_type(kind):
        one = pa.string() if info.dtype == "DT_STRING" else pa.from_numpy_dtype(info.type.numpy)
        return pa.list_(one) if info.holds_lists and not in_list else one
    value = _wanted(kind.value_type, info, in_list=True)
    return pa.list_(value, kind.list_size if pa.types.is_fixed_size_list(kind) else -1)


def _one(default: Any) -> Any:
    return default[0] if isinstance(default, list) else default


def _filled(array: pa.Array, value: Any) -> Array:
    """Return the values of an Arrow array of numbers, with `value` for nulls."""
    if not len(array):
        return np.empty(0, array.type.to_pandas_dtype())
    if not array.null_count:
        return np.from_dlpack(array)
    is_null = _bits(array.is_null())
    # Read the numbers without the bitmap of nulls; what they hold at nulls is replaced.
    plain = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    values: Array = np.from_dlpack(plain).copy()
    values[is_null] = value
    return values


def _bits(array: pa.Array) -> Array:
    return np.from_dlpack(array.cast(pa.int8())).astype(np.bool_)


def _places(array: pa.Array) -> list[int]:
    places: list[int] = np.flatnonzero(_bits(array)).tolist() if len(array) else []
    return places
