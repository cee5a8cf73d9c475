"""Chunks: batches or larger groups of rows. An input pipeline reads and processes a chunk at a time.

Features and labels may each be one column, or a dict or tuple of columns (see `columns` for what a column is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from torch_estimator import tree
from torch_estimator.data import columns as column_functions
from torch_estimator.data.columns import Array, as_column, is_tensor
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError

RowLocator = Callable[[int], str]
"""Function from the number of a row in a chunk to its origin, such as ``data.csv, line 17``. It is slow, since it may
read files again.
"""

LabelColumn = str | Mapping[str, str] | None
"""The column that the labels were taken from, or a dict of such columns by label if there are several labels."""


@dataclass(slots=True)
class Chunk:
    """Rows of features and labels that are processed together: a batch, or a larger group of rows.

    Attributes:
        features: A column, or a dict or tuple of columns.
        labels: The same, or None.
        rows: Number of rows of every column.
        locate: Returns the origin of a row, for messages.
        label_column: The column that the labels were taken from, for messages.
        lengths: Length of the sequence in every row, int64 ``[rows]``, if batches are bucketed by length; else None.

    >>> features, labels = {"x": np.array([10, 20, 30])}, np.array([0, 1, 0])
    >>> chunk = te.data.Chunk(features, labels, 3, lambda row: f"data.csv, line {row + 2}")
    >>> chunk.take(np.array([2, 0])).features["x"]
    array([30, 10])
    >>> part = chunk.slice(1, 3)
    >>> part.rows, part.labels, part.locate(0)
    (2, array([1, 0]), 'data.csv, line 3')
    >>> [column.tolist() for column in chunk.with_columns({"x": features["x"] / 10}, labels).columns()]
    [[1.0, 2.0, 3.0], [0, 1, 0]]
    >>> chunk.error(te.errors.RowError("too large", row=2, column="x"))
    DataError("data.csv, line 4: column 'x': too large.")
    """

    features: Any
    labels: Any
    rows: int
    locate: RowLocator
    label_column: LabelColumn = None
    lengths: Array | None = None

    def slice(self, start: int, stop: int, step: int = 1) -> Chunk:
        """Return the rows ``start:stop:step`` as a chunk that shares memory with this chunk.

        Args:
            start: First row.
            stop: End of the rows, exclusive.
            step: Distance between rows, at least 1.
        """
        locate = self.locate
        chosen = slice(start, stop, step)
        return Chunk(
            _sliced(self.features, chosen),
            _sliced(self.labels, chosen),
            len(range(start, min(stop, self.rows), step)),
            lambda row: locate(start + step * row),
            self.label_column,
            None if self.lengths is None else self.lengths[chosen],
        )

    def take(self, indices: Array) -> Chunk:
        """Return a chunk with the rows at `indices`, in this order.

        Args:
            indices: Numbers of rows, integers ``[n]``.
        """
        locate = self.locate

        def pick(column: Any) -> Any:
            return column_functions.take(column, indices)

        return Chunk(
            tree.map(pick, self.features),
            tree.map(pick, self.labels),
            len(indices),
            lambda row: locate(int(indices[row])),
            self.label_column,
            None if self.lengths is None else self.lengths[indices],
        )

    def columns(self) -> Iterator[Any]:
        """Yield every column of the features, then every column of the labels."""
        yield from tree.leaves(self.features)
        yield from tree.leaves(self.labels)

    def with_columns(self, features: Any, labels: Any) -> Chunk:
        """Return a chunk of the same rows, with the given columns as features and labels.

        Args:
            features: A column, or a dict or tuple of columns, of as many rows.
            labels: The same, or None.
        """
        return Chunk(features, labels, self.rows, self.locate, self.label_column, self.lengths)

    def error(self, error: RowError) -> DataError:
        """Convert an error about one row to a `DataError` that names the file and line of the row.

        Args:
            error: The error, whose row is counted in this chunk.
        """
        return DataError(f"{self.locate(error.row)}: {self._column(error)}{error.problem.rstrip('.')}.")

    def _column(self, error: RowError) -> str:
        column = error.column
        if column is None and isinstance(self.label_column, str):
            column = self.label_column
        if column is None and error.label is not None:
            column = (self.label_column or {}).get(error.label)  # type: ignore[union-attr]
        if column is not None:
            return f"column {column!r}: "
        return "" if error.label is None else f"label {error.label!r}: "


def concat_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Return the rows of all chunks, in order, as one chunk."""
    if len(chunks) == 1:
        return chunks[0]

    def locate(row: int) -> str:
        for chunk in chunks:
            if row < chunk.rows:
                break
            row -= chunk.rows
        return chunk.locate(row)

    return Chunk(
        _concat([chunk.features for chunk in chunks]),
        _concat([chunk.labels for chunk in chunks]),
        sum(chunk.rows for chunk in chunks),
        locate,
        chunks[0].label_column,
        _concat([chunk.lengths for chunk in chunks]),
    )


