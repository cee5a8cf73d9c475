"""Parsing of CSV text with Arrow, in the calling thread."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from torch_estimator.data.coerce import check_integers, has_large_integers
from torch_estimator.data.columns import STRINGS
from torch_estimator.data.csv_format import CsvFormat, count_filled

if TYPE_CHECKING:
    from torch_estimator.data.csv_schema import CsvSchema

_MOST_BLOCK_BYTES = 2**30
_INTEGER = re.compile(r"[+-]?\d{1,4000}")


class CsvParser:
    """Parses lines, without a header, into Arrow arrays: strings dictionary encoded, missing numbers null."""

    def __init__(self, schema: CsvSchema) -> None:
        self.schema = schema
        self._parse_options = _parse_options(schema.format)
        self._convert_options = _convert_options(schema.types)

    def parse(self, data: bytes | memoryview, columns: Sequence[str] | None = None) -> dict[str, pa.Array]:
        """Returns the wanted columns, or some of them.

        Raises:
            pyarrow.ArrowInvalid: A line has too few or too many fields, a field cannot be read or does not end on its
                line, or a number is not finite (where the column's default is NaN, it may be).
        """
        types = self.schema.types
        options = self._convert_options
        if columns is not None:
            types = {name: types[name] for name in columns}
            options = _convert_options(types)
        if _is_blank(data):
            return {name: pa.array([], kind) for name, kind in types.items()}
        table = _read(data, self.schema.names, self._parse_options, options)
        if self.schema.format.joins_lines(bytes(data), table.num_rows):
            raise pa.ArrowInvalid("A quoted field does not end on its line")
        return {name: self._checked(_one_array(table.column(name)), name) for name in types}

    def count_rows(self, data: bytes | memoryview) -> int:
        """Returns the number of lines that are not blank, which is what Arrow reads as rows."""
        return count_filled(bytes(data))

    def check_inferred(self, sample: bytes) -> None:
        """Check columns that are read as floats since their first rows look so.

        Raises:
            RowError: These are integers, and int64 does not hold one of them.
        """
        names = [name for name in self.schema.inferred if pa.types.is_floating(self.schema.types[name])]
        if not names or not has_large_integers(sample):
            return
        texts = _read(
            sample, self.schema.names, self._parse_options, _convert_options(dict.fromkeys(names, pa.string()))
        )
        for name in names:
            cure = f"give column_types={{{name!r}: 'string'}}, or 'uint64' or 'float32' where it holds that"
            check_integers([_as_integer(text) for text in texts.column(name).to_pylist()], name, cure)

    def _checked(self, array: pa.Array, name: str) -> pa.Array:
        if not pa.types.is_floating(array.type) or is_nan(self.schema.defaults.get(name)) or is_finite(array):
            return array
        raise pa.ArrowInvalid(f"A number of column {name} is not finite")


def infer_types(
    form: CsvFormat, names: Sequence[str], columns: Sequence[str], sample: bytes
) -> Mapping[str, pa.DataType]:
    """Returns the types that some columns seem to have in a sample; nothing if it cannot be parsed."""
    if not sample.strip():
        return {}
    options = arrow_csv.ConvertOptions(
        include_columns=list(columns), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=True
    )
    try:
        table = _read(sample, names, _parse_options(form), options)
    except pa.ArrowInvalid:
        # What is wrong is said where the lines are read as data, with the line's number.
        return {name: pa.string() for name in columns}
    return {name: table.schema.field(name).type for name in columns}


def _as_integer(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    return 0.5 if text else None


def is_finite(array: pa.Array) -> bool:
    """Whether no number is NaN or infinite; nulls do not count."""
    # The sum is several times faster, and almost always enough.
    total = pc.sum(array).as_py()
    return total is None or math.isfinite(total) or bool(pc.all(pc.is_finite(array)).as_py())


def is_nan(value: object) -> bool:
    """Whether a default allows for NaN."""
    return isinstance(value, float) and math.isnan(value)


def _is_blank(data: bytes | memoryview) -> bool:
    return not bytes(data[:64]).strip() and not bytes(data).strip()


def _read(
    data: bytes | memoryview,
    names: Sequence[str],
    parse: arrow_csv.ParseOptions,
    convert: arrow_csv.ConvertOptions,
) -> pa.Table:
    read = arrow_csv.ReadOptions(
        use_threads=False, column_names=list(names), block_size=min(len(data) + 1, _MOST_BLOCK_BYTES)
    )
    return arrow_csv.read_csv(
        pa.BufferReader(pa.py_buffer(data)), read_options=read, parse_options=parse, convert_options=convert
    )


def _parse_options(form: CsvFormat) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(
        delimiter=form.delimiter, quote_char=False if form.quote_char is None else form.quote_char
    )


def _convert_options(types: Mapping[str, pa.DataType]) -> arrow_csv.ConvertOptions:
    return arrow_csv.ConvertOptions(
        include_columns=list(types),
        column_types=dict(types),
        null_values=[""],
        strings_can_be_null=False,
        quoted_strings_can_be_null=True,
    )


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array if not pa.types.is_dictionary(array.type) else array.cast(STRINGS)
