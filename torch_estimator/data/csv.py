"""CSV files as a source: read in ranges of whole lines, parsed by Arrow a window at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.data.byte_files import ByteFile
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array, Column, replace_empty
from torch_estimator.data.csv_errors import csv_problem
from torch_estimator.data.csv_format import CsvFormat
from torch_estimator.data.csv_lists import split_lists
from torch_estimator.data.csv_parser import CsvParser
from torch_estimator.data.csv_schema import CsvSchema, read_header, resolve_schema
from torch_estimator.data.file_identity import file_version, files_signature, identify
from torch_estimator.data.line_errors import Locator
from torch_estimator.data.lines import BYTE_ORDER_MARK, LineRanges, Piece, first_line, named_files, open_text_file
from torch_estimator.data.paths import expand
from torch_estimator.data.source import Reader, Wanted
from torch_estimator.data.state import Signature
from torch_estimator.errors import DataError, RowError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CsvSource:
    """CSV files, one record a line.

    Attributes:
        patterns: Paths, URLs and globs.
        format: Delimiter, quotes, whether there is a header.
        column_names: Names of the columns, or None for those of the header.
        column_types: Types that the user gave.
        defaults: Column -> what a missing value becomes.
        select_columns: Columns to use, or None for all.
        list_separator: What is between the values of a list, or None.
        missing: Column -> what a missing integer without a default becomes.
    """

    patterns: tuple[str, ...]
    format: CsvFormat
    column_names: tuple[str, ...] | None = None
    column_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    select_columns: tuple[str, ...] | None = None
    list_separator: str | None = None
    missing: Mapping[str, int] = field(default_factory=dict)

    def open(self, wanted: Wanted) -> Reader:
        """Finds the files and settles columns and types.

        Raises:
            DataError: There is no file or no row, one is empty or its header differs, or a column is missing.
        """
        opened = [open_text_file(path) for path in expand(self.patterns)]
        starts, names = self._headers(opened)
        ranges = LineRanges(opened, starts)
        pieces = ranges.sample()
        sample = b"".join(bytes(piece.data) for piece in pieces)
        schema = resolve_schema(self, wanted, names, where=named_files(opened), sample=sample)
        if not sample:
            raise DataError(f"{named_files(opened)} has no rows.")
        reader = _CsvReader(ranges, opened, schema, wanted)
        reader.check_inferred(pieces, sample)
        return reader

    def _headers(self, opened: Sequence[ByteFile]) -> tuple[list[int], tuple[str, ...]]:
        """Returns where each file's rows begin, and the names of the columns."""
        starts: list[int] = []
        names = self.column_names
        for file in opened:
            line = first_line(file) if self.format.header else file.read(0, len(BYTE_ORDER_MARK))
            mark = len(BYTE_ORDER_MARK) if line.startswith(BYTE_ORDER_MARK) else 0
            line = line[mark:] if self.format.header else b""
            starts.append(mark + len(line))
            if self.column_names is not None:
                continue
            header = read_header(line, self.format, file.url)
            if names is not None and header != names:
                raise DataError(
                    f"{file.url}, line 1: the header is {', '.join(header)}, but that of {opened[0].url} is "
                    f"{', '.join(names)}."
                )
            names = header
        assert names is not None
        return starts, names


class _CsvReader(Reader):
    def __init__(self, lines: LineRanges, opened: Sequence[ByteFile], schema: CsvSchema, wanted: Wanted) -> None:
        self._lines = lines
        self._files = opened
        self._schema = schema
        self._label = wanted.label
        self._parser = CsvParser(schema)
        self.ranges = len(lines)
        self.bytes_per_row = schema.bytes_per_line
        self.rows_per_range = lines.bytes / max(len(lines), 1) / self.bytes_per_row

    def read(self, ranges: Array) -> Chunk:
        pieces = self._lines.read(ranges)
        data = pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)
        try:
            columns = self._columns(data)
        except pa.ArrowInvalid as error:
            raise self._locator(pieces).parse_error(error) from error
        except RowError as error:
            raise self._locator(pieces).row_error(error) from error
        rows = len(next(iter(columns.values()))) if columns else self._parser.count_rows(data)
        chunk = Chunk(columns, None, rows, lambda row: self._locator(self._lines.read(ranges)).place(row))
        return chunk if self._label is None else self._label.extract(chunk)

    def check_inferred(self, pieces: Sequence[Piece], sample: bytes) -> None:
        """Check that no column of integers is read as floats since int64 does not hold some in the first rows.

        Raises:
            DataError: One is.
        """
        try:
            self._parser.check_inferred(sample)
        except RowError as error:
            raise self._locator(pieces).row_error(error) from error

    def signature(self) -> Signature:
        return {"source": "csv", "files": files_signature([identify(file) for file in self._files])}

    def identity(self) -> Signature:
        versions = [file_version(file.url) for file in self._files]
        types = {name: str(kind) for name, kind in self._schema.types.items()}
        types |= {name: f"list<{kind}> by {self._schema.list_separator}" for name, kind in self._schema.lists.items()}
        form = repr(self._schema.format)
        return {**self.signature(), "versions": versions, "types": types, "format": form, **self._defaults()}

    def _defaults(self) -> Signature:
        return {"defaults": {name: repr(value) for name, value in self._schema.defaults.items()}}

    def _columns(self, data: bytes | memoryview) -> dict[str, Column]:
        return {name: self._column(name, array) for name, array in self._parser.parse(data).items()}

    def _column(self, name: str, array: pa.Array) -> Column:
        if name in self._schema.lists:
            return split_lists(array, str(self._schema.list_separator), self._schema.lists[name], name)
        default = self._schema.defaults.get(name)
        if isinstance(array, pa.DictionaryArray):
            return replace_empty(array, default) if default else array
        if array.null_count:
            if default is None:
                row = int(np.flatnonzero(arrow.to_numpy(array.is_null()))[0])
                raise RowError("the value is missing and has no default", row=row, column=name)
            array = array.fill_null(default)
        return arrow.to_numpy(array)

    def _locator(self, pieces: Sequence[Piece]) -> Locator:
        parser = self._parser
        return Locator(self._files, pieces, parser.parse, partial(csv_problem, parser))
