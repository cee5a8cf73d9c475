"""A piece of the stream of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.data import columns as column_functions
from torch_estimator.data.columns import Array
from torch_estimator.data.structure import as_columns, columns_of, count_rows, map_columns
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError

Place = Callable[[int], str]
"""Says where a row of a chunk comes from, such as ``data.csv, line 17``; may be slow."""

LabelPlace = str | Mapping[str, str] | None
"""The column that the labels were; where there are several, by their names."""


@dataclass(slots=True)
class Chunk:
    """Some rows: a window of a file, or a batch.

    Attributes:
        features: A column, or a dict or tuple of columns.
        labels: The same, or None.
        rows: How many rows every column has.
        place: Where a row comes from.
        label_column: Where the labels come from, for messages.
        lengths: Length of every row's sequence, int64 ``[rows]``, where batches are made by it.
    """

    features: Any
    labels: Any
    rows: int
    place: Place
    label_column: LabelPlace = None
    lengths: Array | None = None

    def slice(self, start: int, stop: int, step: int = 1) -> Chunk:
        """Returns rows ``start:stop:step`` as views."""
        place = self.place
        where = slice(start, stop, step)
        return Chunk(
            _sliced(self.features, where),
            _sliced(self.labels, where),
            len(range(start, min(stop, self.rows), step)),
            lambda row: place(start + step * row),
            self.label_column,
            None if self.lengths is None else self.lengths[where],
        )

    def take(self, indices: Array) -> Chunk:
        """Returns the rows at ``indices``."""
        place = self.place

        def pick(column: Any) -> Any:
            return column_functions.take(column, indices)

        return Chunk(
            map_columns(pick, self.features),
            map_columns(pick, self.labels),
            len(indices),
            lambda row: place(int(indices[row])),
            self.label_column,
            None if self.lengths is None else self.lengths[indices],
        )

    def columns(self) -> Iterator[Any]:
        """Yields the columns of features and labels."""
        yield from columns_of(self.features)
        yield from columns_of(self.labels)

    def with_columns(self, features: Any, labels: Any) -> Chunk:
        """Returns a chunk of the same rows with other columns."""
        return Chunk(features, labels, self.rows, self.place, self.label_column, self.lengths)

    def error(self, error: RowError) -> DataError:
        """Returns the error of one row as one that says where the row comes from."""
        return DataError(f"{self.place(error.row)}: {self._column(error)}{error.problem.rstrip('.')}.")

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
    """Returns the rows of all chunks, in order, as one chunk."""
    if len(chunks) == 1:
        return chunks[0]

    def place(row: int) -> str:
        for chunk in chunks:
            if row < chunk.rows:
                break
            row -= chunk.rows
        return chunk.place(row)

    return Chunk(
        _concat([chunk.features for chunk in chunks]),
        _concat([chunk.labels for chunk in chunks]),
        sum(chunk.rows for chunk in chunks),
        place,
        chunks[0].label_column,
        _concat([chunk.lengths for chunk in chunks]),
    )


def chunk_of(features: Any, labels: Any, place: Place) -> Chunk:
    """Makes a chunk of what a user's code gave: arrays, tensors, lists, alone, in dicts or in tuples.

    Raises:
        DataError: They are no columns, or not of the same length.
    """
    try:
        features, labels = as_columns(features), as_columns(labels, "labels", lists=True)
        return Chunk(features, labels, count_rows(features, labels), place)
    except RowError as error:
        raise Chunk(None, None, 0, place).error(error) from error
    except (InvalidTypeError, InvalidValueError) as error:
        raise DataError(f"{place(0)}: {error}") from error


def _sliced(structure: Any, where: slice) -> Any:
    # Every batch comes through here: the plain cases without a call per column.
    if isinstance(structure, np.ndarray):
        return structure[where]
    if type(structure) is dict:
        return {
            name: column[where] if isinstance(column, np.ndarray) else _sliced(column, where)
            for name, column in structure.items()
        }
    return map_columns(lambda column: column[where], structure)


def _concat(structures: Sequence[Any]) -> Any:
    first = structures[0]
    if isinstance(first, dict):
        return {name: _concat([structure[name] for structure in structures]) for name in first}
    if isinstance(first, tuple):
        return tuple(_concat(parts) for parts in zip(*structures, strict=True))
    return None if first is None else column_functions.concat(structures)
