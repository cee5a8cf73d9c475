"""CSV files as a source of rows. Ranges of whole records are read, and Arrow parses many ranges at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.data.arguments import by_column, column_names
from torch_estimator.data.column_types import (
    as_column_type,
    check_default,
    schema_defaults,
    schema_missing,
    schema_types,
)
from torch_estimator.data.columns import MISSING, Column, replace_empty
from torch_estimator.data.label import LabelColumns, label_columns
from torch_estimator.data.sources.base import FileSource, Reader, ReadRequest, Source, cure_of_missing
from torch_estimator.data.sources.csv_format import CsvFormat
from torch_estimator.data.sources.csv_parser import CsvParser, split_lists
from torch_estimator.data.sources.csv_records import CsvRanges, first_record, found_delimiter
from torch_estimator.data.sources.csv_schema import (
    NO_HEADER,
    CsvSchema,
    header_names,
    read_header,
    resolve_schema,
    text_schema,
)
from torch_estimator.data.sources.input_files import (
    ByteFile,
    Files,
    as_patterns,
    expand,
    file_version,
    files_signature,
    identify,
)
from torch_estimator.data.sources.line_reader import LineReader
from torch_estimator.data.sources.path_columns import PathColumns
from torch_estimator.data.sources.text_encoding import check_encoding
from torch_estimator.data.sources.text_lines import LineLocator, Piece, named_files, open_text_file
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CsvSource(FileSource):
    """Source of rows from CSV files.

    `find_delimiter` takes another delimiter where the first records say so. `column_names` is None for those in the
    header. `list_separator` is between the values of a list. `encoding` is that of the files.
    """

    format: CsvFormat
    find_delimiter: bool = False
    column_names: tuple[str, ...] | None = None
    list_separator: str | None = None
    encoding: str = "utf-8"

    def open(self, request: ReadRequest) -> Reader:
        """Open the files, choose columns and types, and return a reader.

        Raise a DataError if there is no file or no row, a file is empty, headers differ, or a column is missing.
        """
        opened = [open_text_file(path, self.encoding) for path in expand(self.patterns)]
        if self.find_delimiter:
            form = found_delimiter(self.format, opened[0], self.column_names, without=self.list_separator)
            if form != self.format:
                del opened  # Free its temporary files, if there are any.
                return replace(self, format=form, find_delimiter=False).open(request)
        starts, names = self._headers(opened)
        ranges = CsvRanges(opened, starts, self.format, gives_up=not self.ignore_errors)
        pieces = ranges.sample()
        texts = CsvParser(text_schema(self.format, names))
        locator = LineLocator(opened, pieces, texts.parse, texts.problem, split=self.format.records)
        if self.ignore_errors:
            # A record with too many fields would hide the types of the others.
            pieces, _ = locator.without_wrong(texts.parse)
        elif pieces and all(piece.opened is not None for piece in pieces):
            raise locator.parse_error(pa.ArrowInvalid())
        pieces = [piece for piece in pieces if piece.opened is None]
        sample = b"".join(bytes(piece.data) for piece in pieces)
        paths = PathColumns([file.url for file in opened], names, self, request)
        source, rest = paths.rest(self, request)
        schema = resolve_schema(source, rest, names, where=named_files(opened), sample=sample)
        if not sample:
            raise DataError(f"{named_files(opened)} has no rows.")
        reader = _CsvReader(ranges, opened, schema, rest, source)
        reader.check_inferred(pieces, sample)
        return paths.reader(reader, ranges.url_of, request)

    def _headers(self, opened: Sequence[ByteFile]) -> tuple[list[int], tuple[str, ...]]:
        """Return the byte position at which the rows of each file begin, and the column names of all files."""
        starts: list[int] = []
        names: tuple[str, ...] | None = None
        for file in opened:
            start, line = first_record(file, self.format)
            if not self.format.header:
                starts.append(start)
                continue
            starts.append(start + len(line))
            header = self._header(line, file.url)
            if names is not None and header != names:
                cure = NO_HEADER if self.column_names is None else "; column_names need files with the same header"
                if {*header} & {*names}:
                    cure = "; all files of a from_csv need the same columns"
                raise DataError(
                    f"{file.url}, line 1: the header is {', '.join(header)}, but that of {opened[0].url} is "
                    f"{', '.join(names)}{cure}."
                )
            names = header
        names = self.column_names or names
        assert names is not None
        return starts, names

    def _header(self, line: bytes, url: str) -> tuple[str, ...]:
        """Return the names in a header; check that `column_names` has none of them at another place."""
        if self.column_names is None:
            return read_header(line, self.format, url)
        header = header_names(line.decode("utf-8", errors="replace"), self.format)
        given, found = ([one.strip().casefold() for one in names] for names in (self.column_names, header))
        for name, own, alike, own_alike in zip(self.column_names, header, given, found, strict=False):
            if alike != own_alike and alike in found:
                raise DataError(
                    f"{url}, line 1: the header is {', '.join(header)}, so column_names would call its column {own!r} "
                    f"{name!r}, which is the name of another column; leave column_names out, or give them in the order "
                    "of the header."
                )
        return header


def csv_source(
    files: Files,
    *,
    names: Sequence[str] | None,
    header: bool | None,
    column_types: Mapping[str, Any] | Sequence[Any] | None,
    defaults: Mapping[str, Any] | Sequence[Any] | None,
    select_columns: Sequence[str] | None,
    schema: pa.Schema | None,
    label: LabelColumns | None,
    delimiter: str | None,
    field_delim: str | None,
    quote_char: str | None,
    list_separator: str | None,
    missing_values: Sequence[str],
    na_value: str | None,
    encoding: str,
    ignore_errors: bool,
) -> Source:
    """Check the arguments of `Dataset.from_csv`, and return a source of the files' rows."""
    if None not in (delimiter, field_delim) and delimiter != field_delim:
        raise InvalidValueError(f"delimiter is {delimiter!r}, but field_delim is {field_delim!r}; give one of them.")
    delimiter = field_delim if delimiter is None else delimiter
    known = None if names is None else column_names("column_names", names)
    has_header = known is None if header is None else header
    if schema is not None:
        if column_types is not None or select_columns is not None:
            raise InvalidValueError("from_csv takes a schema, or column_types and select_columns, not both.")
        column_types = schema_types(schema)
        select_columns = [*dict.fromkeys((*schema.names, *label_columns(label)))]
        if known is None and not has_header and select_columns == list(schema.names):
            known = tuple(schema.names)
        defaults = schema_defaults(schema) | by_column(defaults, "defaults", select_columns)
    selected = None if select_columns is None else column_names("select_columns", select_columns)
    if known is None and not has_header:
        raise InvalidValueError("CSV files without a header need column_names.")
    by_default = {name: _unwrapped(value) for name, value in by_column(defaults, "defaults", selected or known).items()}
    types = by_column(column_types, "column_types", known)
    # As in tf.data's column_defaults, an entry of `defaults` may be a type. It becomes the column's type, and the
    # column has no default: a missing value is an error.
    types |= {name: value for name, value in by_default.items() if isinstance(value, type) and name not in types}
    return CsvSource(
        patterns=as_patterns(files),
        format=CsvFormat(
            delimiter="," if delimiter is None else delimiter,
            quote_char=quote_char,
            header=has_header,
            missing_values=_marks(missing_values, na_value),
        ),
        find_delimiter=delimiter is None,
        column_names=known,
        column_types={name: as_column_type(kind, name) for name, kind in types.items() if kind is not None},
        defaults={
            name: check_default(value, name) for name, value in by_default.items() if not isinstance(value, type)
        },
        select_columns=selected,
        list_separator=_check_separator(list_separator, delimiter, quote_char),
        missing=schema_missing(schema),
        encoding=check_encoding(encoding),
        ignore_errors=ignore_errors,
    )


