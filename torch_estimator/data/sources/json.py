"""Files of JSON lines as a source of rows. Ranges of lines are read, and Arrow parses many ranges at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from torch_estimator.data.arguments import by_column, column_names
from torch_estimator.data.column_types import (
    as_arrow_type,
    as_column_type,
    check_default,
    inferred,
    schema_defaults,
    schema_missing,
    schema_types,
    type_of_default,
)
from torch_estimator.data.columns import Column, from_arrow
from torch_estimator.data.label import LabelColumns, label_columns
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.base import FileSource, Reader, ReadRequest, Source, cure_of_missing
from torch_estimator.data.sources.input_files import (
    ByteFile,
    Files,
    as_patterns,
    expand,
    file_version,
    files_signature,
    identify,
)
from torch_estimator.data.sources.json_parser import (
    BLANK,
    JsonParser,
    check_inferred_floats,
    check_no_array,
    infer_json_types,
)
from torch_estimator.data.sources.line_reader import LineReader
from torch_estimator.data.sources.path_columns import PathColumns, path_types
from torch_estimator.data.sources.text_lines import (
    BYTE_ORDER_MARK,
    LineLocator,
    LineRanges,
    Piece,
    first_line,
    named_files,
    open_text_file,
)
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, InvalidValueError, RowError
from torch_estimator.json_text import parse_json


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JsonSource(FileSource):
    """Source of rows from files with one JSON object per line; without `select_columns`, those in the first lines."""

    def open(self, request: ReadRequest) -> Reader:
        """Open the files, choose columns and types, and return a reader.

        Raise a DataError if there is no file or no row, a column is missing, or the first lines cannot be read.
        """
        opened = [open_text_file(path) for path in expand(self.patterns)]
        for file in opened:
            check_no_array(file)
        mark = len(BYTE_ORDER_MARK)
        lines = LineRanges(opened, [mark if file.read(0, mark) == BYTE_ORDER_MARK else 0 for file in opened])
        pieces = lines.sample()
        if not pieces:
            raise DataError(f"{named_files(opened)} has no rows.")
        known = dict(self.column_types)
        problem = JsonParser(self.column_types, self.defaults).problem
        if self.ignore_errors:
            pieces, known = self._usable(opened, pieces, request)
        infer = partial(infer_json_types, known=known)
        sample = b"".join(bytes(piece.data) for piece in pieces)
        if not sample.strip(BLANK):
            raise DataError(f"{named_files(opened)}: none of the first rows can be read.")
        try:
            found = infer(sample)
        except pa.ArrowInvalid as error:
            raise LineLocator(opened, pieces, infer, problem, BLANK).parse_error(error) from error
        urls = [file.url for file in opened]
        labels = request.label.columns if request.label is not None else ()
        for name, kind in path_types(urls).items():
            # Other rows than the first may have the column, too.
            if name not in labels and pa.types.is_null(found.get(name, pa.null())):
                found[name] = kind
        if request.columns is None and self.select_columns is None:
            self._check_columns(opened, found)
        paths = PathColumns(urls, list(found), self, request, fills=True)
        source, rest = paths.rest(self, request)
        types = source._types(rest, found, named_files(opened))
        rows = sum(1 for line in sample.splitlines() if line.strip(BLANK))
        self._check_inferred(types, rest, sample, LineLocator(opened, pieces, infer, problem, BLANK))
        parser = JsonParser(types, source.defaults, rest.missing)
        reader = _JsonReader(lines, opened, parser, source, rest, len(sample) / rows)
        return paths.reader(reader, lines.url_of, request) if source.unfilled & {*types} else reader

    def _usable(
        self, opened: Sequence[ByteFile], pieces: Sequence[Piece], request: ReadRequest
    ) -> tuple[list[Piece], dict[str, pa.DataType]]:
        """Return those of the first lines from which types can be inferred, and the types that were known for that."""
        known = dict(self.column_types)
        for types in (known, {name: kind for name, kind in (request.columns or {}).items() if kind is not None}):
            known = {**types, **known}
            infer = partial(infer_json_types, known=known)
            locator = LineLocator(opened, pieces, infer, JsonParser(known, self.defaults).problem, BLANK)
            pieces, _ = locator.without_wrong(infer)
            with contextlib.suppress(pa.ArrowInvalid):
                # Lines of JSON may still hold values of several types, of which a model reads one.
                infer(b"".join(piece.data for piece in pieces) or b"{}\n")
                break
        return list(pieces), known

    def _check_columns(self, opened: Sequence[ByteFile], found: Mapping[str, pa.DataType]) -> None:
        """Check that the first row of each file has no other columns than those of the first rows of the first file."""
        for file in opened[1:]:
            names: list[str] = []
            # The parser names a line that is not JSON.
            with contextlib.suppress(ValueError, TypeError):
                names = list(parse_json(first_line(file).decode("utf-8-sig")))
            if new := [name for name in names if name not in found]:
                raise DataError(
                    f"{file.url}, line 1: column {new[0]!r} is not in the first rows of {opened[0].url}; give "
                    "select_columns, and a default for each column that some files lack."
                )

    def _check_inferred(
        self, types: Mapping[str, pa.DataType], request: ReadRequest, sample: bytes, locator: LineLocator
    ) -> None:
        """Check that no column of integers was inferred as floats because int64 cannot hold its values."""
        declared = {*self.column_types, *(request.columns or ())}
        values = {name: kind.value_type if is_list_type(kind) else kind for name, kind in types.items()}
        floats = [name for name, kind in values.items() if pa.types.is_floating(kind) and name not in declared]
        try:
            check_inferred_floats(sample, [name for name in floats if type(self.defaults.get(name)) is not float])
        except RowError as error:
            raise locator.row_error(error) from error

    def _types(self, request: ReadRequest, found: Mapping[str, pa.DataType], where: str) -> dict[str, pa.DataType]:
        labels = request.label.columns if request.label is not None else ()
        selected = self.select_columns if self.select_columns is not None else tuple(found)
        names = request.names(selected)
        for label in labels:
            if names is not None and label in names:
                raise DataError(f"column {label!r} is the label, so that it cannot be a feature, too.")
        names = [*([name for name in selected if name not in labels] if names is None else names), *labels]
        for name in (*names, *self.column_types):
            # A rare key may not occur in the first rows. Accept such a key if the user gave a default for it.
            if (name not in found and name not in self.defaults) or (name not in selected and name not in labels):
                raise DataError(
                    f"column {name!r} is not in the first rows of {where}; the columns there are {', '.join(found)}. "
                    "If only later rows have it, name it in select_columns or a schema, and give it a default."
                )
        return {name: self._type(name, request, found.get(name)) for name in names}

    def _type(self, name: str, request: ReadRequest, found: pa.DataType | None) -> pa.DataType:
        if name in self.column_types:
            return self.column_types[name]
        known = type_of_default(self.defaults.get(name))
        if found is not None and known is not None and pa.types.is_integer(known) and pa.types.is_floating(found):
            known = inferred(found)
        if request.columns is not None and name in request.columns:
            kind = request.columns[name]
            if is_list_type(kind):
                return kind
            # Read booleans as booleans even if the model asks for numbers, because the model accepts both.
            is_bool = found is not None and pa.types.is_boolean(found) and not pa.types.is_string(kind)
            known = pa.bool_() if is_bool else as_arrow_type(kind, name)
        if found is not None and (pa.types.is_struct(found) or _holds_nested(found)):
            raise DataError(
                f"column {name!r} must hold numbers, strings or lists of them, but is {found}; leave it out with "
                "select_columns."
            )
        if found is None or not is_list_type(found):
            return known if known is not None else pa.string() if found is None else inferred(found)
        value_type = inferred(found.value_type) if known is None else known
        return pa.list_(pa.string() if pa.types.is_dictionary(value_type) else value_type)


def json_source(
    files: Files,
    *,
    column_types: Mapping[str, Any] | None,
    select_columns: Sequence[str] | None,
    schema: pa.Schema | None,
    defaults: Mapping[str, Any] | None,
    label: LabelColumns | None,
    ignore_errors: bool,
) -> Source:
    """Check the arguments of `Dataset.from_json`, and return a source of the files' rows."""
    types = {name: as_column_type(kind, name) for name, kind in by_column(column_types, "column_types", None).items()}
    if schema is not None:
        if types or select_columns is not None:
            raise InvalidValueError("from_json takes a schema, or column_types and select_columns, not both.")
        types = schema_types(schema)
        select_columns = [*dict.fromkeys((*schema.names, *label_columns(label)))]
        defaults = schema_defaults(schema) | dict(defaults or {})
    return JsonSource(
        patterns=as_patterns(files),
        column_types=types,
        defaults={name: check_default(value, name) for name, value in (defaults or {}).items()},
        select_columns=None if select_columns is None else column_names("select_columns", select_columns),
        missing=schema_missing(schema),
        ignore_errors=ignore_errors,
    )


