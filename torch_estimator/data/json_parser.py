"""Parsing of JSON lines with Arrow, in the calling thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as arrow_json

from torch_estimator.data.csv_errors import what_is_read
from torch_estimator.data.csv_parser import is_finite, is_nan
from torch_estimator.data.line_errors import first_words
from torch_estimator.data.lists import is_list_type

_MOST_BLOCK_BYTES = 2**30
_MOST_SHOWN = 40

BLANK = b" \t\r\n"


class JsonParser:
    """Parses JSON lines into Arrow arrays; what is missing is null.

    Attributes:
        types: The columns to read and their types.
        defaults: Column -> what a missing value becomes; NaN allows for it in the data.
    """

    def __init__(self, types: Mapping[str, pa.DataType], defaults: Mapping[str, Any]) -> None:
        self.types = types
        self._defaults = defaults
        self._schema = pa.schema({name: _parsed_as(kind) for name, kind in types.items()})

    def parse(self, data: bytes, columns: Sequence[str] | None = None) -> dict[str, pa.Array]:
        """Returns the columns, or some of them.

        Raises:
            pyarrow.ArrowInvalid: A line is no JSON object, or a value is of another type or not finite.
        """
        names = list(self.types) if columns is None else list(columns)
        if not data.strip(BLANK):
            return {name: pa.array([], self.types[name]) for name in names}
        table = _read(data, pa.schema([self._schema.field(name) for name in names]), "ignore")
        if table.num_rows != data.count(b"\n") and table.num_rows != count_objects(data):
            raise pa.ArrowInvalid("A line must hold one JSON object")
        return {name: self._checked(_one_array(table.column(name)), name) for name in names}

    def problem(self, line: bytes, error: pa.ArrowInvalid) -> str:
        """Returns the problem of a line that cannot be parsed, which Arrow refused with ``error``."""
        try:
            found = json.loads(line)
        except ValueError as reason:
            return f"not JSON ({str(reason).splitlines()[0]}), or an object that does not end on its line"
        if not isinstance(found, dict):
            return f"a line must hold a JSON object, but this is {_shown(found)}"
        for name, kind in self.types.items():
            try:
                self.parse(line, [name])
            except pa.ArrowInvalid:
                what = f"a list; each value {_what(kind.value_type)}" if is_list_type(kind) else _what(kind)
                return f"column {name!r}: {_shown(found.get(name))} is not {what}"
        return first_words(error).removeprefix("JSON parse error: ").partition(" in row ")[0]

    def _checked(self, array: pa.Array, name: str) -> pa.Array:
        values = array.flatten() if is_list_type(array.type) else array
        if pa.types.is_floating(values.type) and not is_nan(self._defaults.get(name)) and not is_finite(values):
            raise pa.ArrowInvalid(f"A number of column {name} is not finite")
        kind = self.types[name]
        return array if array.type == kind or pa.types.is_dictionary(kind) else array.cast(kind)


def infer_json_types(data: bytes, known: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Returns the keys in some lines and the Arrow types of their values; of some they are known, if there are any.

    Raises:
        pyarrow.ArrowInvalid: They cannot be parsed.
    """
    explicit = pa.schema({name: _parsed_as(kind) for name, kind in known.items()})
    table = _read(data, explicit, "infer")
    there = (name for name in table.column_names if name not in known or table.column(name).null_count < len(table))
    return {name: table.schema.field(name).type for name in there}


def count_objects(data: bytes) -> int:
    """Returns the number of lines that are not blank."""
    return sum(1 for line in data.splitlines() if line.strip(BLANK))


def _read(data: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    options = arrow_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior=unexpected, newlines_in_values=False
    )
    read = arrow_json.ReadOptions(use_threads=False, block_size=min(len(data) + 1, _MOST_BLOCK_BYTES))
    return arrow_json.read_json(pa.BufferReader(pa.py_buffer(data)), read_options=read, parse_options=options)


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Returns the type that Arrow's parser knows for one that it does not."""
    if is_list_type(kind):
        return pa.list_(_parsed_as(kind.value_type))
    if pa.types.is_dictionary(kind):
        return pa.string()
    return pa.float32() if pa.types.is_float16(kind) else kind


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _what(kind: pa.DataType) -> str:
    return "a string" if pa.types.is_string(kind) or pa.types.is_dictionary(kind) else what_is_read(kind)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
