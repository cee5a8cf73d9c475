"""The columns of CSV files: their names, types and defaults, and the selection of columns to read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_estimator.data.arguments import duplicates, missing_column
from torch_estimator.data.column_types import as_arrow_type, inferred, type_of_default
from torch_estimator.data.columns import STRINGS, default_as
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.base import ReadRequest
from torch_estimator.data.sources.csv_format import DELIMITERS, USUAL_MARKS, CsvFormat
from torch_estimator.data.sources.csv_parser import OTHER_ENCODING, infer_types
from torch_estimator.errors import DataError, InvalidValueError

if TYPE_CHECKING:
    from torch_estimator.data.sources.csv import CsvSource

logger = logging.getLogger("torch_estimator")

NO_HEADER = "; if the files have no header, give column_names=[...]"
"""End of messages about names that were read from the first line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvSchema:
    """Columns to read from CSV files, with their types and defaults, and the format of the lines.

    `names` are all columns of the files, in order, and `types` has the columns to read. In it, columns of lists have
    the type of strings; `lists` has the types of their values. Defaults are in the types of their columns. `inferred`
    are the columns whose type was inferred from the first rows, which have the mean length `bytes_per_line`. The model
    fills NaN in the columns `filled`.
    """

    format: CsvFormat
    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inferred: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    bytes_per_line: float = 1.0
    lists: Mapping[str, pa.DataType] = field(default_factory=dict)
    list_separator: str | None = None


def text_schema(form: CsvFormat, names: tuple[str, ...]) -> CsvSchema:
    """Return a schema that reads all columns as text, to see which lines have the right fields."""
    return CsvSchema(format=form, names=names, types=dict.fromkeys(names, pa.string()))


def read_header(line: bytes, form: CsvFormat, url: str) -> tuple[str, ...]:
    """Return the column names in the header of a CSV file.

    Raise a DataError if the header is not text, or two columns have the same name.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{url}, line 1: the header is not UTF-8 text{OTHER_ENCODING}.") from error
    names = header_names(text, form)
    twice = duplicates(names)
    if twice:
        raise DataError(f"{url}, line 1: two columns are called {twice[0]!r}{NO_HEADER}.")
    other = next((one for one in DELIMITERS if len(names) == 1 and one in names[0] and one != form.delimiter), None)
    if other is not None:
        logger.warning(
            "%s has one column, %r; if %r separates columns, give delimiter=%r.", url, names[0], other, other
        )
    if not any(names):
        raise DataError(f"{url}, line 1: there is no header; if the files have none, give column_names=[...].")
    return names


def header_names(text: str, form: CsvFormat) -> tuple[str, ...]:
    """Return the fields of a header line without the spaces around them."""
    return tuple(name.strip() for name in form.fields(text))


def resolve_schema(
    source: CsvSource, request: ReadRequest, names: tuple[str, ...], *, where: str, sample: bytes
) -> CsvSchema:
    """Choose the columns to read from CSV files, and the types and defaults of these columns.

    The type of a column is the type that the user gave, else the type that the model reads, else the type of the
    default, else the type that is inferred from `sample`, the first lines. Raise a DataError if a column is missing or
    the sample cannot be parsed, and an InvalidValueError if a default does not fit the type of its column.
    """
    for given in (source.column_types, source.defaults, source.select_columns or ()):
        for name in given:
            if name not in names:
                raise missing_column(name, where, names, _cure(source))
    read = _columns_to_read(source, request, names, where)
    types = {name: _known_type(name, source, request) for name in read}
    lists = {name: kind.value_type for name, kind in types.items() if kind is not None and is_list_type(kind)}
    for name in lists:
        if source.list_separator is None:
            raise InvalidValueError(
                f"column {name!r} holds lists, but a field of CSV holds one value; give from_csv(list_separator=...) "
                "what stands between the values of a list, such as '|', or use Parquet or JSON."
            )
        # Read the column as text. `split_lists` splits the text into lists afterwards.
        types[name] = STRINGS
    if source.list_separator is not None and request.columns is None and not lists:
        logger.warning(
            "list_separator=%r splits no field of %s, since no column has a list type. Behind a map, or without a "
            "model, name the columns: column_types={'NAME': pyarrow.list_(pyarrow.string())}.",
            source.list_separator,
            where,
        )
    unknown = [name for name, kind in types.items() if kind is None]
    lines = max(len(source.format.records(sample)), 1)
    if unknown:
        found = infer_types(source.format, names, unknown, sample)
        _warn_of_marks(source.format, names, [name for name in found if pa.types.is_string(found[name])], sample, where)
        types |= {name: inferred(found[name]) if name in found else pa.float32() for name in unknown}
    defaults = {name: value for name, value in source.defaults.items() if value is not None}
    for name, number in request.missing_integers(source.missing).items():
        kind = types.get(name)
        if kind is None or name in defaults or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            continue
        defaults[name] = number
        if pa.types.is_integer(kind) and not float(number).is_integer():
            types[name] = pa.float64()
    return CsvSchema(
        format=source.format,
        names=names,
        types=types,
        defaults={
            name: default_as(defaults[name], kind, name)
            for name, kind in types.items()
            if name in defaults and name not in lists
        },
        inferred=frozenset(unknown),
        filled=frozenset(request.missing),
        bytes_per_line=max(len(sample) / lines, 1),
        lists=lists,
        list_separator=source.list_separator,
    )


def _warn_of_marks(form: CsvFormat, names: tuple[str, ...], texts: Sequence[str], sample: bytes, where: str) -> None:
    """Warn of a column of text that would be numbers without the usual marks of missing values."""
    if not texts:
        return
    found = infer_types(replace(form, missing_values=USUAL_MARKS), names, texts, sample)
    numbers = [name for name in texts if pa.types.is_integer(found[name]) or pa.types.is_floating(found[name])]
    if numbers:
        logger.warning(
            "column %r of %s is read as text, because it has marks of missing values beside numbers; to read numbers, "
            "name the marks, such as missing_values=['NA'], and give defaults={%r: ...}.",
            numbers[0],
            where,
            numbers[0],
        )


def _columns_to_read(source: CsvSource, request: ReadRequest, names: tuple[str, ...], where: str) -> list[str]:
    labels = request.label.columns if request.label is not None else ()
    for label in labels:
        if label not in names:
            raise missing_column(label, where, names, _cure(source))
    selected = [name for name in (source.select_columns or names) if name not in labels]
    used = request.names(selected)
    if used is not None:
        for name in used:
            if name in labels:
                raise DataError(f"column {name!r} is the label, so that it cannot be a feature, too.")
            if name not in selected:
                if name in names:
                    raise DataError(
                        f"column {name!r} of {where} is not read, because select_columns or the schema does not name "
                        f"it; add it, as in schema.append(pyarrow.field({name!r}, pyarrow.string())). The columns "
                        f"named are {', '.join(selected)}."
                    )
                raise missing_column(name, where, selected, _cure(source))
        selected = [name for name in selected if name in used]
    return [*selected, *labels]


def _cure(source: CsvSource) -> str:
    return NO_HEADER if source.column_names is None else ""


def _known_type(name: str, source: CsvSource, request: ReadRequest) -> pa.DataType | None:
    if name in source.column_types:
        return source.column_types[name]
    kind = request.columns.get(name) if request.columns is not None else None
    if kind is not None:
        return kind if is_list_type(kind) else as_arrow_type(kind, name)
    return type_of_default(source.defaults.get(name))
