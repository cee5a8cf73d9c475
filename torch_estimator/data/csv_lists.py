"""Lists in fields of CSV: text with a separator between the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data import arrow
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError


def check_separator(separator: Any, delimiter: str, quote_char: str | None) -> str | None:
    """Returns what stands between the values of a list.

    Raises:
        InvalidTypeError: It is no string.
        InvalidValueError: It is empty, or has a meaning in CSV already.
    """
    if separator is None:
        return None
    if not isinstance(separator, str):
        raise InvalidTypeError(f"list_separator must be a string, but got {separator!r}.")
    if not separator or separator in (delimiter, quote_char):
        raise InvalidValueError(
            f"list_separator must be a string other than the delimiter and the quote character, but got {separator!r}."
        )
    return separator


def without_separator(column: str) -> InvalidValueError:
    """Returns the error for a column of lists in files that have no separator."""
    return InvalidValueError(
        f"column {column!r} holds lists, but a field of CSV holds one value; give from_csv(list_separator=...) what "
        "stands between the values of a list, such as '|', or use Parquet or JSON."
    )


def split_lists(fields: pa.DictionaryArray, separator: str, value_type: pa.DataType, name: str) -> pa.ListArray:
    """Returns the lists in text: an empty field is an empty list, and of numbers the spaces around them are dropped.

    Raises:
        RowError: A value is no number.
    """
    distinct = fields.dictionary.cast(pa.string())
    lists = pc.split_pattern(distinct, separator)
    empty = pc.equal(distinct, "")
    lists = pc.if_else(empty, pa.scalar([], pa.list_(pa.string())), lists)
    if not pa.types.is_string(value_type):
        lists = _numbers(lists, value_type, fields, name)
    return lists.take(fields.indices)


def _numbers(lists: pa.ListArray, value_type: pa.DataType, fields: pa.DictionaryArray, name: str) -> pa.ListArray:
    texts = pc.utf8_trim_whitespace(lists.flatten())
    lengths = arrow.to_numpy(lists.value_lengths())
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    try:
        return pa.ListArray.from_arrays(arrow.from_numpy(offsets), texts.cast(value_type))
    except pa.ArrowInvalid as error:
        place, text = next((i, one) for i, one in enumerate(texts.to_pylist()) if not _is_number(one, value_type))
        code = int(np.searchsorted(offsets, place, side="right")) - 1
        row = int(np.flatnonzero(arrow.to_numpy(fields.indices) == code)[0])
        wanted = "whole number" if pa.types.is_integer(value_type) else "number"
        raise RowError(f"{text!r} in the list is not a {wanted} ({value_type})", row=row, column=name) from error


def _is_number(text: str, value_type: pa.DataType) -> bool:
    try:
        pa.array([text]).cast(value_type)
    except pa.ArrowInvalid:
        return False
    return True
