"""Arrays as a source."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from torch_estimator.data.chunk import Chunk, LabelPlace
from torch_estimator.data.columns import Array, Column, as_column, from_arrow, is_incomplete, take
from torch_estimator.data.label import Label
from torch_estimator.data.source import Reader, Wanted, missing_column
from torch_estimator.data.state import Signature
from torch_estimator.data.structure import as_columns, columns_of, count_rows, map_columns
from torch_estimator.errors import DataError, InvalidValueError, RowError

_MOST_RANGES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemorySource:
    """Columns in memory: features (one, a dict or a tuple of them) and labels (the same, or None)."""

    features: Any
    labels: Any
    rows: int

    def open(self, wanted: Wanted) -> Reader:
        """Returns a reader of the wanted columns."""
        features, labels, label_column = self.features, self.labels, None
        if isinstance(features, dict):
            features = self._complete(wanted)
        if wanted.label is not None:
            label_column = wanted.label.place
            features, labels = self._with_label(features, wanted.label)
        names = wanted.names(list(features)) if isinstance(features, dict) else None
        if names is not None:
            for name in names:
                if name not in features:
                    raise missing_column(name, "the features", features)
            features = {name: features[name] for name in names}
        return _MemoryReader(features, labels, self.rows, label_column)

    def _complete(self, wanted: Wanted) -> dict[str, Column]:
        """Return the features; integers that are missing become what stands for them, where they are read."""
        stand_ins = wanted.stand_ins({})
        labels = wanted.label.columns if wanted.label is not None else ()
        names = wanted.names(list(self.features))
        read = self.features if names is None else {*names, *labels}
        try:
            return {
                name: from_arrow(column, name=name, missing=stand_ins.get(name))
                if is_incomplete(column) and name in read
                else column
                for name, column in self.features.items()
            }
        except RowError as error:
            problem = f"{error.problem}; fill it, as with fillna of pandas"
            raise DataError(f"row {error.row} (from 0): column {error.column!r}: {problem}.") from error

    def _with_label(self, features: Any, label: Label) -> tuple[dict[str, Column], Any]:
        if self.labels is not None:
            raise InvalidValueError(f"{label} cannot be the label: the data has labels already.")
        if not isinstance(features, dict):
            raise InvalidValueError(f"{label} cannot be the label: the features have no names.")
        for name in label.columns:
            if name not in features:
                raise missing_column(name, "the features", features)
        try:
            return label.rest(features), label.of(features)
        except RowError as error:
            raise DataError(f"row {error.row} (from 0): column {error.column!r}: {error.problem}.") from error


def memory_source(features: Any, labels: Any = None) -> MemorySource:
    """Makes a source of what a user gives.

    Raises:
        InvalidValueError: Columns differ in length, or there are no rows.
        DataError: A number is missing.
    """
    try:
        if isinstance(features, Mapping):
            features = {name: _named_column(value, str(name)) for name, value in features.items()}
        else:
            features = as_columns(features)
        labels = as_columns(labels, "labels", lists=True)
    except RowError as error:
        where = f"column {error.column!r}: " if error.column is not None else ""
        raise DataError(f"row {error.row} (from 0): {where}{error.problem}.") from error
    rows = count_rows(features, labels)
    if rows == 0:
        raise InvalidValueError("features must have at least one row, but have none.")
    return MemorySource(features=features, labels=labels, rows=rows)


def _named_column(value: Any, name: str) -> Any:
    """Return a column, whose missing integers may mean something to a model, or a structure of columns."""
    if isinstance(value, Mapping | tuple):
        return as_columns(value, name)
    return None if value is None else as_column(value, name, incomplete=True)


class _MemoryReader(Reader):
    def __init__(self, features: Any, labels: Any, rows: int, label_column: LabelPlace) -> None:
        self._features = features
        self._labels = labels
        self._rows = rows
        self._label_column = label_column
        self._range = -(-rows // _MOST_RANGES)
        self.ranges = -(-rows // self._range)
        self.rows_per_range = rows / self.ranges
        self.bytes_per_row = sum(column.nbytes for column in self._columns()) / rows

    def read(self, ranges: Array) -> Chunk:
        rows = self._indices(ranges)
        if isinstance(rows, slice):
            chosen = rows

            def pick(column: Any) -> Any:
                return column[chosen]

            count, first = rows.stop - rows.start, rows.start
            place = _Place(np.arange(first, first + count))
        else:
            indices = rows

            def pick(column: Any) -> Any:
                return take(column, indices)

            count, place = len(rows), _Place(rows)
        return Chunk(
            map_columns(pick, self._features), map_columns(pick, self._labels), count, place, self._label_column
        )

    def signature(self) -> Signature:
        kinds = [str(column.type if not isinstance(column, np.ndarray) else column.dtype) for column in self._columns()]
        return {"source": "memory", "rows": self._rows, "columns": ", ".join(kinds)}

    def identity(self) -> Signature:
        digest = sha256()
        for column in self._columns():
            digest.update(pickle.dumps(column, protocol=5))
        return {**self.signature(), "content": digest.hexdigest()}

    def _columns(self) -> list[Column]:
        return [*columns_of(self._features), *columns_of(self._labels)]

    def _indices(self, ranges: Array) -> slice | Array:
        if len(ranges) and (np.diff(ranges) == 1).all():
            return slice(int(ranges[0]) * self._range, min((int(ranges[-1]) + 1) * self._range, self._rows))
        if self._range == 1:
            return ranges
        rows = (ranges[:, None] * self._range + np.arange(self._range)).ravel()
        return rows[rows < self._rows]


@dataclass(frozen=True, slots=True)
class _Place:
    rows: Array

    def __call__(self, row: int) -> str:
        return f"row {self.rows[row]} (from 0)"