def chunk_of(
    features: Any, labels: Any, locate: RowLocator, missing: Mapping[str, float] = MappingProxyType({})
) -> Chunk:
    """Make a chunk from a user's features and labels: arrays, tensors or lists, alone or in dicts or tuples.

    `locate` returns the origin of a row. `missing` has, by feature, the number that replaces a missing one.
    """
    try:
        features, labels = as_columns(features, missing=missing), as_columns(labels, "labels", lists=True)
        return Chunk(features, labels, count_rows(features, labels), locate)
    except RowError as error:
        raise Chunk(None, None, 0, locate).error(error) from error
    except (InvalidTypeError, InvalidValueError) as error:
        raise DataError(f"{locate(0)}: {error}") from error


def as_columns(
    value: Any,
    name: str | None = None,
    *,
    lists: bool = False,
    missing: Mapping[str, float] = MappingProxyType({}),
) -> Any:
    """Convert every array in a user's features or labels to a column, with `columns.as_column`.

    A list is one column here, not a structure of several.
    """
    if isinstance(value, Mapping):
        return {key: as_columns(column, str(key), lists=lists, missing=missing) for key, column in value.items()}
    if isinstance(value, tuple):
        return tuple(as_columns(column, name, lists=lists) for column in value)
    filling = None if name is None else missing.get(name)
    return None if value is None else as_column(value, name, lists=lists, missing=filling)


def copied(value: Any) -> Any:
    """Copy the arrays of a user's features or labels, which a generator may fill anew before the rows are used."""
    if isinstance(value, np.ndarray | list):
        return value.copy()
    if is_tensor(value):
        return value.detach().clone()
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return {key: copied(column) for key, column in value.items()} if isinstance(value, dict) else value


def count_rows(features: Any, labels: Any) -> int:
    """Return the number of rows that all columns have."""
    lengths = [len(column) for column in tree.leaves(features)]
    if not lengths:
        raise InvalidValueError("features must hold at least one column, but there is none.")
    lengths += [len(column) for column in tree.leaves(labels)]
    if len(set(lengths)) > 1:
        raise InvalidValueError(
            f"features and labels must have the same number of rows, but features have "
            f"{tree.map(len, features)} and labels {tree.map(len, labels)}."
        )
    return lengths[0]


def as_pair(value: Any) -> tuple[Any, Any]:
    """Split data into features and labels. A tuple or list must be such a pair; anything else is features only."""
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise InvalidValueError(
                f"data must be features or a pair (features, labels), but got a {type(value).__name__} of {len(value)}."
            )
        return value[0], value[1]
    return value, None


def _sliced(structure: Any, rows: slice) -> Any:
    # This runs for every batch, and a function call per column would take longer than the slicing. So the common
    # structures, one array and a flat dict of arrays, are sliced without calls.
    if isinstance(structure, np.ndarray):
        return structure[rows]
    if type(structure) is dict:
        return {
            name: column[rows] if isinstance(column, np.ndarray) else _sliced(column, rows)
            for name, column in structure.items()
        }
    return tree.map(lambda column: column[rows], structure)


def _concat(structures: Sequence[Any]) -> Any:
    first = structures[0]
    if isinstance(first, dict):
        return {name: _concat([structure[name] for structure in structures]) for name in first}
    if isinstance(first, tuple):
        return tuple(_concat(parts) for parts in zip(*structures, strict=True))
    return None if first is None else column_functions.concat(structures)
