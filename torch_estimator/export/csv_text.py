"""Rows of CSV that a caller gives, looked at before the graph sees them."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.signatures import CsvFormat

# The graph uses the same expressions; onnxruntime itself would read "12abc" as 12.
SPACE = r"[ \t\r\n]*"
FLOAT = rf"{SPACE}[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|nan|NaN|inf|Infinity){SPACE}"
INTEGER = rf"{SPACE}[+-]?[0-9]+{SPACE}"
PATTERNS = {"DT_FLOAT": FLOAT, "DT_INT64": INTEGER}

_COMPILED = {dtype: re.compile(pattern) for dtype, pattern in PATTERNS.items()}


class CsvRowError(InvalidValueError):
    """A row cannot be read.

    Args:
        problem: What is wrong with it, without the row: ``has 2 fields where …``.
        row: Its number, from 1.
    """

    def __init__(self, problem: str, *, row: int) -> None:
        super().__init__(f"row {row} of the CSV input {problem}")
        self.problem = problem
        self.row = row


def read_rows(rows: Sequence[str], csv_format: CsvFormat) -> npt.NDArray[Any] | None:
    """Checks rows; returns their fields ``[rows, fields]`` if a row is quoted, else None: the graph splits them.

    Raises:
        CsvRowError: A row has a wrong number of fields, a broken quote, or text for a number.
    """
    names = csv_format.column_names
    fields = [_split(row, number, names) for number, row in enumerate(rows, 1)]
    for name, field in csv_format.fields.items():
        pattern = _COMPILED.get(field.dtype)
        if pattern is None:
            continue
        place = names.index(name)
        for number, row in enumerate(fields, 1):
            text = row[place]
            if pattern.fullmatch(text) or (not text and field.default is not None):
                continue
            raise CsvRowError(_not_a_number(text, name, field.dtype), row=number)
    if not any('"' in row for row in rows):
        return None
    return np.array(fields, dtype=object).reshape(len(rows), len(names))


def _split(row: str, number: int, names: Sequence[str]) -> list[str]:
    fields = row.split(",") if '"' not in row else _unquoted(row, number)
    if len(fields) != len(names):
        raise CsvRowError(
            f"has {len(fields)} fields where {len(names)} are expected ({', '.join(names)}): {_shortened(row)}.",
            row=number,
        )
    return fields


def _unquoted(row: str, number: int) -> list[str]:
    try:
        return next(csv.reader([row], strict=True))
    except (csv.Error, StopIteration) as error:
        raise CsvRowError(f"is not quoted properly ({error}): {_shortened(row)}.", row=number) from error


def _not_a_number(text: str, name: str, dtype: str) -> str:
    wanted = "an integer" if dtype == "DT_INT64" else "a number"
    if not text:
        return f"has nothing in the column {name!r}, which takes {wanted} and has no default."
    return f"has {_shortened(text)} in the column {name!r}, which takes {wanted}."


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
