"""Input files: finding them, dividing them into chunks, and reading the rows of a chunk.

A chunk of a text file is a range of bytes and has the lines that begin in it; a chunk of a Parquet file is a part of a
row group, and one of a TFRecord file a number of small ranges of bytes. A row that cannot be read is rejected, and the
others are kept.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.batch_prediction.rows import (
    Column,
    Rows,
    as_read,
    check_type,
    lists_of,
    numbers_of,
    texts_of,
)
from torch_estimator.data.arguments import duplicates
from torch_estimator.data.arrow import from_strings, one_array, scalar
from torch_estimator.data.columns import STRINGS, Array
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.csv_format import CsvFormat
from torch_estimator.data.sources.csv_parser import read_texts
from torch_estimator.data.sources.csv_records import CsvRanges, first_record, found_delimiter
from torch_estimator.data.sources.csv_schema import header_names
from torch_estimator.data.sources.input_files import ByteFile, as_patterns, expand, file_version, open_byte_file
from torch_estimator.data.sources.json_parser import check_no_array
from torch_estimator.data.sources.partitions import disagreement, partition_of, repeated, unequal_rows
from torch_estimator.data.sources.record_ranges import RecordRanges, open_records
from torch_estimator.data.sources.row_groups import RowGroups, open_parquet, row_groups
from torch_estimator.data.sources.text_encoding import check_encoding
from torch_estimator.data.sources.text_lines import BYTE_ORDER_MARK, Piece, open_text_file, read_lines
from torch_estimator.errors import DataError, InvalidValueError
from torch_estimator.export.dtypes import Floats, Integers
from torch_estimator.export.instances import to_columns
from torch_estimator.export.signatures import Signature
from torch_estimator.export.unknown_names import REFUSED, UnknownNames
from torch_estimator.json_text import parse_json, shortened

logger = logging.getLogger("torch_estimator")

FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
"""Formats by the end of a file's name."""

_CHUNK_BYTES = 2**22
_CHUNK_RANGES = 2**6

_PACKED = re.compile(r"\.(gz|bz2|xz|zst|lz4|zip)$")
_NO_HEADER = "; if it has no header, name its columns with --columns"

