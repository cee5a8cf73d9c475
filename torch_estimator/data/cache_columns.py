"""Features and labels as the columns of a record batch, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.data.chunk import Chunk, LabelPlace
from torch_estimator.data.columns import STRINGS, Column, from_objects, is_strings
from torch_estimator.data.lists import is_lists
from torch_estimator.data.structure import columns_of
from torch_estimator.errors import DataError, RowError
from torch_estimator.json_text import parse_json


@dataclass(frozen=True, slots=True)
class Layout:
    """How columns make up features and labels.

    Attributes:
        features: A number where a column is, in a dict or a list (for a tuple); None where nothing is.
        labels: The same.
        shapes: The shape of a row, by column.
        schema: Of the record batches.
        label_column: As in `Chunk`.
    """

    features: Any = None
    labels: Any = None
    shapes: tuple[tuple[int, ...], ...] = ()
    schema: pa.Schema | None = None
    label_column: LabelPlace = None

    def to_json(self) -> bytes:
        """Returns all but the schema, which the file has itself."""
        return json.dumps([self.features, self.labels, self.shapes, self.label_column]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """Reads what `to_json` wrote."""
        features, labels, shapes, label_column = parse_json(text.decode())
        return cls(features, labels, tuple(map(tuple, shapes)), None, label_column)


def as_batch(chunk: Chunk, layout: Layout | None) -> tuple[pa.RecordBatch, Layout]:
    """Returns the rows of a chunk as a record batch, in the types of the chunks before.

    Raises:
        DataError: A column holds neither numbers nor strings, or the columns differ from those before.
    """
    columns = [*columns_of(chunk.features), *columns_of(chunk.labels)]
    numbers = iter(range(len(columns)))
    features, labels = _numbered(chunk.features, numbers), _numbered(chunk.labels, numbers)
    arrays = [_array(column, chunk) for column in columns]
    shapes = tuple(column.shape[1:] if isinstance(column, np.ndarray) else () for column in columns)
    if layout is None:
        schema = pa.schema([pa.field(str(number), array.type) for number, array in enumerate(arrays)])
        layout = Layout(features, labels, shapes, schema, chunk.label_column)
    if (features, labels, shapes) != (layout.features, layout.labels, layout.shapes):
        raise DataError(
            f"{chunk.place(0)}: these rows have other columns or shapes than the first ones in the cache; cache them "
            "before batch, or without a filename."
        )
    assert layout.schema is not None
    try:
        arrays = [a if a.type == kind else a.cast(kind) for a, kind in zip(arrays, layout.schema.types, strict=True)]
    except pa.ArrowException as error:
        raise DataError(f"{chunk.place(0)}: these rows are of another type than the first in the cache.") from error
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema), layout


def as_chunk(batch: pa.RecordBatch, layout: Layout, path: str, first: int) -> Chunk:
    """Returns a record batch as rows; ``first`` is how many are before it in the file."""
    columns = [_column(array, shape) for array, shape in zip(batch.columns, layout.shapes, strict=True)]
    return Chunk(
        _restored(layout.features, columns),
        _restored(layout.labels, columns),
        batch.num_rows,
        lambda row: f"row {first + row} (from 0) of the cache {path}",
        layout.label_column,
    )


def _numbered(structure: Any, numbers: Iterator[int]) -> Any:
    if isinstance(structure, dict):
        return {name: _numbered(column, numbers) for name, column in structure.items()}
    if isinstance(structure, tuple):
        return [_numbered(column, numbers) for column in structure]
    return None if structure is None else next(numbers)


def _restored(structure: Any, columns: list[Column]) -> Any:
    if isinstance(structure, dict):
        return {name: _restored(part, columns) for name, part in structure.items()}
    if isinstance(structure, list):
        return tuple(_restored(part, columns) for part in structure)
    return None if structure is None else columns[structure]


def _array(column: Column, chunk: Chunk) -> pa.Array:
    if isinstance(column, np.ndarray) and is_strings(column):
        try:
            column = from_objects(column, convert=True)
        except RowError as error:
            raise chunk.error(error) from error
    if not isinstance(column, np.ndarray):
        if is_lists(column) or column.type == STRINGS:
            return column
        return column.cast(STRINGS)
    if column.dtype.kind not in "biuf":
        raise DataError(
            f"{chunk.place(0)}: a column of {column.dtype} of shape {list(column.shape)} cannot be cached in a file; "
            "cache it before batch, or without a filename."
        )
    array = pa.array(np.ascontiguousarray(column).reshape(-1))
    for size in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _column(array: pa.Array, shape: tuple[int, ...]) -> Column:
    if pa.types.is_dictionary(array.type) or is_lists(array):
        return array
    rows = len(array)
    for _ in shape:
        array = array.flatten()
    return arrow.to_numpy(array).reshape(rows, *shape)