def _marks(missing_values: Sequence[str], na_value: str | None) -> tuple[str, ...]:
    if isinstance(missing_values, str):
        raise InvalidTypeError(f"missing_values must be a list of strings, but got {missing_values!r}.")
    marks = (*missing_values, *(() if na_value is None else (na_value,)))
    for mark in marks:
        if not isinstance(mark, str):
            raise InvalidTypeError(f"missing_values and na_value must be strings, but got {mark!r}.")
    return tuple(dict.fromkeys(marks))


def _unwrapped(default: Any) -> Any:
    # As in tf.data's record_defaults, a list of one value stands for the value, and an empty one for none.
    if isinstance(default, list | tuple) and len(default) < 2:
        return default[0] if default else None
    return default


def _check_separator(separator: Any, delimiter: str | None, quote_char: str | None) -> str | None:
    if separator is None:
        return None
    if not isinstance(separator, str):
        raise InvalidTypeError(f"list_separator must be a string, but got {separator!r}.")
    if not separator or separator in (delimiter or ",", quote_char):
        raise InvalidValueError(
            f"list_separator must be a string other than the delimiter and the quote character, but got {separator!r}."
        )
    return separator


class _CsvReader(LineReader):
    def __init__(
        self,
        records: CsvRanges,
        opened: Sequence[ByteFile],
        schema: CsvSchema,
        request: ReadRequest,
        source: CsvSource,
    ) -> None:
        self._schema = schema
        self._encoding = source.encoding
        self._unfilled = source.unfilled
        self._parser = CsvParser(schema)
        super().__init__(
            records,
            opened,
            self._parser,
            request,
            bytes_per_row=schema.bytes_per_line,
            ignore_errors=source.ignore_errors,
            split=schema.format.records,
        )

    def check_inferred(self, pieces: Sequence[Piece], sample: bytes) -> None:
        """Raise a DataError if a column of integers was inferred as floats because int64 cannot hold its values.

        The pieces are the first rows, and the sample is their text.
        """
        try:
            self._parser.check_inferred(sample)
        except RowError as error:
            raise self._locator(pieces).row_error(error) from error

    def signature(self) -> Signature:
        return {"source": "csv", "files": files_signature([identify(file) for file in self._files])}

    def identity(self) -> Signature:
        schema = self._schema
        types = {name: str(kind) for name, kind in schema.types.items()}
        types |= {name: f"list<{kind}> by {schema.list_separator}" for name, kind in schema.lists.items()}
        return {
            **self.signature(),
            "versions": [file_version(file.url) for file in self._files],
            "types": types,
            # Caches of earlier versions know no missing_values.
            "format": repr(schema.format).replace(", missing_values=()", ""),
            "defaults": {name: repr(value) for name, value in schema.defaults.items()},
            # Caches of earlier versions know no ignore_errors and no encoding.
            **({} if self._left_out is None else {"ignore_errors": True}),
            **({} if self._encoding == "utf-8" else {"encoding": self._encoding}),
        }

    def _column(self, name: str, array: pa.Array) -> Column:
        marks = self._schema.format.missing_values
        if name in self._schema.lists:
            array = replace_empty(array, "", also=marks) if marks else array
            return split_lists(array, str(self._schema.list_separator), self._schema.lists[name], name)
        default = None if name in self._unfilled else self._schema.defaults.get(name)
        if isinstance(array, pa.DictionaryArray):
            return replace_empty(array, default or "", also=marks) if default or marks else array
        if name in self._unfilled:
            return array
        if array.null_count:
            if default is None:
                row = int(np.flatnonzero(arrow.to_numpy(array.is_null()))[0])
                raise RowError(f"{MISSING}{cure_of_missing(self._request, name).format(name)}", row=row, column=name)
            array = array.fill_null(default)
        return arrow.to_numpy(array)
