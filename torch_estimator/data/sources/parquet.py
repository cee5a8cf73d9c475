"""Parquet files as a source of rows. Row groups are read whole if rows are shuffled, else in slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.data.arguments import column_names, missing_column
from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.column_types import schema_defaults, schema_missing, schema_types
from torch_estimator.data.columns import Array, Column, from_arrow
from torch_estimator.data.label import LabelColumns, label_columns
from torch_estimator.data.sources.base import FileSource, Reader, ReadRequest, Source, cure_of_missing
from torch_estimator.data.sources.convert import converted
from torch_estimator.data.sources.input_files import (
    FileIdentity,
    Files,
    as_patterns,
    expand,
    file_version,
    files_signature,
    identify,
)
from torch_estimator.data.sources.left_out import LeftOut, reason, wrong_rows
from torch_estimator.data.sources.path_columns import PathColumns
from torch_estimator.data.sources.row_groups import RowGroup, RowGroups, open_parquet, row_groups
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ParquetSource(FileSource):
    """Source of rows from Parquet files."""

    def open(self, request: ReadRequest) -> Reader:
        """Read the metadata of the files, choose the columns, and return a reader.

        Raise a DataError if there is no file or no row, a file cannot be read, or a column is missing.
        """
        groups: list[RowGroup] = []
        types: dict[str, dict[str, pa.DataType]] = {}
        stored: list[FileIdentity] = []
        urls = expand(self.patterns)
        for url in urls:
            with open_parquet(url) as file:
                types[url] = {column.name: column.type for column in file.schema_arrow}
                groups += row_groups(url, file.metadata)
            stored.append(identify(url))
        if not groups:
            raise DataError(f"{', '.join(urls[:3])}{', ...' if len(urls) > 3 else ''} has no rows.")
        # A column without any value has the type null, which says nothing about the others.
        first = {name: url for url in reversed(urls) for name in types[url]}
        first |= {
            name: url for url in reversed(urls) for name, kind in types[url].items() if not pa.types.is_null(kind)
        }
        existing = [*dict.fromkeys(name for url in urls for name in types[url])]
        paths = PathColumns(urls, existing, self, request)
        source, rest = paths.rest(self, request)
        names = source._columns_to_read(rest, existing, urls[0])
        for url in urls:
            source._check_columns(names, first, types, url)
        ranges = groups if request.shuffled else [part for group in groups for part in group.slices()]
        kinds = {name: types[first[name]][name] for name in names}
        reader = _ParquetReader(source, ranges, kinds, types, stored, rest)
        return paths.reader(reader, lambda number: ranges[number].url, request)

    def _check_columns(
        self, names: Sequence[str], first: Mapping[str, str], types: Mapping[str, Mapping[str, pa.DataType]], url: str
    ) -> None:
        """Refuse a file that lacks a column of another file, or has one of another kind, unless arguments say how."""
        for name in names:
            other = first[name]
            if name not in types[url]:
                if self.defaults.get(name) is None:
                    raise DataError(
                        f"{url} has no column {name!r}, which {other} has; give defaults={{{name!r}: ...}} for its "
                        "rows, or name the columns to read: columns=[...]."
                    )
            elif (
                name not in self.column_types and len({_kind(types[one][name]) for one in (url, other)} - {"null"}) > 1
            ):
                raise DataError(
                    f"column {name!r} is {types[url][name]} in {url}, but {types[other][name]} in {other}; give a "
                    "schema with the type to convert it to, or write one of the files anew."
                )

    def _columns_to_read(self, request: ReadRequest, existing: list[str], url: str) -> list[str]:
        labels = request.label.columns if request.label is not None else ()
        available = [name for name in (self.select_columns or existing) if name not in labels]
        names = request.names(available)
        used = available if names is None else names
        for name in used:
            if name not in available:
                raise missing_column(name, url, available)
        used = [*used, *labels]
        for name in (*used, *self.defaults):
            if name not in existing:
                raise missing_column(name, url, existing)
        return used


def parquet_source(
    files: Files,
    *,
    columns: Sequence[str] | None,
    schema: pa.Schema | None,
    defaults: Mapping[str, Any] | None,
    label: LabelColumns | None,
    ignore_errors: bool,
) -> Source:
    """Check the arguments of `Dataset.from_parquet`, and return a source of the files' rows."""
    types = {} if schema is None else schema_types(schema)
    if schema is not None:
        if columns is not None:
            raise InvalidValueError("from_parquet takes a schema or columns, not both.")
        columns = [*dict.fromkeys((*schema.names, *label_columns(label)))]
        defaults = schema_defaults(schema) | dict(defaults or {})
    selected = None if columns is None else column_names("columns", columns)
    return ParquetSource(
        patterns=as_patterns(files),
        select_columns=selected,
        column_types=types,
        defaults=dict(defaults or {}),
        missing=schema_missing(schema),
        ignore_errors=ignore_errors,
    )


