"""What is wrong with a line of a CSV file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from torch_estimator.data.csv_parser import CsvParser
from torch_estimator.data.csv_schema import open_quote
from torch_estimator.data.line_errors import first_words

_MOST_SHOWN = 40


def csv_problem(parser: CsvParser, line: bytes, error: pa.ArrowInvalid) -> str:
    """Returns the problem of a line that ``parser`` cannot parse, which Arrow refused with ``error``."""
    schema = parser.schema
    text = line.decode("utf-8", errors="replace")
    fields = schema.format.fields(text)
    if schema.format.is_open(text):
        return open_quote(schema.format)
    if len(fields) != len(schema.names):
        return f"{len(fields)} fields, but there are {len(schema.names)} columns ({', '.join(schema.names)})"
    for name, kind in schema.types.items():
        if _is_wrong(parser, line, [name]):
            value = fields[schema.names.index(name)]
            if _is_number(value) and pa.types.is_floating(kind):
                nan = f"defaults={{{name!r}: float('nan')}}"
                return f"column {name!r}: {_shown(value)} is not a finite number ({kind}); give {nan} to allow it"
            hint = ""
            if name in schema.inferred and not pa.types.is_dictionary(kind):
                hint = f" (inferred from the first rows; if that is wrong, give column_types={{{name!r}: ...}})"
            return f"column {name!r}: {_shown(value)} is not {what_is_read(kind)}{hint}"
    return first_words(error)


def what_is_read(kind: pa.DataType) -> str:
    """Returns in words what a column of a type holds, with an article."""
    if pa.types.is_dictionary(kind):
        return "UTF-8 text"
    if pa.types.is_integer(kind):
        return f"a whole number ({kind})"
    return "true or false" if pa.types.is_boolean(kind) else f"a number ({kind})"


def _is_wrong(parser: CsvParser, line: bytes, columns: Sequence[str]) -> bool:
    try:
        parser.parse(line, columns)
    except pa.ArrowInvalid:
        return True
    return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(value: str) -> str:
    return repr(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")
