"""Parsing of JSON lines with Arrow, in the calling thread."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from torch_estimator.data import arrow
from torch_estimator.data.arguments import duplicates
from torch_estimator.data.coerce import check_integers, has_large_integers
from torch_estimator.data.columns import Array
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.input_files import ByteFile
from torch_estimator.data.sources.text_lines import check_finite, first_words, type_in_words
from torch_estimator.errors import DataError
from torch_estimator.files import basename
from torch_estimator.json_text import MOST_DEPTH, parse_json, too_deep_at

_MAX_BLOCK_BYTES = 2**30
_MAX_SHOWN = 40
_MAX_DIGITS = 1000

# A value that Arrow refuses in columns of other types, with the key before it.
_WORD = re.compile(rb'("([^"\\]*)"\s*:\s*)(NaN|true|false)\b')

BLANK = b" \t\r\n"


# The first line opens an array of objects, other than bytes in base64, or one that goes on in the next line.
_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?:\{(?!\s*\"b64\")|\r?\n)|(?:\xef\xbb\xbf)?\s*\[[^\n]*,[ \t\r]*\n")
_HEAD_BYTES = 4096

_EMPTY = re.compile(rb"^\s*\{\s*\}\s*$", re.MULTILINE)


def check_no_array(file: ByteFile) -> None:
    """Raise a DataError if a file is one JSON array, of which some lines could be rows and others not."""
    if _ARRAY.match(file.read(0, min(_HEAD_BYTES, file.size))):
        raise DataError(
            f"{file.url} is one JSON array, but must have one JSON object per line; convert it, as "
            f"jq -c '.[]' {basename(file.url)} > rows.jsonl does."
        )


class JsonParser:
    """Parser of JSON lines into Arrow arrays of the given types by column. Missing values are null.

    A default of NaN allows NaN in the data of its column. The model fills NaN in the columns `filled`.
    """

    def __init__(
        self, types: Mapping[str, pa.DataType], defaults: Mapping[str, Any], filled: Container[str] = ()
    ) -> None:
        self.types = types
        self._defaults = defaults
        self._filled = filled
        self._schema = pa.schema({name: _parsed_as(kind) for name, kind in types.items()})

    def parse(self, data: bytes | memoryview, columns: Sequence[str] | None = None) -> dict[str, pa.Array]:
        """Parse whole JSON lines, and return an Arrow array per column: for `columns`, or for all.

        Raise ArrowInvalid if a line is not a JSON object, or a value has another type, is not finite or not UTF-8.
        """
        data = bytes(data)
        names = list(self.types) if columns is None else list(columns)
        if not data.strip(BLANK):
            return {name: pa.array([], self.types[name]) for name in names}
        table = _read(data, pa.schema([self._schema.field(name) for name in names]), "ignore")
        if columns is None and names and all(column.null_count for column in table.columns):
            _check_filled(table, data)
        return {name: self._checked(arrow.one_array(table.column(name)), name) for name in names}

    def problem(self, line: bytes, error: pa.ArrowInvalid) -> str:
        """Return an error message about a JSON line that cannot be parsed."""
        try:
            text = line.decode()
        except UnicodeDecodeError as reason:
            return f"not UTF-8 text: byte {reason.start} of the line is {line[reason.start]:#04x}"
        if too_deep_at(text) is not None:
            return f"lists and objects in it nest deeper than {MOST_DEPTH} levels"
        try:
            found = parse_json(text)
        except ValueError as reason:
            return f"not JSON ({str(reason).splitlines()[0]}), or an object that does not end on its line"
        if not isinstance(found, dict):
            return f"a line must hold a JSON object, but this is {_shorten(found)}"
        names = [name for name, _ in json.loads(text, object_pairs_hook=list, parse_int=str)]
        if "twice" in str(error) and (twice := duplicates(names)):
            return f"the key {twice[0]!r} occurs twice"
        large = [name for name, value in found.items() if value in (math.inf, -math.inf)]
        if "too big" in str(error) and large:
            return f"column {large[0]!r}: the number is too large for a double"
        if not found:
            return f"the row {{}} has none of the columns {', '.join(self.types)}"
        for name, kind in self.types.items():
            try:
                self.parse(line, [name])
            except pa.ArrowInvalid:
                what = f"a list; each value {_in_words(kind.value_type)}" if is_list_type(kind) else _in_words(kind)
                return f"column {name!r}: {_shorten(found.get(name))} is not {what}"
        return first_words(error).removeprefix("JSON parse error: ").partition(" in row ")[0].rstrip(".")

    def _checked(self, array: pa.Array, name: str) -> pa.Array:
        values = array.flatten() if is_list_type(array.type) else array
        if pa.types.is_string(values.type):
            # Arrow's parser does not check that strings are UTF-8, so validate them here.
            values.validate(full=True)
        if pa.types.is_floating(values.type):
            check_finite(values, name, self._defaults.get(name), self._filled)
        kind = self.types[name]
        return array if array.type == kind or pa.types.is_dictionary(kind) else array.cast(kind)


def infer_json_types(data: bytes, known: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the keys of the JSON objects in some lines, with the Arrow types of their values.

    The types in `known` are not inferred.
    """
    explicit = pa.schema({name: _parsed_as(kind) for name, kind in known.items()})
    table = _read(data, explicit, "infer")
    try:
        names = table.column_names
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid("A key is not UTF-8") from error
    # Arrow also returns a column for a known key that no line has. Leave out such columns, but not those of nulls.
    found = (
        name
        for name in names
        if name not in known or table.column(name).null_count < len(table) or f'"{name}"'.encode() in data
    )
    return {name: table.schema.field(name).type for name in found}