class _ParquetReader(Reader):
    def __init__(
        self,
        source: ParquetSource,
        groups: Sequence[RowGroup],
        names: Mapping[str, pa.DataType],
        types: Mapping[str, Mapping[str, pa.DataType]],
        stored: Sequence[FileIdentity],
        request: ReadRequest,
    ) -> None:
        self._source = source
        self._groups = groups
        self._names = names
        self._types = types
        self._stored = stored
        self._request = request
        self._missing = request.missing_integers(source.missing)
        self._row_groups = RowGroups()
        self._urls = [*types]
        self._left_out = LeftOut("row", lambda file, row: _named(self._urls[file], row))
        rows = sum(group.rows for group in groups)
        self.ranges = len(groups)
        self.rows_per_range = rows / max(len(groups), 1)
        self.bytes_per_row = sum(group.bytes for group in groups) / max(rows, 1)

    def read(self, ranges: Array) -> Chunk:
        return concat_chunks([self._read(self._groups[number]) for number in ranges])

    def signature(self) -> Signature:
        return {"source": "parquet", "files": files_signature(self._stored)}

    def identity(self) -> Signature:
        versions = [file_version(url) for url in dict.fromkeys(group.url for group in self._groups)]
        defaults = {name: repr(value) for name, value in self._source.defaults.items()}
        types = {name: str(self._source.column_types.get(name, "")) for name in self._names}
        missing = {name: value for name, value in self._missing.items() if name in self._names}
        found = {**self.signature(), "versions": versions, "types": types, "defaults": defaults, "missing": missing}
        # Caches of earlier versions know no ignore_errors.
        return {**found, "ignore_errors": True} if self._source.ignore_errors else found

    def _read(self, group: RowGroup) -> Chunk:
        table = self._table(group).slice(group.start, group.rows)
        numbers = np.arange(len(table)) + (group.first + group.start)
        chunk = Chunk({}, None, len(table), lambda row: _named(group.url, int(numbers[row])))
        try:
            chunk.features = self._columns(table, group.url)
        except RowError as error:
            if not self._source.ignore_errors:
                raise chunk.error(error) from error
            wrong = wrong_rows(len(table), lambda start, stop: self._columns(table[start:stop], group.url))
            file = self._urls.index(group.url)
            self._left_out.report([(file, int(numbers[row]), reason(error)) for row, error in wrong.items()])
            kept = np.setdiff1d(np.arange(len(table)), np.fromiter(wrong, np.int64))
            numbers, chunk.rows = numbers[kept], len(kept)
            chunk.features = self._columns(table.take(arrow.from_numpy(kept)), group.url)
        return self._request.labelled(chunk)

    def _columns(self, table: pa.Table, url: str) -> dict[str, Column]:
        return {name: self._column(name, table.column(name), url) for name in self._names}

    def _table(self, group: RowGroup) -> pa.Table:
        types = self._types[group.url]
        names = [name for name in self._names if not pa.types.is_null(types.get(name, pa.null()))]
        table = self._row_groups.read(group.url, group.group, names, [name for name in names if _is_text(types[name])])
        for name in self._names:
            if name not in names:
                # All values are missing, as if each was null.
                table = table.append_column(name, pa.nulls(len(table), self._names[name]))
        return table

    def _column(self, name: str, values: pa.ChunkedArray, url: str) -> Column:
        array = arrow.one_array(values)
        try:
            kind = self._source.column_types.get(name)
            if kind is None and pa.types.is_decimal(array.type):
                # An id would lose digits as a float.
                kind = (self._request.columns or {}).get(name)
                kind = kind if kind is not None and pa.types.is_integer(kind) else None
            if kind is not None:
                array = converted(array, kind, name)
            if name in self._source.unfilled:
                return array
            default, missing = self._source.defaults.get(name), self._missing.get(name)
            return from_arrow(
                array, name=name, default=default, missing=missing, cure=cure_of_missing(self._request, name)
            )
        except RowError:
            raise
        except (InvalidTypeError, InvalidValueError) as error:
            raise DataError(f"{url}: {error}") from error
        except pa.ArrowException as error:
            problem = str(error).splitlines()[0].rstrip(".")
            raise DataError(f"{url}: column {name!r} ({array.type}) cannot be used: {problem}.") from error


def _kind(kind: pa.DataType) -> str:
    """Return what a column holds, as far as files must agree."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_null(kind):
        return "null"
    return "text" if _is_text(kind) else "lists" if pa.types.is_nested(kind) else "values"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _named(url: str, row: int) -> str:
    return f"{url}, row {row} (from 0)"