def _holds_nested(kind: pa.DataType) -> bool:
    return is_list_type(kind) and (is_list_type(kind.value_type) or pa.types.is_struct(kind.value_type))


class _JsonReader(LineReader):
    def __init__(
        self,
        lines: LineRanges,
        opened: Sequence[ByteFile],
        parser: JsonParser,
        source: JsonSource,
        request: ReadRequest,
        bytes_per_row: float,
    ) -> None:
        super().__init__(
            lines,
            opened,
            parser,
            request,
            bytes_per_row=bytes_per_row,
            ignore_errors=source.ignore_errors,
            blank=BLANK,
        )
        self._types = parser.types
        self._defaults = source.defaults
        self._unfilled = source.unfilled
        self._missing = request.missing_integers(source.missing)

    def signature(self) -> Signature:
        return {"source": "json", "files": files_signature([identify(file) for file in self._files])}

    def identity(self) -> Signature:
        versions = [file_version(file.url) for file in self._files]
        types = {name: str(kind) for name, kind in self._types.items()}
        defaults = {name: repr(value) for name, value in self._defaults.items()}
        missing = {name: value for name, value in self._missing.items() if name in types}
        found = {**self.signature(), "versions": versions, "types": types, "defaults": defaults, "missing": missing}
        # Caches of earlier versions know no ignore_errors.
        return found if self._left_out is None else {**found, "ignore_errors": True}

    def _column(self, name: str, array: pa.Array) -> Column:
        if name in self._unfilled:
            return array
        try:
            default, missing = self._defaults.get(name), self._missing.get(name)
            return from_arrow(
                array, name=name, default=default, missing=missing, cure=cure_of_missing(self._request, name)
            )
        except RowError:
            raise
        except InvalidValueError as error:
            raise DataError(f"{named_files(self._files)}: {error}") from error
