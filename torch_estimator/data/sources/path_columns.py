"""Partition columns for the sources of files: a reader that adds them to the columns that the files have."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.column_types import as_column_type
from torch_estimator.data.columns import STRINGS, Array, Column, from_arrow
from torch_estimator.data.sources.base import FileSource, Reader, ReadRequest, cure_of_missing
from torch_estimator.data.sources.convert import converted
from torch_estimator.data.sources.partitions import partition_of, repeated, unequal_rows
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, RowError

_INTEGER = re.compile(r"-?[0-9]{1,18}")

_Source = TypeVar("_Source", bound=FileSource)


def path_types(urls: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the columns that the paths of all files have: int64 where all texts are integers, else strings."""
    first, *others = map(partition_of, urls)
    texts = {name: [one[name] for one in (first, *others)] for name in first if all(name in other for other in others)}
    return {
        name: pa.int64() if all(text is None or _INTEGER.fullmatch(text) for text in values) else STRINGS
        for name, values in texts.items()
    }


class PathColumns:
    """Columns in the paths of files.

    A source opens its files without those that only the paths of all files have, and `reader` adds them. Columns that
    the files have, too, stay as they are read until `reader` has compared them.

    Args:
        urls: The files.
        available: Columns in the files.
        source: The source, whose types for added columns come before those of the request and of `path_types`.
        request: The request to open it.
        fills: Whether rows may lack a column that other rows have. They take the value of the path.
    """

    def __init__(
        self,
        urls: Sequence[str],
        available: Sequence[str],
        source: FileSource,
        request: ReadRequest,
        *,
        fills: bool = False,
    ) -> None:
        self._partitions = {url: partition_of(url) for url in urls}
        self._fills = fills
        labels = request.label.columns if request.label is not None else ()
        for name in labels:
            if name not in available and any(name in texts for texts in self._partitions.values()):
                raise DataError(
                    f"column {name!r} is only in the paths of the files, such as {urls[0]}, and cannot be the label; "
                    "write it into the files."
                )
        names = dict.fromkeys(name for texts in self._partitions.values() for name in texts if name not in labels)
        self._checked = [name for name in names if fills or name in available]
        types = path_types(urls)
        self._added = [name for name in types if name not in available and name not in labels]
        self._types: dict[str, pa.DataType] = {}
        self._defaults, self._missing = source.defaults, request.missing_integers(source.missing)
        if not self._added:
            return
        chosen = [name for name in (source.select_columns or (*available, *self._added)) if name not in labels]
        read = request.names(chosen)
        wanted = {**(request.columns or {}), **source.column_types}
        for name in chosen if read is None else read:
            if name in self._added:
                self._types[name] = as_column_type(wanted[name], name) if wanted.get(name) is not None else types[name]
        # Where nothing else is wanted, the columns of the files are read to count the rows.
        self._is_alone = self._types.keys() >= {*chosen}

    def rest(self, source: _Source, request: ReadRequest) -> tuple[_Source, ReadRequest]:
        """Return the source and the request for the other columns."""
        source = dataclasses.replace(source, unfilled=frozenset(self._checked))
        if not self._added:
            return source, request
        changed = {
            name: self._without(getattr(source, name)) for name in ("select_columns", "column_types", "defaults")
        }
        columns, extra = self._without(request.columns), self._without(request.extra)
        return dataclasses.replace(source, **changed), dataclasses.replace(
            request, columns=columns, extra=extra, see_names=None
        )

    def reader(self, reader: Reader, url_of: Callable[[int], str], request: ReadRequest) -> Reader:
        """Return a reader with these columns, too; `url_of` returns the file of a range."""
        return _PartitionedReader(reader, url_of, self, request) if self._types or self._checked else reader

    def complete(self, chunk: Chunk, url: str, request: ReadRequest) -> Chunk:
        """Return rows of a file with the columns of its path; raise a RowError if a column has another value."""
        features = {} if self._types and self._is_alone else dict(chunk.features)
        path = self._partitions[url]
        for name in self._checked:
            if name in features:
                array = features[name]
                if name in path:
                    array = self._agreeing(array, name, path[name])
                features[name] = self._filled(array, name, request)
        for name, kind in self._types.items():
            array = converted(repeated(path[name], chunk.rows), kind, name)
            features[name] = self._filled(array, name, request)
        return dataclasses.replace(chunk, features=features)

    def _agreeing(self, array: pa.Array, name: str, text: str | None) -> pa.Array:
        """Return a column of a file with the value of its path; raise a RowError if a row has another value."""
        for row, problem in unequal_rows(array, name, text, or_null=self._fills).items():
            raise RowError(problem, row=row, column=name)
        if not self._fills or not array.null_count:
            return array
        value = converted(repeated(text, 1), array.type, name)
        return pc.coalesce(array, (value.dictionary_decode() if isinstance(value, pa.DictionaryArray) else value)[0])

    def _filled(self, array: pa.Array, name: str, request: ReadRequest) -> Column:
        default, missing = self._defaults.get(name), self._missing.get(name)
        return from_arrow(array, name=name, default=default, missing=missing, cure=cure_of_missing(request, name))

    def identity(self) -> Signature:
        """Return what distinguishes these columns from others."""
        return {name: str(kind) for name, kind in self._types.items()}

    def _without(self, given: Any) -> Any:
        if isinstance(given, Mapping):
            return {name: value for name, value in given.items() if name not in self._added}
        return None if given is None else tuple(name for name in given if name not in self._added)


class _PartitionedReader(Reader):
    def __init__(
        self, reader: Reader, url_of: Callable[[int], str], columns: PathColumns, request: ReadRequest
    ) -> None:
        self._reader = reader
        self._url_of = url_of
        self._columns = columns
        self._request = request
        self.ranges = reader.ranges
        self.rows_per_range = reader.rows_per_range
        self.bytes_per_row = reader.bytes_per_row

    def read(self, ranges: Array) -> Chunk:
        chunks: list[Chunk] = []
        # Ranges of one file are read together.
        for url, group in groupby(ranges.tolist(), self._url_of):
            chunk = self._reader.read(np.array(list(group)))
            try:
                chunks.append(self._columns.complete(chunk, url, self._request))
            except RowError as error:
                raise chunk.error(error) from error
        return concat_chunks(chunks)

    def signature(self) -> Signature:
        return self._reader.signature()

    def identity(self) -> Signature:
        return {**self._reader.identity(), "partitions": self._columns.identity()}