def check_inferred_floats(data: bytes, columns: Sequence[str]) -> None:
    """Raise a RowError if a column inferred as float holds only integers, and int64 cannot hold one of them."""
    if not columns or not has_large_integers(data):
        return
    texts = [line.decode(errors="replace") for line in data.splitlines() if line.strip(BLANK)]
    rows = [_as_python(text) for text in texts]
    for name in columns:
        values = [row.get(name) for row in rows]
        kinds = (
            ("pa.list_(pa.uint64())", "pa.list_(pa.float32())")
            if list in map(type, values)
            else ("'uint64'", "'float32'")
        )
        cure = f"give column_types={{{name!r}: {kinds[0]}}}, or {kinds[1]} where that is what it holds"
        check_integers(values, name, cure)


def _as_python(line: str) -> dict[str, Any]:
    try:
        # Cut off long numbers, because Python refuses to convert thousands of digits. The first 1000 digits suffice
        # to see that a number is large.
        row: dict[str, Any] = json.loads(line, parse_int=lambda digits: int(digits[:_MAX_DIGITS]))
    except ValueError:
        # Arrow accepts some texts that Python does not, such as the number Inf. Ignore such a line here.
        return {}
    return row


def _read(data: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    lines = _check_lines(data)
    options = arrow_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior=unexpected, newlines_in_values=False
    )
    read = arrow_json.ReadOptions(use_threads=False, block_size=min(len(data) + 1, _MAX_BLOCK_BYTES))
    try:
        table = arrow_json.read_json(pa.BufferReader(pa.py_buffer(data)), read_options=read, parse_options=options)
    except pa.ArrowInvalid:
        # NaN is a missing string or id, too, and true and false are numbers.
        plain = _WORD.sub(lambda word: word[1] + _plain_word(word[3], word[2].decode(errors="replace"), schema), data)
        if plain == data:
            raise
        return _read(plain, schema, unexpected)
    if table.num_rows != lines:
        raise pa.ArrowInvalid("A line must hold one JSON object")
    return table


def _check_filled(table: pa.Table, data: bytes) -> None:
    """Raise ArrowInvalid if a row is an object without keys."""
    is_empty = functools.reduce(pc.and_, [pc.is_null(column) for column in table.columns])
    if pc.any(is_empty).as_py() and _EMPTY.search(data):
        raise pa.ArrowInvalid("A line has no keys")


def _plain_word(word: bytes, name: str, schema: pa.Schema) -> bytes:
    """Return what Arrow reads in place of NaN, true or false, or the same where a column of its type is read."""
    kind = schema.field(name).type if name in schema.names else pa.null()
    if word == b"NaN":
        return word if pa.types.is_floating(kind) else b"null"
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return str(int(word == b"true")).encode() if is_number else word


def _check_lines(data: bytes) -> int:
    """Check that Arrow can parse lines safely; return the number of lines that are not blank.

    Arrow reads a stream of values and ignores line ends. A `null` in place of an object becomes a row without values,
    or crashes the process (SIGSEGV) if it is the first value. Deeply nested values crash the process, too, because
    Arrow's parser is recursive. Raise ArrowInvalid if a line does not begin and end with braces, or nests deeper than
    `MOST_DEPTH`.
    """
    # Use numpy, because a Python loop over the lines would take half as long as parsing them.
    characters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(characters == ord("\n")) + 1
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    begins = np.concatenate([[0], ends[:-1]])
    _check_depth(data, characters, begins, ends)
    returns = characters[ends - 2] == ord("\r")
    are_objects = (characters[begins] == ord("{")) & (characters[ends - 2 - returns] == ord("}"))
    if are_objects.all() and np.count_nonzero(characters == ord("\r")) == np.count_nonzero(returns):
        return len(begins)
    filled = [line for line in (line.strip(BLANK) for line in data.splitlines()) if line]
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in filled):
        raise pa.ArrowInvalid("A line must hold one JSON object")
    return len(filled)


def _check_depth(data: bytes, characters: Array, begins: Array, ends: Array) -> None:
    # "[" and "{" differ only in the bit 0x20. Set this bit, so that one comparison finds both.
    opens = (characters | 0x20) == ord("{")
    if np.count_nonzero(opens) <= MOST_DEPTH + len(begins):
        return
    for number in np.flatnonzero(np.add.reduceat(opens, begins) > MOST_DEPTH):
        line = data[begins[number] : ends[number]]
        if _may_be_deep(line) and too_deep_at(line.decode(errors="replace")) is not None:
            raise pa.ArrowInvalid(f"A line nests deeper than {MOST_DEPTH} levels")


def _may_be_deep(line: bytes) -> bool:
    """Return whether a line may be nested too deeply. This quick test is ten times faster than `too_deep_at`."""
    # Remove escaped backslashes before escaped quotes, so that a quote after an escaped backslash is kept.
    characters = np.frombuffer(line.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    quoted = np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8))
    kinds = (characters | 0x20)[quoted == 0]
    brackets = kinds[(kinds == ord("{")) | (kinds == ord("}"))]
    return bool(np.where(brackets == ord("{"), 1, -1).cumsum().max(initial=0) > MOST_DEPTH)


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's parser should read a column as, since the parser does not know every type."""
    if is_list_type(kind):
        return pa.list_(_parsed_as(kind.value_type))
    if pa.types.is_dictionary(kind):
        return pa.string()
    return pa.float32() if pa.types.is_float16(kind) else kind


def _in_words(kind: pa.DataType) -> str:
    return "a string" if pa.types.is_string(kind) or pa.types.is_dictionary(kind) else type_in_words(kind)


def _shorten(value: Any) -> str:
    # Escape half surrogate pairs: JSON can hold them, but UTF-8 cannot encode them.
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
