"""Conversion of Arrow columns to the types that a model reads, for the readers of training and of batch prediction.

Decimals, booleans and text become numbers. Numbers, dates, times, bytes in UTF-8, UUIDs and JSON become text: 7.0 is
``7``, a date ``2026-01-31``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data.arrow import as_text, from_numpy, to_numpy, without_extension
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.text_lines import type_in_words
from torch_estimator.errors import RowError
from torch_estimator.json_text import shortened


def is_convertible(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether `converted` knows how to make one type of another, whatever the values."""
    try:
        _cast(pa.nulls(0, given), wanted)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True


def converted(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return an Arrow array of the column `name`, converted to a type; a dictionary type stands for its values' type.

    NaN becomes null in a type that has none. Raise a RowError for the first value that cannot be converted, and
    ArrowNotImplementedError if no value of its type can be.
    """
    array = without_extension(array)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(array, pa.DictionaryArray) and array.type.value_type == kind:
        return array
    try:
        return _cast(array, kind)
    except pa.ArrowInvalid as error:
        row = _first_wrong(array, kind)
        wanted = kind.value_type if is_list_type(kind) else kind
        # Text that is not UTF-8 cannot be shown as text.
        value = array[row].as_py()
        problem = f"{shortened(value)} is not {'UTF-8 text' if pa.types.is_string(wanted) else type_in_words(wanted)}"
        raise RowError(problem, row=row, column=name) from error


def parsed_numbers(texts: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return the numbers in texts, which may have spaces around them, and integers a plus sign.

    Raise ArrowInvalid if a text is no number of the type.
    """
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        if pa.types.is_integer(kind):
            return pc.replace_substring_regex(texts, r"^\s*(?:\+(\d+)|(-?\d+))\s*$", r"\1\2").cast(kind)
        return pc.utf8_trim_whitespace(texts).cast(kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    array = without_extension(array)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    given = array.type
    if given == kind:
        return array
    if pa.types.is_list(kind) and not is_list_type(given):
        # A single value is a list of one, and a missing value an empty list.
        values = _cast(array, kind.value_type)
        offsets = np.concatenate([[0], np.cumsum(to_numpy(values.is_valid()))]).astype(np.int32)
        return pa.ListArray.from_arrays(from_numpy(offsets), values.drop_null()).cast(kind)
    if is_list_type(given):
        # Arrow would also convert the values of rows outside of a slice.
        array = array.take(from_numpy(np.arange(len(array))))
    if pa.types.is_floating(given) and not pa.types.is_floating(kind):
        array = pc.if_else(pc.is_nan(array), pa.nulls(1, given)[0], array)
    if pa.types.is_binary(given) or pa.types.is_large_binary(given) or pa.types.is_fixed_size_binary(given):
        array = array.cast(pa.string())
    elif pa.types.is_string(kind):
        return as_text(array)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array.cast(kind) if pa.types.is_string(kind) else parsed_numbers(array, kind)
    # An integer that a float cannot hold is rounded, as in text.
    return array.cast(kind, safe=not pa.types.is_floating(kind.value_type if is_list_type(kind) else kind))


def _first_wrong(array: pa.Array, kind: pa.DataType) -> int:
    """Return the first row that cannot be converted, given that there is one."""
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            _cast(array[start:middle], kind)
        except pa.ArrowInvalid:
            stop = middle
        else:
            start = middle
    return start
