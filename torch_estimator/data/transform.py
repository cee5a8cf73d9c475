"""Applying a model's host half to raw columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Column, from_objects, is_strings, to_numpy
from torch_estimator.data.lists import as_lists, as_matrix, is_list_type, is_lists
from torch_estimator.data.source import Required, missing_column
from torch_estimator.data.stream import Passing, Stream
from torch_estimator.data.structure import map_columns
from torch_estimator.errors import DataError, InvalidTypeError, RowError


class Transform(Protocol):
    """Turns raw columns into arrays, row by row: rows never see each other, and nothing else changes.

    Attributes:
        required: Raw feature columns wanted and the types to read them as (None for a column as it is); None for all,
            as they are.

    A transform with an attribute ``others`` that is true gets all other columns, too, as they are.
    """

    @property
    def required(self) -> Required: ...

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        """Returns features and labels; raises `RowError` about a row that cannot be used."""


class AsNumpy:
    """The transform of those who want plain arrays: strings become object arrays of `str`; lists wait for a batch."""

    required: Required = None

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        """Returns numpy arrays."""
        return map_columns(_plain, features), map_columns(_plain, labels)


AS_NUMPY = AsNumpy()
"""The one there need be: what was cached with it can be used again."""


def wants_others(transform: Transform | None) -> bool:
    """Whether a transform wants all columns there are, beside those that it requires."""
    return bool(getattr(transform, "others", False))


def apply_transform(transform: Transform, chunk: Chunk) -> Chunk:
    """Returns the chunk transformed.

    Raises:
        DataError: A row cannot be used (says where the row is), or a required column is missing.
    """
    features = chunk.features
    required = transform.required
    if required is not None:
        features = _select(required, chunk, others=wants_others(transform))
    try:
        return chunk.with_columns(*transform(features, chunk.labels))
    except RowError as error:
        raise chunk.error(error) from error


class Applied(Passing):
    """A stream with a function applied to every chunk: row by row, so that positions stay what they are."""

    def __init__(self, function: Callable[[Chunk], Chunk], upstream: Stream) -> None:
        super().__init__(upstream)
        self._function = function

    def next(self) -> Chunk | None:
        chunk = self._upstream.next()
        return None if chunk is None else self._function(chunk)


def _plain(column: Column) -> Column:
    return column if is_lists(column) else to_numpy(column)


def _select(required: dict[str, pa.DataType | None], chunk: Chunk, *, others: bool) -> dict[str, Column]:
    if not required and not others:
        # Who wants no column may still want to know how many rows there are.
        return {"": np.empty((chunk.rows, 0), dtype=np.float32)}
    if not isinstance(chunk.features, dict):
        raise DataError(
            f"{chunk.place(0)}: the model wants the named columns {', '.join(required)}, but the features have no "
            "names; give a dict."
        )
    selected = {name: _required(name, kind, chunk) for name, kind in required.items()}
    return {**chunk.features, **selected} if others else selected


def _required(name: str, kind: pa.DataType | None, chunk: Chunk) -> Column:
    if name not in chunk.features:
        raise missing_column(name, f"the features ({chunk.place(0)})", chunk.features)
    column = chunk.features[name]
    if kind is None:
        return column
    if isinstance(column, np.ndarray) and is_strings(column):
        try:
            column = from_objects(column, name, convert=True)
        except RowError as error:
            raise chunk.error(error) from error
        except InvalidTypeError as error:
            raise DataError(f"{chunk.place(0)}: {error}") from error
    if is_list_type(kind) or (isinstance(column, np.ndarray) and column.ndim == 2 and is_strings(column)):
        column = as_lists(column)
    if is_lists(column):
        return _required_lists(column, name, kind, chunk)
    wanted = _wanted(kind)
    there, what = _content(column)
    if there != wanted:
        integers = isinstance(column, np.ndarray) and column.dtype.kind in "iu" and wanted == "strings"
        cure = _INTEGERS if integers else ""
        raise DataError(f"{chunk.place(0)}: column {name!r} holds {what}, but the model wants {wanted}{cure}.")
    return column


def _required_lists(lists: pa.ListArray, name: str, kind: pa.DataType, chunk: Chunk) -> Column:
    """Returns lists as they are, or, where the model wants some floats of every row, as ``[rows, length]``."""
    value_type = kind.value_type if is_list_type(kind) else kind
    if pa.types.is_null(lists.type.value_type):
        lists = lists.cast(pa.list_(value_type))
    if _wanted(lists.type.value_type) != _wanted(value_type):
        raise DataError(
            f"{chunk.place(0)}: column {name!r} holds lists of {lists.type.value_type}, but the model wants "
            f"{_wanted(value_type)}."
        )
    if is_list_type(kind) or not pa.types.is_floating(kind):
        return lists
    try:
        return as_matrix(lists, name)
    except RowError as error:
        raise chunk.error(error) from error


_INTEGERS = (
    "; make it strings (astype(str), or schema=te.feature_column.schema(columns) of from_parquet), or give a "
    "hash bucket column dtype='int64', a vocabulary column integers, and a crossed_column "
    "categorical_column_with_identity(key, num_buckets) in the place of the key"
)


def _wanted(kind: pa.DataType) -> str:
    return "strings" if pa.types.is_string(kind) or pa.types.is_dictionary(kind) else "numbers"


def _content(column: Column) -> tuple[str, str]:
    """Returns whether a column holds strings, numbers or something else, and the same in more words."""
    if not isinstance(column, np.ndarray):
        return "strings", f"strings (here {column[0].as_py()!r})"
    if column.dtype.kind in "biuf":
        return "numbers", f"numbers ({column.dtype})"
    shape = f" of shape {list(column.shape[1:])} per row" if column.ndim > 1 else ""
    kind = type(column[0]).__name__ if column.dtype == object and column.ndim == 1 else str(column.dtype)
    return "others", f"values of type {kind}{shape}"