# Text of an integer that may not fit into 64 bits.
_MANY_DIGITS = re.compile(rb"[0-9]{20}|-9[0-9]{18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """Format of CSV files, in the arguments of `Dataset.from_csv`.

    A `delimiter` of None is found in the first file, and with an empty `quote_char`, quotes have no meaning.
    `missing_values` stand for a missing value, as the empty field does.
    """

    delimiter: str | None = None
    quote_char: str = '"'
    missing_values: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        _ = self.format

    @property
    def format(self) -> CsvFormat:
        """The format of the files, with a comma if the delimiter is to be found."""
        delimiter = "," if self.delimiter is None else self.delimiter.replace("\\t", "\t")
        return CsvFormat(delimiter=delimiter, quote_char=self.quote_char or None, missing_values=self.missing_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """File of rows: its path or URL, its `version`, which changes when it is written, and what its format needs.

    `columns` are all of a CSV file, in order, or those to read of a Parquet file; the strings of its columns `texts`
    are read as codes. The first row of a text file begins at the byte `start` and in the line `line`, after a header,
    and `size` is the length of the file in bytes.
    """

    url: str
    version: list[Any]
    columns: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    start: int = 0
    size: int = 0
    line: int = 1
    format: CsvFormat = field(default_factory=CsvFormat)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of the file with the index `file`: `length` bytes of text, rows of Parquet, or ranges of TFRecords.

    It begins at the byte, row or range `start`. For Parquet this is a row of the row group `group`, and `first` is the
    number of the same row in the file.
    """

    file: int
    start: int
    length: int
    group: int = 0
    first: int = 0


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths, URLs and globs name, each once; those of a glob are sorted.

    Raise a DataError if a path does not exist or is a directory, or a glob matches nothing.
    """
    return list(dict.fromkeys(expand(as_patterns(patterns))))


def format_of(urls: Sequence[str]) -> str:
    """Return the format that file names tell; raise an InvalidValueError if one tells none, or they differ."""
    formats = {url: FORMATS.get(os.path.splitext(_PACKED.sub("", url.lower()))[1]) for url in urls}
    for url, one in formats.items():
        if one is None:
            raise InvalidValueError(
                f"the name of {url} does not tell its format; give --format csv, jsonl, parquet or tfrecord."
            )
        if one != formats[urls[0]]:
            raise InvalidValueError(f"{urls[0]} and {url} have different formats; predict them with one command each.")
    return formats[urls[0]] or ""


class Reader(ABC):
    """Reader of the files of a format, for a call of `signature`; it forwards the columns `keys`.

    `unknown` decides on other names in rows of JSON. Other columns of tables are not read.
    """

    def __init__(self, signature: Signature, keys: Sequence[str], *, unknown: UnknownNames = REFUSED) -> None:
        self.signature = signature
        self.keys = tuple(keys)
        self.unknown = unknown
        self._said: set[str] = set()
        self._absent: list[str] = []

    @abstractmethod
    def plan(self, number: int, url: str) -> tuple[InputFile, list[Chunk]]:
        """Return a file's description and its chunks; raise a DataError if it cannot be read or lacks a column."""

    @abstractmethod
    def read(self, file: InputFile, chunk: Chunk) -> Rows:
        """Return the rows of a chunk; raise a DataError if the file cannot be read."""

    def _check_columns(self, names: Sequence[str], url: str, cure: str = "") -> None:
        unread = [name for name in names if not self._columns_of([name]) and name not in self._said]
        if unread:
            self._said.update(unread)
            logger.info("%s: the model does not read %s.", url, ", ".join(map(shortened, unread)))
        names = tuple(dict.fromkeys((*names, *partition_of(url))))
        needed = [name for name, info in self.signature.inputs.items() if info.default is None]
        for name, use in (
            *((name, "the model needs") for name in needed),
            *((key, "--key names") for key in self.keys),
        ):
            if name not in names:
                raise DataError(f"{url} has no column {name!r}, which {use}; its columns are {', '.join(names)}{cure}.")
        absent = [name for name in self.signature.inputs if name not in names]
        if len(absent) == len(self.signature.inputs):
            raise DataError(
                f"{url} has none of the columns that the model reads ({', '.join(absent)}); its columns are "
                f"{', '.join(names)}{cure}."
            )
        if absent and absent != self._absent:
            self._absent = absent
            logger.info("%s has no column %s; each row gets the default.", url, ", ".join(map(repr, absent)))

    def _columns_of(self, names: Sequence[str]) -> list[str]:
        """Return those columns that are inputs of the signature or keys."""
        return [name for name in names if name in self.signature.inputs or name in self.keys]

    def _add_path(self, columns: dict[str, pa.Array], url: str, rows: int) -> dict[int, str]:
        """Add the columns in the path of a file; return the rows with another value in one of them, and the reasons."""
        reasons: dict[int, str] = {}
        for name, text in partition_of(url).items():
            if name in columns:
                wrong = unequal_rows(columns[name], name, text)
                reasons |= {row: f"Column {name}: {problem}." for row, problem in wrong.items()}
            elif self._columns_of([name]):
                columns[name] = repeated(text, rows)
        return reasons


_Parsed = tuple[dict[str, pa.Array], Array, list[tuple[int, str]]]
"""Columns, the line of each row, and the rejected records with their lines."""


class _TextReader(Reader):
    """Reader of files of lines."""

    encoding: str | None = None
    _file: ByteFile | None = None

    def _plan(self, number: int, file: InputFile) -> tuple[InputFile, list[Chunk]]:
        starts = range(file.start, file.size, _CHUNK_BYTES)
        return file, [Chunk(number, start, min(_CHUNK_BYTES, file.size - start)) for start in starts]

    def _lines(self, file: InputFile, chunk: Chunk) -> bytes:
        """Return the lines that begin in a chunk."""
        return bytes(read_lines(self._reopened(file), chunk.start, chunk.start + chunk.length, first=file.start).data)

    def _reopened(self, file: InputFile) -> ByteFile:
        if self._file is None or self._file.url != file.url:
            self._file = _open_text(file.url, self.encoding)
        if self._file.size < file.size:
            raise DataError(f"{file.url} became shorter while it was read.")
        # Ignore what was appended since the plan was made, which belongs to no chunk.
        self._file.size = file.size
        return self._file

    def _opened(self, url: str) -> tuple[ByteFile, int]:
        """Open a file, and return where its first line begins."""
        self._file = _open_text(url, self.encoding)
        head = self._file.read(0, len(BYTE_ORDER_MARK))
        return self._file, len(BYTE_ORDER_MARK) if head == BYTE_ORDER_MARK else 0


class CsvReader(_TextReader):
    """Reader of CSV, in which an empty field is a missing value.

    If `columns` is empty, the first record of each file names them.
    """

    _ranges: tuple[ByteFile, CsvRanges] | None = None

    def __init__(
        self,
        signature: Signature,
        keys: Sequence[str],
        columns: Sequence[str] = (),
        options: CsvOptions | None = None,
    ) -> None:
        super().__init__(signature, keys)
        self._columns = tuple(columns)
        self._options = options or CsvOptions()
        # None until the first file is read.
        self._format: CsvFormat | None = None
        self.encoding = check_encoding(self._options.encoding)

    def plan(self, number: int, url: str) -> tuple[InputFile, list[Chunk]]:
        opened, start = self._opened(url)
        names, lines = self._columns, 0
        if self._format is None:
            self._format = self._options.format
            if self._options.delimiter is None:
                self._format = found_delimiter(self._format, opened, names or None)
        form = self._format
        if not names:
            start, record = first_record(opened, form)
            names, lines = _header(record, form, url), max(record.count(b"\n"), 1)
            start = min(start + len(record), opened.size)
        self._check_columns(names, url, "" if self._columns else _NO_HEADER)
        for name in self._columns_of(names):
            if name in self.signature.inputs and self.signature.inputs[name].shape[1:] not in ((), (1,)):
                raise DataError(f"{url}: input {name} takes lists, which CSV cannot hold; use JSON lines or Parquet.")
        file = InputFile(
            url=url,
            version=_version(opened),
            columns=names,
            start=start,
            size=opened.size,
            line=1 + lines,
            format=form,
        )
        return self._plan(number, file)

    def read(self, file: InputFile, chunk: Chunk) -> Rows:
        opened = self._reopened(file)
        if self._ranges is None or self._ranges[0] is not opened:
            self._ranges = opened, CsvRanges([opened], [file.start], file.format)
        ranges = self._ranges[1]
        pieces = ranges.between(0, chunk.start, chunk.start + chunk.length)
        rows = self._rows(file, pieces)
        # If most records of a chunk are wrong, it may lie within one record.
        if 2 * len(rows.rejected) > len(rows) and ranges.look_closer(pieces):
            return self.read(file, chunk)
        return rows

    def _rows(self, file: InputFile, pieces: Sequence[Piece]) -> Rows:
        names, form = file.columns, file.format
        data = b"".join(piece.data for piece in pieces)
        is_whole = all(piece.opened is None for piece in pieces)
        parsed = self._parsed(data, names, form) if is_whole else None
        columns, numbers, rejected = parsed or self._parsed_by_record(pieces, names, form)
        inputs: dict[str, Column] = {}
        reasons = self._add_path(columns, file.url, len(numbers))
        for name, info in self.signature.inputs.items():
            if name not in columns:
                continue
            if info.dtype == "DT_STRING":
                inputs[name] = texts_of(columns[name], info)
            else:
                inputs[name], wrong = numbers_of(columns[name], name, info)
                reasons = wrong | reasons
        keys = {name: columns[name].cast(pa.string()).fill_null(scalar("")) for name in self.keys}
        return Rows(inputs, keys, numbers, data.count(b"\n"), rejected).reject(reasons)

    def _parsed(self, data: bytes, names: Sequence[str], form: CsvFormat) -> _Parsed | None:
        """Return the rows of whole records, or None if Arrow cannot tell which record is which row."""
        wrong: list[tuple[int, str]] = []

        def refuse(row: Any) -> str:
            wrong.append((row.number - 1, _wrong_number(row.actual_columns, names)))
            return "skip"

        wanted = self._columns_of(names) or [names[0]]
        types = {name: STRINGS if self._is_text(name) else pa.string() for name in wanted}
        try:
            data.decode()
            table = read_texts(data, form, names, types, refuse)
        except (UnicodeDecodeError, pa.ArrowInvalid):
            return None
        # Each line is a record, or some have several lines.
        records = table.num_rows + len(wrong)
        lines = np.arange(data.count(b"\n"))
        if len(lines) != records:
            lines = _lines_at(data, np.concatenate([[0], form.ends(data)])[:-1])
        # Arrow skips blank lines, and ends a record at a carriage return, too.
        if len(lines) != records or data.count(b"\r") != data.count(b"\r\n"):
            return None
        rejected = [(int(lines[record]), reason) for record, reason in wrong]
        numbers = np.delete(lines, np.array([record for record, _ in wrong], np.int64))
        return {name: one_array(table.column(name)) for name in table.column_names}, numbers, rejected

    def _parsed_by_record(self, pieces: Sequence[Piece], names: Sequence[str], form: CsvFormat) -> _Parsed:
        """Return the rows as `_parsed` does, but slowly, record by record.

        This is for pieces with a record that is not UTF-8 or is blank, or with a quote that does not end.
        """
        rows: list[list[str]] = []
        numbers: list[int] = []
        rejected: list[tuple[int, str]] = []
        line = 0
        for piece in pieces:
            data = bytes(piece.data)
            if piece.opened is not None:
                before = data[: piece.opened - piece.start].count(b"\n")
                rejected.append((line + before, _open_quote(data, names, form)))
                line += data.count(b"\n")
                continue
            for start, end in itertools.pairwise([0, *form.ends(data).tolist()]):
                record = data[start:end]
                if record.strip(b"\r\n"):
                    try:
                        rows.append(_fields(record, names, form))
                        numbers.append(line)
                    except ValueError as error:
                        rejected.append((line, str(error)))
                line += record.count(b"\n")
        columns = {
            name: _null_where_empty([fields[names.index(name)] for fields in rows]) for name in self._columns_of(names)
        }
        return columns, np.array(numbers, np.int64), rejected

    def _is_text(self, name: str) -> bool:
        info = self.signature.inputs.get(name)
        return info is not None and info.dtype == "DT_STRING" and name not in self.keys


class JsonReader(_TextReader):
    """Reader of JSON lines: an object per line, or a bare value if the signature has a single input."""

    def plan(self, number: int, url: str) -> tuple[InputFile, list[Chunk]]:
        opened, start = self._opened(url)
        check_no_array(opened)
        return self._plan(number, InputFile(url=url, version=_version(opened), start=start, size=opened.size))

    def read(self, file: InputFile, chunk: Chunk) -> Rows:
        loads, path = _json_loads(exact=bool(self.keys)), partition_of(file.url)
        data = self._lines(file, chunk)
        lines = data.split(b"\n")[:-1]
        instances: list[Any] = []
        keys: list[tuple[Any, ...]] = []
        numbers: list[int] = []
        rejected: list[tuple[int, str]] = []
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                instance, key = self._instance(self._with_path(loads(line), path), path)
            except ValueError as error:
                rejected.append((number, str(error)))
                continue
            instances.append(instance)
            keys.append(key)
            numbers.append(number)
        if b"true" in data or b"false" in data:
            self._make_numbers(instances)
        forwarded = {name: [row[place] for row in keys] for place, name in enumerate(self.keys)}
        rows = Rows({"": instances}, forwarded, np.array(numbers, np.int64), len(lines), rejected)
        try:
            columns = to_columns(instances, self.signature)
        except InvalidValueError:
            rows = rows.reject(self._problems(instances))
            instances = rows.columns[""]  # type: ignore[assignment]
            columns = to_columns(instances, self.signature)
        rows.columns = dict(columns)
        return rows

    def _with_path(self, value: Any, path: Mapping[str, str | None]) -> Any:
        """Return a row with the values that the path of its file has."""
        if not isinstance(value, dict) or set(value) == {"b64"}:
            return value
        for name, text in path.items():
            given = value.get(name)
            if given is not None and str(given) != text:
                raise ValueError(f"Column {name}: {disagreement(given, name, text)}.")
            if given is None and self._columns_of([name]):
                info = self.signature.inputs.get(name)
                value[name] = text if info is None or text is None else info.type.parse(name, text)
        return value

    def _instance(self, value: Any, path: Container[str]) -> tuple[Any, tuple[Any, ...]]:
        """Split a line into the instance for the model and the values of the keys."""
        if not isinstance(value, dict) or set(value) == {"b64"}:
            if self.keys:
                raise ValueError(f"A line must hold an object with {', '.join(self.keys)}, but has {shortened(value)}.")
            return value, ()
        for key in self.keys:
            if key not in value:
                raise ValueError(f"The key {key!r} is missing.")
        try:
            self.unknown.see((name for name in value if name not in self.keys and name not in path), self.signature)
        except InvalidValueError as error:
            raise ValueError(f"{error} With --ignore-unknown such names are left out.") from error
        instance = {name: value[name] for name in self.signature.inputs if name in value}
        return instance, tuple(value[key] for key in self.keys)

    def _make_numbers(self, instances: Sequence[Any]) -> None:
        """Replace true and false by 1 and 0 where the model reads numbers, as training does."""
        numbers = [name for name, info in self.signature.inputs.items() if isinstance(info.type, Floats | Integers)]
        for instance in instances:
            for name in numbers if isinstance(instance, dict) else ():
                if isinstance(instance.get(name), bool):
                    instance[name] = int(instance[name])

    def _problems(self, instances: Sequence[Any]) -> dict[int, str]:
        problems: dict[int, str] = {}
        for index, instance in enumerate(instances):
            try:
                to_columns([instance], self.signature)
            except InvalidValueError as error:
                problems[index] = str(error)
        return problems


class ParquetReader(Reader):
    """Reader of Parquet: strings come as the codes that the file holds."""

    def __init__(self, signature: Signature, keys: Sequence[str]) -> None:
        super().__init__(signature, keys)
        self._row_groups = RowGroups()

    def plan(self, number: int, url: str) -> tuple[InputFile, list[Chunk]]:
        with open_parquet(url) as file:
            schema = file.schema_arrow
            groups = [part for group in row_groups(url, file.metadata) for part in group.slices()]
        self._check_columns(schema.names, url)
        names = self._columns_of(schema.names)
        for name in names:
            if name in self.signature.inputs:
                check_type(schema.field(name).type, name, self.signature.inputs[name], url)
        chunks = [Chunk(number, part.start, part.rows, part.group, part.first + part.start) for part in groups]
        texts = tuple(name for name in names if pa.types.is_string(schema.field(name).type) and name not in self.keys)
        opened = open_byte_file(url, unpack=False)
        return InputFile(url=url, version=_version(opened), columns=tuple(names), texts=texts), chunks

    def read(self, file: InputFile, chunk: Chunk) -> Rows:
        table = self._row_groups.read(file.url, chunk.group, file.columns, file.texts)
        table = table.slice(chunk.start, chunk.length)
        arrays = {name: one_array(table.column(name)) for name in table.column_names}
        inputs: dict[str, Column] = {}
        reasons = self._add_path(arrays, file.url, len(table))
        wrong: dict[int, str] = {}
        for name, info in self.signature.inputs.items():
            if name not in arrays:
                continue
            array, refused = as_read(arrays[name], name, info)
            if is_list_type(array.type):
                inputs[name], wrong = lists_of(array, name, info)
            elif info.dtype == "DT_STRING":
                inputs[name], wrong = texts_of(array, info), {}
            else:
                inputs[name], wrong = numbers_of(array, name, info)
            reasons = wrong | refused | reasons
        keys = {name: arrays[name] for name in self.keys}
        return Rows(inputs, keys, np.arange(chunk.length), chunk.length).reject(reasons)


class RecordReader(Reader):
    """Reader of TFRecord files of tf.Examples, for exports that take these."""

    def __init__(self, signature: Signature, keys: Sequence[str]) -> None:
        super().__init__(signature, keys)
        if keys:
            raise InvalidValueError(
                f"--key names {keys[0]!r}, but TFRecord files have no columns; leave it out, and export a model with "
                f"te.forward_features(estimator, {keys[0]!r})."
            )
        if [info.dtype for info in signature.inputs.values()] != ["DT_STRING"]:
            raise InvalidValueError(
                "TFRecord files are for exports of te.serving_input.examples, but the signature has the inputs "
                f"{', '.join(signature.inputs)}; use CSV, JSON lines or Parquet."
            )
        self._opened: tuple[str, RecordRanges] | None = None

    def plan(self, number: int, url: str) -> tuple[InputFile, list[Chunk]]:
        ranges = len(self._ranges(url))
        starts = range(0, ranges, _CHUNK_RANGES)
        chunks = [Chunk(number, start, min(_CHUNK_RANGES, ranges - start)) for start in starts]
        return InputFile(url=url, version=_version(open_byte_file(url, unpack=False))), chunks

    def read(self, file: InputFile, chunk: Chunk) -> Rows:
        pieces = self._ranges(file.url).read(np.arange(chunk.start, chunk.start + chunk.length))
        records = [
            piece.data[start : start + length]
            for piece in pieces
            for start, length in zip(piece.starts.tolist(), piece.lengths.tolist(), strict=True)
        ]
        (name,) = self.signature.inputs
        return Rows({name: records}, {}, np.arange(len(records)), len(records))

    def _ranges(self, url: str) -> RecordRanges:
        if self._opened is None or self._opened[0] != url:
            self._opened = url, RecordRanges([open_records(url)], ignore_errors=False)
        return self._opened[1]


def reader_for(
    form: str,
    signature: Signature,
    keys: Sequence[str],
    columns: Sequence[str],
    csv: CsvOptions,
    unknown: UnknownNames,
) -> Reader:
    """Return the reader of a format."""
    if form == "csv":
        return CsvReader(signature, keys, columns, csv)
    if columns:
        raise InvalidValueError(f"--columns names the columns of CSV files, but the format is {form}; leave it out.")
    if csv != CsvOptions():
        raise InvalidValueError(
            f"--delimiter, --quote-char, --missing-values and --encoding are for CSV files, but the format is {form}."
        )
    if form == "jsonl":
        return JsonReader(signature, keys, unknown=unknown)
    return ParquetReader(signature, keys) if form == "parquet" else RecordReader(signature, keys)


def _open_text(url: str, encoding: str | None) -> ByteFile:
    """Open a file of lines; unlike in training, it may be empty."""
    file = open_byte_file(url, unpack=False)
    return open_text_file(url, encoding) if file.size else file


def _version(file: ByteFile) -> list[Any]:
    """Return what changes when a file is written: its size, and its time or a key from the server."""
    return [file.size, file_version(file.url)[-1]]


def _header(record: bytes, form: CsvFormat, url: str) -> tuple[str, ...]:
    try:
        names = header_names(record.decode(), form)
    except ValueError as error:
        raise DataError(f"{url}, line 1: the header cannot be read ({error}).") from error
    if twice := duplicates(names):
        raise DataError(f"{url}, line 1: two columns are called {twice[0]!r}{_NO_HEADER}.")
    if not any(names):
        raise DataError(f"{url} has no header; give --columns if its first line is a row.")
    return names


def _fields(record: bytes, names: Sequence[str], form: CsvFormat) -> list[str]:
    """Return the fields of a record, with '' for missing values; raise a ValueError if they cannot be read.

    The record has to be UTF-8, with as many fields as there are names and no carriage return outside quotes.
    """
    try:
        fields = form.fields(record.decode())
    except UnicodeDecodeError as error:
        place = len(form.fields(record[: error.start].decode())) - 1
        column = f" in column {names[place]!r}" if place < len(names) else ""
        cure = "if the file has another encoding, give it, as --encoding cp1252 does"
        raise ValueError(f"{_not_text(error)[:-1]}{column}; {cure}.") from error
    if len(form.records(record)) > 1:
        raise ValueError("The line has a carriage return outside quotes, which does not end a line here.")
    if len(fields) != len(names):
        raise ValueError(_wrong_number(len(fields), names))
    return ["" if text in form.missing_values else text for text in fields]


def _open_quote(record: bytes, names: Sequence[str], form: CsvFormat) -> str:
    place = len(form.fields(record.decode(errors="replace"))) - 1
    column = f" of column {names[place]!r}" if place < len(names) else ""
    return (
        f"A quoted field{column} begins here and does not end; close the quote, or give --quote-char '' if quotes have "
        "no meaning."
    )


def _lines_at(data: bytes, positions: Array) -> Array:
    """Return the number of newlines before each position."""
    lines: Array = np.searchsorted(np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")), positions)
    return lines


def _null_where_empty(texts: Sequence[str]) -> pa.Array:
    array = from_strings(texts)
    return pc.if_else(pc.equal(array, scalar("")), pa.nulls(1, pa.string())[0], array)


def _wrong_number(fields: int, names: Sequence[str]) -> str:
    return f"The line has {fields} fields where {len(names)} are expected ({', '.join(names)})."


def _not_text(error: UnicodeDecodeError) -> str:
    return f"The line is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}."


def _json_loads(*, exact: bool) -> Any:
    """Return a function that reads a line of JSON and raises a ValueError with the reason.

    With `exact`, integers that do not fit into 64 bits stay exact, as keys must.
    """
    try:
        from orjson import loads
    except ImportError:
        loads = json.loads  # type: ignore[assignment]

    def read(line: bytes) -> Any:
        try:
            # orjson reads such integers as floats.
            is_slow = loads is json.loads or (exact and _MANY_DIGITS.search(line))
            return _slowly(line) if is_slow else loads(line)
        except ValueError:
            # Read it again: orjson refuses NaN and Infinity, which TensorFlow Serving takes.
            return _slowly(line)

    return read


def _slowly(line: bytes) -> Any:
    try:
        value = parse_json(line.decode())
        # JSON can hold half a surrogate pair, which is no text.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(_not_text(error)) from error
    except UnicodeEncodeError as error:
        raise ValueError("The line has half a surrogate pair, which is no text.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The line is not JSON ({error}).") from error
    return value
