"""Partition columns: directories such as ``day=2026-01-31/``, as Hive and Spark write them, hold a column of a file.

A column that the file has, too, must have the value of its path in each row. (pyarrow's datasets take the path's.)
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data.arrow import from_numpy, from_strings, without_extension
from torch_estimator.data.columns import STRINGS
from torch_estimator.data.sources.convert import converted
from torch_estimator.errors import DataError, RowError
from torch_estimator.json_text import shortened

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def partition_of(url: str) -> dict[str, str | None]:
    """Return the columns in the path of a file: their texts, with None for a missing value.

    Raise a DataError if a column has two.

    >>> partition_of("data/day=2026-01-31/town=S%C3%A3o Paulo/part-0.csv")
    {'day': '2026-01-31', 'town': 'São Paulo'}
    """
    texts: dict[str, str] = {}
    for name, sign, text in (part.partition("=") for part in url.split("/")[:-1]):
        if name and sign and texts.setdefault(unquote(name), text) != text:
            raise DataError(f"{url} has both {name}={texts[unquote(name)]} and {name}={text} in its path; rename one.")
    return {name: None if text == _MISSING else unquote(text) for name, text in texts.items()}


def repeated(text: str | None, rows: int) -> pa.DictionaryArray:
    """Return a column of strings that has the same text in each row."""
    if text is None:
        return pa.nulls(rows, STRINGS)
    return pa.DictionaryArray.from_arrays(from_numpy(np.zeros(rows, np.int32)), from_strings([text]))


def unequal_rows(array: pa.Array, name: str, text: str | None, *, or_null: bool = False) -> dict[int, str]:
    """Return the rows of a column of a file that have another value than its path, and what is wrong with them.

    With `or_null` a missing value is no other value.
    """
    array = without_extension(array)
    array = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
    try:
        value = converted(repeated(text, 1), array.type, name)[0]
        differs = array.is_valid() if text is None else pc.fill_null(pc.not_equal(array, value), not or_null)
        rows = np.flatnonzero(differs.to_numpy(zero_copy_only=False)).tolist()
    except (RowError, pa.ArrowException):
        rows = [row for row in range(len(array)) if not or_null or array[row].is_valid]
    return {row: disagreement(array[row].as_py(), name, text) for row in rows}


def disagreement(value: Any, name: str, text: str | None) -> str:
    """Return the problem of a row that has another value than the path of its file."""
    found = _MISSING if text is None else text
    return f"the row has {shortened(value)}, but the path of its file has {name}={found}"
