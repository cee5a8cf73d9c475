"""Arrays and pandas frames in memory as a source. Nothing here imports pandas."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import TensorDataset

from torch_estimator import tree
from torch_estimator.data.arguments import duplicates, missing_column
from torch_estimator.data.chunk import Chunk, LabelColumn, as_columns, count_rows
from torch_estimator.data.columns import (
    Array,
    Column,
    as_column,
    from_arrow,
    from_objects,
    is_incomplete,
    read_only,
    take,
)
from torch_estimator.data.label import Label
from torch_estimator.data.sources.base import Reader, ReadRequest
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError

_MAX_RANGES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemorySource:
    """Source of rows from columns in memory: one column, or a dict or tuple of columns; labels likewise."""

    features: Any
    labels: Any
    rows: int

    def open(self, request: ReadRequest) -> Reader:
        """Return a reader of the requested columns."""
        features, labels, label_column = self.features, self.labels, None
        if isinstance(features, dict):
            features = self._replace_missing(request)
        if request.label is not None:
            label_column = request.label.label_column
            features, labels = self._with_label(features, request.label)
        names = request.names(list(features)) if isinstance(features, dict) else None
        if names is not None:
            for name in names:
                if name not in features:
                    raise missing_column(name, "the features", features)
            features = {name: features[name] for name in names}
        return _MemoryReader(features, labels, self.rows, label_column)

    def _replace_missing(self, request: ReadRequest) -> dict[str, Column]:
        """Return the features, with replaced missing numbers in the columns to read.

        Raise a DataError for a number that may not be missing.
        """
        replacements = request.missing_integers({})
        labels = request.label.columns if request.label is not None else ()
        names = request.names(list(self.features))
        read = self.features if names is None else {*names, *labels}
        try:
            return {
                name: from_arrow(column, name=name, missing=replacements.get(name))
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
            return label.without(features), label.select(features)
        except RowError as error:
            raise DataError(f"row {error.row} (from 0): column {error.column!r}: {error.problem}.") from error


def memory_source(features: Any, labels: Any = None) -> MemorySource:
    """Convert arrays in memory to columns, and return a source of their rows.

    Features are an array, or a dict or tuple of arrays: numpy, torch, Arrow, pandas or lists, rows first; so are
    labels, if any. A pandas DataFrame or an Arrow table is a dict of its columns. Raise an InvalidValueError if columns
    differ in length, two have one name, or there are no rows, and a DataError if a number is missing.
    """
    if isinstance(features, TensorDataset) and labels is None:
        features, labels = pair_of(features)
    _check_indices(features, labels)
    features = _columns_of(features)
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
    return MemorySource(features=tree.map(read_only, features), labels=tree.map(read_only, labels), rows=rows)


def pair_of(data: TensorDataset) -> tuple[Any, Any]:
    """Return the one or two tensors of a TensorDataset as features and labels (None if there is one)."""
    if len(data.tensors) > 2:
        raise InvalidValueError(
            f"a TensorDataset must hold features, or features and labels, but has {len(data.tensors)} tensors; give a "
            "dict of features and the labels, as from_arrays({'a': data.tensors[0], 'b': …}, data.tensors[-1]) does."
        )
    return data.tensors[0], data.tensors[1] if len(data.tensors) == 2 else None


def _columns_of(features: Any) -> Any:
    """Return a dict of the columns of a DataFrame or an Arrow table; return anything else unchanged."""
    if is_frame(features):
        return frame_columns(features)
    table = table_of(features)
    if table is None:
        return features
    return table_columns(table)


def table_columns(table: pa.Table) -> dict[str, Any]:
    """Return the columns of an Arrow table by name; raise InvalidValueError if two have one name."""
    names = table.schema.names
    twice = duplicates(names)
    if twice:
        raise InvalidValueError(f"the table has several columns called {twice[0]!r}; rename them.")
    return dict(zip(names, table.columns, strict=True))


def table_of(value: Any) -> pa.Table | None:
    """Return a value as an Arrow table if it is one, or gives one through the PyCapsule interface; else None.

    Columns give Arrow data, too, such as a Series of Polars. They are no tables.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if (
        isinstance(value, type | np.ndarray | torch.Tensor | pa.Array | pa.ChunkedArray)
        or is_frame(value)
        or is_series(value)
    ):
        return None
    if _is_of(value, "datasets", "Dataset"):
        # Hugging Face's Dataset; its own table would lack what select, shuffle and filter did.
        return value.with_format("arrow")[:]
    try:
        if hasattr(value, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(value).read_all()
        if hasattr(value, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(value)])
    except (pa.ArrowException, TypeError, ValueError):
        return None
    return None


def arrow_table(value: Any) -> pa.Table:
    """Return a value as an Arrow table; raise an InvalidTypeError if it is no table, and gives none."""
    table = table_of(value)
    if table is None:
        cure = "; use from_pandas" if is_frame(value) else "; call collect() first" if hasattr(value, "collect") else ""
        raise InvalidTypeError(
            "from_arrow takes a table of Arrow, or an object that gives one (__arrow_c_stream__), but got "
            f"{type(value).__name__}{cure}."
        )
    return table


