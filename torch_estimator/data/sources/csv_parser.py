"""Parsing of CSV text with Arrow, in the calling thread, and messages about records that Arrow refuses.

Training (`CsvParser`) and batch prediction (`read_texts`) parse here; `csv_records` finds where records begin for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from torch_estimator.data import arrow
from torch_estimator.data.coerce import check_integers, has_large_integers
from torch_estimator.data.columns import STRINGS
from torch_estimator.data.sources.convert import parsed_numbers
from torch_estimator.data.sources.csv_format import USUAL_MARKS, CsvFormat
from torch_estimator.data.sources.text_lines import MOST_LINE_BYTES, check_finite, first_words, type_in_words
from torch_estimator.errors import RowError

if TYPE_CHECKING:
    from torch_estimator.data.sources.csv_schema import CsvSchema

_MAX_BLOCK_BYTES = 2**30
_MAX_SHOWN = 40
_INTEGER = re.compile(r"[+-]?\d{1,4000}")


OTHER_ENCODING = "; if the file has another encoding, give it, such as encoding='cp1252'"
"""End of messages about text that is not UTF-8."""


class CsvParser:
    """Parser of CSV records into Arrow arrays. Strings are dictionary encoded, and missing numbers are null."""

    def __init__(self, schema: CsvSchema) -> None:
        self.schema = schema
        self._parse_options = _parse_options(schema.format)
        self._convert_options = _convert_options(schema.types, schema.format)

    def parse(self, data: bytes | memoryview, columns: Sequence[str] | None = None) -> dict[str, pa.Array]:
        """Parse CSV records (without a header), and return an Arrow array per column.

        The records are whole; without `columns`, all columns of the schema are returned. Raise ArrowInvalid if a record
        has too few or too many fields, a field cannot be read, or a number is not finite although neither the column's
        default nor the model allows it.
        """
        types = self.schema.types
        options = self._convert_options
        if columns is not None:
            types = {name: types[name] for name in columns}
            options = _convert_options(types, self.schema.format)
        if _is_blank(data):
            return {name: pa.array([], kind) for name, kind in types.items()}
        table = self._read_rows(data, types, options)
        return {name: self._checked(_one_array(table.column(name)), name) for name in types}

    def check_inferred(self, sample: bytes) -> None:
        """Raise a RowError if a column whose type was inferred as float holds integers beyond int64.

        Arrow infers float64 for integers beyond int64, so that ids would silently lose their last digits.
        """
        names = [name for name in self.schema.inferred if pa.types.is_floating(self.schema.types[name])]
        if not names or not has_large_integers(sample):
            return
        texts = _read(
            sample,
            self.schema.names,
            self._parse_options,
            _convert_options(dict.fromkeys(names, pa.string()), self.schema.format),
        )
        for name in names:
            cure = f"give column_types={{{name!r}: 'string'}}, or 'uint64' or 'float32' where it holds that"
            check_integers([_as_integer(text) for text in texts.column(name).to_pylist()], name, cure)

    def problem(self, record: bytes, error: pa.ArrowInvalid) -> str:
        """Return an error message about a CSV record that cannot be parsed."""
        schema = self.schema
        fields = schema.format.fields(record.decode("utf-8", errors="replace"))
        if schema.format.opening(record) is not None:
            return open_quote_problem(schema.names[len(fields) - 1] if len(fields) <= len(schema.names) else None)
        if len(fields) != len(schema.names):
            columns = f"{len(schema.names)} columns ({', '.join(schema.names)})"
            return f"{len(fields)} fields, but there are {columns}{lines_of(record)}"
        for name, kind in schema.types.items():
            try:
                self.parse(record, [name])
            except pa.ArrowInvalid:
                value = fields[schema.names.index(name)]
                if _is_number(value) and pa.types.is_floating(kind):
                    nan = f"defaults={{{name!r}: float('nan')}}"
                    return f"column {name!r}: {_shorten(value)} is not a finite number ({kind}); give {nan} to allow it"
                hint = ""
                if name in schema.inferred and not pa.types.is_dictionary(kind):
                    hint = f" (inferred from the first rows; if that is wrong, give column_types={{{name!r}: ...}})"
                if pa.types.is_dictionary(kind):
                    hint += OTHER_ENCODING
                if value in USUAL_MARKS:
                    hint += f"; if it stands for a missing value, give missing_values=[{value!r}]"
                return f"column {name!r}: {_shorten(value)} is not {type_in_words(kind)}{hint}"
        return first_words(error)

    def _read_rows(
        self, data: bytes | memoryview, types: Mapping[str, pa.DataType], options: arrow_csv.ConvertOptions
    ) -> pa.Table:
        form = self.schema.format
        try:
            return _read(data, self.schema.names, self._parse_options, options)
        except pa.ArrowInvalid:
            integers = {name: kind for name, kind in types.items() if pa.types.is_integer(kind)}
            if not integers or b"+" not in bytes(data):
                raise
        # Arrow takes no integers with a plus sign, so read them as text.
        options = _convert_options({**types, **dict.fromkeys(integers, pa.string())}, form)
        table = _read(data, self.schema.names, self._parse_options, options)
        for name, kind in integers.items():
            texts = table.column(name)
            missing = pc.is_in(texts, pa.array(["", *form.missing_values]))
            numbers = parsed_numbers(pc.if_else(missing, None, texts), kind)
            table = table.set_column(table.schema.get_field_index(name), name, numbers)
        return table

    def _checked(self, array: pa.Array, name: str) -> pa.Array:
        if pa.types.is_floating(array.type):
            check_finite(array, name, self.schema.defaults.get(name), self.schema.filled)
        return array


def open_quote_problem(column: str | None) -> str:
    """Return the message about a quote that does not end; `column` is the name of its column, if it is known."""
    return (
        f"a quoted field{'' if column is None else f' of column {column!r}'} begins here and does not end within "
        f"{MOST_LINE_BYTES >> 20} MiB or the file; close the quote, or give quote_char=None if quotes have no meaning"
    )


def lines_of(record: bytes) -> str:
    """Return the end of a message about the number of fields of a record: how many lines it has, if several."""
    lines = len(record.splitlines())
    return f"; the row has {lines} lines, because of its quotes" if lines > 1 else ""


def read_texts(
    data: bytes,
    form: CsvFormat,
    names: Sequence[str],
    types: Mapping[str, pa.DataType],
    refuse: Callable[[Any], str],
) -> pa.Table:
    """Return columns of whole CSV records as strings; an empty field is null, also in quotes.

    The text is UTF-8: where it is not, Arrow would print a traceback. `names` are all columns of the records, and
    `types` those to return: strings, which may be dictionary encoded. `refuse` is Arrow's handler of records with
    another number of fields. Raise ArrowInvalid if the records cannot be parsed.
    """
    parse, convert = _parse_options(form), _convert_options(types, form)
    parse.invalid_row_handler = refuse
    convert.strings_can_be_null = True
    return _read(data, names, parse, convert)


def infer_types(
    form: CsvFormat, names: Sequence[str], columns: Sequence[str], sample: bytes
) -> Mapping[str, pa.DataType]:
    """Return the types that Arrow infers for some columns from the first lines; none if there are no rows."""
    if not sample.strip():
        return {}
    options = arrow_csv.ConvertOptions(
        include_columns=list(columns),
        null_values=["", *form.missing_values],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    try:
        table = _read(sample, names, _parse_options(form), options)
    except pa.ArrowInvalid:
        # The lines cannot be parsed. Return any types: the reader parses the lines again and raises a full error.
        return {name: pa.string() for name in columns}
    types = {name: table.schema.field(name).type for name in columns}
    return types | _types_of_signs(form, names, types, sample)


def _types_of_signs(
    form: CsvFormat, names: Sequence[str], types: Mapping[str, pa.DataType], sample: bytes
) -> dict[str, pa.DataType]:
    """Return the types of columns for which Arrow infers others than TensorFlow does.

    Integers with a plus sign are integers, and ``0x1F`` is text.
    """
    plus = [name for name, kind in types.items() if pa.types.is_floating(kind) and b"+" in sample]
    hexadecimal = [name for name, kind in types.items() if pa.types.is_integer(kind) and b"0x" in sample.lower()]
    if not plus and not hexadecimal:
        return {}
    texts = _convert_options(dict.fromkeys((*plus, *hexadecimal), pa.string()), form)
    table = _read(sample, names, _parse_options(form), texts)
    marks = pa.array(["", *form.missing_values])
    found: dict[str, pa.DataType] = {}
    for name in (*plus, *hexadecimal):
        values = pc.utf8_trim_whitespace(table.column(name).filter(pc.invert(pc.is_in(table.column(name), marks))))
        if name in hexadecimal and pc.any(pc.match_substring_regex(values, "^0[xX]")).as_py():
            found[name] = pa.string()
        if name in plus and pc.all(pc.match_substring_regex(values, r"^[+-]?\d{1,18}$")).as_py():
            found[name] = pa.int64()
    return found


def split_lists(fields: pa.DictionaryArray, separator: str, value_type: pa.DataType, name: str) -> pa.ListArray:
    """Split the text fields of a CSV column into lists. An empty field becomes an empty list.

    The fields are dictionary encoded, so that equal fields are split once. Spaces around numbers are dropped. Raise a
    RowError if a value is not a number of the type.
    """
    distinct = fields.dictionary.cast(pa.string())
    lists = pc.split_pattern(distinct, separator)
    empty = pc.equal(distinct, "")
    lists = pc.if_else(empty, pa.scalar([], pa.list_(pa.string())), lists)
    if not pa.types.is_string(value_type):
        lists = _lists_of_numbers(lists, value_type, fields, name)
    return lists.take(fields.indices)


def _lists_of_numbers(
    lists: pa.ListArray, value_type: pa.DataType, fields: pa.DictionaryArray, name: str
) -> pa.ListArray:
    texts = pc.utf8_trim_whitespace(lists.flatten())
    lengths = arrow.to_numpy(lists.value_lengths())
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    try:
        return pa.ListArray.from_arrays(arrow.from_numpy(offsets), texts.cast(value_type))
    except pa.ArrowInvalid as error:
        place, text = next((i, one) for i, one in enumerate(texts.to_pylist()) if not _can_cast(one, value_type))
        code = int(np.searchsorted(offsets, place, side="right")) - 1
        row = int(np.flatnonzero(arrow.to_numpy(fields.indices) == code)[0])
        wanted = "whole number" if pa.types.is_integer(value_type) else "number"
        raise RowError(f"{text!r} in the list is not a {wanted} ({value_type})", row=row, column=name) from error


def _can_cast(text: str, value_type: pa.DataType) -> bool:
    try:
        pa.array([text]).cast(value_type)
    except pa.ArrowInvalid:
        return False
    return True


def _as_integer(text: str) -> int | float | None:
    """Convert text for `check_integers`: an integer to `int`, empty text to None, and any other text to 0.5."""
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    return 0.5 if text else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shorten(value: str) -> str:
    return repr(value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}…")


def _is_blank(data: bytes | memoryview) -> bool:
    # Look at the first bytes first. They nearly always show that the data is not blank, so no copy is needed.
    return not bytes(data[:64]).strip() and not bytes(data).strip()


def _read(
    data: bytes | memoryview,
    names: Sequence[str],
    parse: arrow_csv.ParseOptions,
    convert: arrow_csv.ConvertOptions,
) -> pa.Table:
    read = arrow_csv.ReadOptions(
        use_threads=False, column_names=list(names), block_size=min(len(data) + 1, _MAX_BLOCK_BYTES)
    )
    return arrow_csv.read_csv(
        pa.BufferReader(pa.py_buffer(data)), read_options=read, parse_options=parse, convert_options=convert
    )


def _parse_options(form: CsvFormat) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(
        delimiter=form.delimiter, quote_char=False if form.quote_char is None else form.quote_char
    )


def _convert_options(types: Mapping[str, pa.DataType], form: CsvFormat) -> arrow_csv.ConvertOptions:
    return arrow_csv.ConvertOptions(
        include_columns=list(types),
        column_types=dict(types),
        null_values=["", *form.missing_values],
        strings_can_be_null=False,
        quoted_strings_can_be_null=True,
    )


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = arrow.one_array(column)
    # Joining several chunks may widen the indices of dictionary-encoded strings, so restore the index type.
    return array.cast(STRINGS) if pa.types.is_dictionary(array.type) and column.num_chunks != 1 else array
