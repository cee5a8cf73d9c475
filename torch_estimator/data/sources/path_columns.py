"""Partition columns for the sources of files: a reader that adds them to the columns that the files have."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from torch_estimator.data.arrow import from_numpy
from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.column_types import as_column_type
from torch_estimator.data.columns import STRINGS, Array, from_arrow
from torch_estimator.data.sources.base import FileSource, Reader, ReadRequest, cure_of_missing
from torch_estimator.data.sources.convert import converted
from torch_estimator.data.sources.partitions import partition_of, repeated, unequal_rows
from torch_estimator.data.stream import Signature
from torch_estimator.errors import RowError

_INTEGER = re.compile(r"-?[0-9]{1,18}")

_Source = TypeVar("_Source", bound=FileSource)


class PathColumns:
    """Columns that the paths of all files have. A source opens its files without them, and `reader` adds them.

    Integers are int64, unless the source or the request asks for another type; other texts are strings. Columns that
    the files have, too (`available`), are compared with the path instead.
    """

    def __init__(self, urls: Sequence[str], available: Sequence[str], source: FileSource, request: ReadRequest) -> None:
        self._partitions = {url: partition_of(url) for url in urls}
        first, *others = self._partitions.values()
        labels = request.label.columns if request.label is not None else ()
        names = [name for name in first if name not in labels and all(name in other for other in others)]
        self._checked = [name for name in names if name in available]
        self._added = [name for name in names if name not in available]
        self._types: dict[str, pa.DataType] = {}
        if not self._added:
            return
        chosen = [name for name in (source.select_columns or (*available, *self._added)) if name not in labels]
        read = request.names(chosen)
        wanted = {**(request.columns or {}), **source.column_types}
        for name in chosen if read is None else read:
            if name in self._added:
                self._types[name] = self._type(name, wanted.get(name))
        self._defaults, self._missing = source.defaults, request.missing_integers(source.missing)
        # Where nothing else is wanted, the columns of the files are read to count the rows.
        self._is_alone = self._types.keys() >= {*chosen}

    def rest(self, source: _Source, request: ReadRequest) -> tuple[_Source, ReadRequest]:
        """Return the source and the request without the columns of paths."""
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
        for name in self._checked:
            if name in features:
                array = features[name]
                array = from_numpy(array) if isinstance(array, np.ndarray) else array
                for row, problem in unequal_rows(array, name, self._partitions[url][name]).items():
                    raise RowError(problem, row=row, column=name)
        for name, kind in self._types.items():
            array = converted(repeated(self._partitions[url][name], chunk.rows), kind, name)
            features[name] = from_arrow(
                array,
                name=name,
                default=self._defaults.get(name),
                missing=self._missing.get(name),
                cure=cure_of_missing(request, name),
            )
        return dataclasses.replace(chunk, features=features)

    def identity(self) -> Signature:
        """Return what distinguishes these columns from others."""
        return {name: str(kind) for name, kind in self._types.items()}

    def _type(self, name: str, wanted: Any) -> pa.DataType:
        if wanted is not None:
            return as_column_type(wanted, name)
        texts = [partition[name] for partition in self._partitions.values()]
        return pa.int64() if all(text is None or _INTEGER.fullmatch(text) for text in texts) else STRINGS

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
