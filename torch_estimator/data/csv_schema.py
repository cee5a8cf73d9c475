"""What the columns of CSV files are: names, types, defaults, and which of them are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_estimator.data.checks import repeated
from torch_estimator.data.column_types import as_arrow_type, default_as, inferred, type_of_default
from torch_estimator.data.columns import STRINGS
from torch_estimator.data.csv_format import CsvFormat
from torch_estimator.data.csv_lists import without_separator
from torch_estimator.data.csv_parser import infer_types
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.source import Wanted, missing_column
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from torch_estimator.data.csv import CsvSource


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvSchema:
    """How to parse.

    Attributes:
        format: How lines are written.
        names: All columns of the files, in order.
        types: The columns to read and the types to read them as.
        defaults: What missing values become, in the columns' types.
        inferred: Columns whose type was found in the first rows.
        bytes_per_line: Mean length of a line in the first rows.
        lists: The types of the values of those columns that hold lists; they are in `types` as strings.
        list_separator: What is between the values of a list.
    """

    format: CsvFormat
    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    defaults: Mapping[str, Any]
    inferred: frozenset[str]
    bytes_per_line: float
    lists: Mapping[str, pa.DataType]
    list_separator: str | None


def read_header(line: bytes, form: CsvFormat, url: str) -> tuple[str, ...]:
    """Returns the names in a header.

    Raises:
        DataError: It is not text, a quoted field does not end, or two columns have the same name.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{url}, line 1: the header is not UTF-8 text.") from error
    if form.is_open(text):
        raise DataError(f"{url}, line 1: {open_quote(form)}.")
    names = tuple(name.strip() for name in form.fields(text))
    twice = repeated(names)
    if twice:
        raise DataError(f"{url}, line 1: two columns are called {twice[0]!r}.")
    if not any(names):
        raise DataError(f"{url}, line 1: there is no header; give column_names if the files have none.")
    return names


def open_quote(form: CsvFormat) -> str:
    """Returns what is wrong with a line whose last field is open."""
    return f"a quoted field ({form.quote_char}) does not end on this line; a field cannot hold a newline"


def resolve_schema(
    source: CsvSource, wanted: Wanted, names: tuple[str, ...], *, where: str, sample: bytes
) -> CsvSchema:
    """Settles which columns are read and as what: as the user said, else as the model wants, else as they look.

    Args:
        source: What the user said.
        wanted: What the model and the Dataset want.
        names: Columns of the files.
        where: The files, for messages.
        sample: The first lines, from which missing types are inferred.

    Raises:
        DataError: A column is not there, or the sample cannot be parsed.
        InvalidValueError: A default does not fit its column.
    """
    for given in (source.column_types, source.defaults, source.select_columns or ()):
        for name in given:
            if name not in names:
                raise missing_column(name, where, names)
    read = _columns_to_read(source, wanted, names, where)
    types = {name: _known_type(name, source, wanted) for name in read}
    lists = {name: kind.value_type for name, kind in types.items() if kind is not None and is_list_type(kind)}
    for name in lists:
        if source.list_separator is None:
            raise without_separator(name)
        # What is between the separators is read later.
        types[name] = STRINGS
    unknown = [name for name, kind in types.items() if kind is None]
    lines = max(len(sample.splitlines()), 1)
    if unknown:
        found = infer_types(source.format, names, unknown, sample)
        types |= {name: inferred(found[name]) if name in found else pa.float32() for name in unknown}
    defaults = {name: value for name, value in source.defaults.items() if value is not None}
    integers = [name for name, kind in types.items() if pa.types.is_integer(kind)]
    stand_ins = wanted.stand_ins(source.missing)
    defaults = {name: stand_ins[name] for name in integers if name in stand_ins} | defaults
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
        bytes_per_line=max(len(sample) / lines, 1),
        lists=lists,
        list_separator=source.list_separator,
    )


def _columns_to_read(source: CsvSource, wanted: Wanted, names: tuple[str, ...], where: str) -> list[str]:
    labels = wanted.label.columns if wanted.label is not None else ()
    for label in labels:
        if label not in names:
            raise missing_column(label, where, names)
    selected = [name for name in (source.select_columns or names) if name not in labels]
    used = wanted.names(selected)
    if used is not None:
        for name in used:
            if name in labels:
                raise DataError(f"column {name!r} is the label, so that it cannot be a feature, too.")
            if name not in selected:
                raise missing_column(name, where, selected)
        selected = [name for name in selected if name in used]
    return [*selected, *labels]


def _known_type(name: str, source: CsvSource, wanted: Wanted) -> pa.DataType | None:
    if name in source.column_types:
        return source.column_types[name]
    kind = wanted.columns.get(name) if wanted.columns is not None else None
    if kind is not None:
        return kind if is_list_type(kind) else as_arrow_type(kind, name)
    return type_of_default(source.defaults.get(name))


def by_column(given: Any, what: str, names: Sequence[str] | None) -> dict[str, Any]:
    """Returns what a user gave per column, by name or in the order of ``names``, as a dict.

    Raises:
        InvalidTypeError: It is neither.
        InvalidValueError: It has another number of entries than there are names.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidTypeError(f"{what} must be a dict by column, or a list in their order, but got {given!r}.")
    if names is None:
        raise InvalidValueError(f"{what} in a list need column_names or select_columns; or give a dict by column.")
    if len(given) != len(names):
        raise InvalidValueError(f"{what} must have one entry for each of {len(names)} columns, but has {len(given)}.")
    return dict(zip(names, given, strict=True))