def _named_column(value: Any, name: str) -> Any:
    """Convert a feature to a column, or a dict or tuple of features to columns. Missing numbers stay missing.

    They are kept, because only the model knows whether they are allowed; see `ReadRequest.missing`.
    """
    if isinstance(value, Mapping | tuple):
        return as_columns(value, name)
    return None if value is None else as_column(value, name, incomplete=True)


class _MemoryReader(Reader):
    def __init__(self, features: Any, labels: Any, rows: int, label_column: LabelColumn) -> None:
        self._features = features
        self._labels = labels
        self._rows = rows
        self._label_column = label_column
        self._range = -(-rows // _MAX_RANGES)
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
            locate = _Locator(np.arange(first, first + count))
        else:
            indices = rows

            def pick(column: Any) -> Any:
                return take(column, indices)

            count, locate = len(rows), _Locator(rows)
        return Chunk(tree.map(pick, self._features), tree.map(pick, self._labels), count, locate, self._label_column)

    def signature(self) -> Signature:
        kinds = [str(column.type if not isinstance(column, np.ndarray) else column.dtype) for column in self._columns()]
        return {"source": "memory", "rows": self._rows, "columns": ", ".join(kinds)}

    def identity(self) -> Signature:
        digest = sha256()
        for column in self._columns():
            digest.update(pickle.dumps(column, protocol=5))
        return {**self.signature(), "content": digest.hexdigest()}

    def _columns(self) -> list[Column]:
        return [*tree.leaves(self._features), *tree.leaves(self._labels)]

    def _indices(self, ranges: Array) -> slice | Array:
        """Return the row numbers of some ranges: a slice, to avoid a copy, for consecutive ranges, else an array."""
        if len(ranges) and (np.diff(ranges) == 1).all():
            return slice(int(ranges[0]) * self._range, min((int(ranges[-1]) + 1) * self._range, self._rows))
        if self._range == 1:
            return ranges
        rows = (ranges[:, None] * self._range + np.arange(self._range)).ravel()
        return rows[rows < self._rows]


@dataclass(frozen=True, slots=True)
class _Locator:
    rows: Array

    def __call__(self, row: int) -> str:
        return f"row {self.rows[row]} (from 0)"


def is_frame(value: object) -> bool:
    """Return whether a value is a pandas DataFrame."""
    return _is_of(value, "pandas", "DataFrame")


def is_series(value: object) -> bool:
    """Return whether a value is a pandas Series."""
    return _is_of(value, "pandas", "Series")


def frame_columns(frame: Any) -> dict[str, Column]:
    """Return the columns of a pandas DataFrame by name. The index is not included.

    Raise an InvalidTypeError for anything else, an InvalidValueError if two columns have the same name, and a DataError
    if a column mixes strings and numbers.
    """
    if not is_frame(frame):
        raise InvalidTypeError(f"from_pandas takes a pandas.DataFrame, but got {type(frame).__name__}.")
    names = [str(name) for name in frame.columns]
    twice = duplicates(names)
    if twice:
        raise InvalidValueError(f"the frame has several columns called {twice[0]!r}; rename them.")
    return {name: series_column(frame.iloc[:, place], name) for place, name in enumerate(names)}


def _check_indices(features: Any, labels: Any) -> None:
    """Check that columns and labels from pandas have equal indices."""
    columns: list[Any] = []
    for value in (features, labels):
        parts = [value] if is_frame(value) else value.values() if isinstance(value, Mapping) else [value]
        columns += [one for one in parts if is_frame(one) or is_series(one)]
    for other in columns[1:]:
        if len(other) == len(columns[0]):
            check_same_index(columns[0], other, "columns and labels from pandas")


def check_same_index(frame: Any, labels: Any, what: str) -> None:
    """Raise an InvalidValueError if the indices of a DataFrame and its labels, a Series or DataFrame, differ.

    Rows pair by position.
    """
    if not frame.index.equals(labels.index):
        raise InvalidValueError(
            f"{what} have different indices, {_first_values(frame.index)} and {_first_values(labels.index)}; align "
            "them, or reset both."
        )


def _first_values(index: Any) -> str:
    values = list(index[:5])
    return f"{values}{' ...' if len(index) > len(values) else ''}"


def series_column(series: Any, name: str) -> Column:
    """Convert a pandas Series to a column. Missing strings become '', floats NaN; missing integers and objects stay.

    Raise a DataError if strings and numbers are mixed.
    """
    try:
        if series.dtype.kind in "biuf" and type(series.dtype).__module__.startswith("numpy"):
            return as_column(series.to_numpy(), name)
        if series.dtype.kind == "O":
            objects = series.to_numpy(object)
            column = from_objects(objects, name, incomplete=True)
            if isinstance(column, pa.Array):
                # A float that is missing in an Arrow array becomes NaN, but None needs a default.
                return objects if is_incomplete(column) else column
        return as_column(pa.array(series, from_pandas=True), name, incomplete=True)
    except RowError as error:
        raise DataError(f"row {error.row} (from 0): column {name!r}: {error.problem}.") from error
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(f"column {name!r} of the frame cannot be used: {str(error).splitlines()[0]}.") from error


def _is_of(value: object, package: str, name: str) -> bool:
    """Return whether a value is of a class of a package, without importing it."""
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)
