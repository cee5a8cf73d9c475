"""From what a user says about files to the sources that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from torch_estimator.data.checks import repeated
from torch_estimator.data.column_types import (
    as_arrow_type,
    schema_defaults,
    schema_missing,
    schema_types,
    type_of_default,
)
from torch_estimator.data.csv import CsvSource
from torch_estimator.data.csv_format import CsvFormat
from torch_estimator.data.csv_lists import check_separator
from torch_estimator.data.csv_schema import by_column
from torch_estimator.data.label import Label, LabelColumns
from torch_estimator.data.paths import Files, as_patterns
from torch_estimator.data.source import Source
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def csv_source(
    files: Files,
    *,
    column_names: Sequence[str] | None,
    header: bool | None,
    column_types: Mapping[str, Any] | Sequence[Any] | None,
    defaults: Mapping[str, Any] | Sequence[Any] | None,
    select_columns: Sequence[str] | None,
    schema: pa.Schema | None,
    label: LabelColumns | None,
    delimiter: str,
    quote_char: str | None,
    list_separator: str | None,
) -> Source:
    """Returns the source of `Dataset.from_csv`."""
    names = None if column_names is None else _names("column_names", column_names)
    has_header = names is None if header is None else header
    if schema is not None:
        if column_types is not None or select_columns is not None:
            raise InvalidValueError("from_csv takes a schema, or column_types and select_columns, not both.")
        column_types = schema_types(schema)
        if names is None and not has_header and _with(label, schema.names) == list(schema.names):
            names = tuple(schema.names)
        select_columns = _with(label, schema.names)
        defaults = schema_defaults(schema) | by_column(defaults, "defaults", select_columns)
    selected = None if select_columns is None else _names("select_columns", select_columns)
    if names is None and not has_header:
        raise InvalidValueError("CSV files without a header need column_names.")
    by_default = {name: _unwrapped(value) for name, value in by_column(defaults, "defaults", selected or names).items()}
    types = by_column(column_types, "column_types", names)
    # tf.data's column_defaults may hold a type where a value is required.
    types |= {name: value for name, value in by_default.items() if isinstance(value, type) and name not in types}
    return CsvSource(
        patterns=as_patterns(files),
        format=CsvFormat(delimiter=delimiter, quote_char=quote_char, header=has_header),
        column_names=names,
        column_types={name: _column_type(kind, name) for name, kind in types.items() if kind is not None},
        defaults={
            name: _checked_default(value, name) for name, value in by_default.items() if not isinstance(value, type)
        },
        select_columns=selected,
        list_separator=check_separator(list_separator, delimiter, quote_char),
        missing=schema_missing(schema),
    )


def parquet_source(
    files: Files,
    *,
    columns: Sequence[str] | None,
    schema: pa.Schema | None,
    defaults: Mapping[str, Any] | None,
    label: LabelColumns | None,
) -> Source:
    """Returns the source of `Dataset.from_parquet`."""
    from torch_estimator.data.parquet import ParquetSource

    types = {} if schema is None else schema_types(schema)
    if schema is not None:
        if columns is not None:
            raise InvalidValueError("from_parquet takes a schema or columns, not both.")
        columns = _with(label, schema.names)
        defaults = schema_defaults(schema) | dict(defaults or {})
    selected = None if columns is None else _names("columns", columns)
    return ParquetSource(
        patterns=as_patterns(files),
        columns=selected,
        types=types,
        defaults=dict(defaults or {}),
        missing=schema_missing(schema),
    )


def json_source(
    files: Files,
    *,
    column_types: Mapping[str, Any] | None,
    select_columns: Sequence[str] | None,
    schema: pa.Schema | None,
    defaults: Mapping[str, Any] | None,
    label: LabelColumns | None,
) -> Source:
    """Returns the source of `Dataset.from_json`."""
    from torch_estimator.data.json import JsonSource

    types = {name: _column_type(kind, name) for name, kind in by_column(column_types, "column_types", None).items()}
    if schema is not None:
        if types or select_columns is not None:
            raise InvalidValueError("from_json takes a schema, or column_types and select_columns, not both.")
        types = schema_types(schema)
        select_columns = _with(label, schema.names)
        defaults = schema_defaults(schema) | dict(defaults or {})
    return JsonSource(
        patterns=as_patterns(files),
        column_types=types,
        defaults={name: _checked_default(value, name) for name, value in (defaults or {}).items()},
        select_columns=None if select_columns is None else _names("select_columns", select_columns),
        missing=schema_missing(schema),
    )


def _names(what: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise InvalidTypeError(f"{what} must be a sequence of strings, but got {given!r}.")
    names = tuple(given)
    twice = repeated(names)
    if twice:
        raise InvalidValueError(f"{what} must be distinct, but {twice[0]!r} is there several times.")
    if not names:
        raise InvalidValueError(f"{what} must not be empty.")
    return names


def _with(label: LabelColumns | None, names: Sequence[str]) -> list[str]:
    labels = () if label is None else Label(column=label).columns
    return [*names, *(name for name in labels if name not in names)]


def _column_type(kind: Any, column: str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return schema_types(pa.schema({column: kind}))[column]
    return as_arrow_type(kind, column)


def _unwrapped(default: Any) -> Any:
    if isinstance(default, list | tuple):
        return default[0] if default else None
    return default


def _checked_default(value: Any, column: str) -> Any:
    if value is not None and type_of_default(value) is None:
        raise InvalidTypeError(f"the default of column {column!r} must be a number or a string, but got {value!r}.")
    return value
