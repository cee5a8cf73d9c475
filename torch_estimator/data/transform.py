"""Transforms: a model's preprocessing of raw columns on the CPU, inside the input pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from torch_estimator import tree
from torch_estimator.data.arguments import missing_column
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Column, from_objects, is_strings, to_numpy
from torch_estimator.data.lists import as_lists, as_matrix, fill_empty, is_list_type, is_lists
from torch_estimator.data.sources.base import Required
from torch_estimator.errors import DataError, InvalidTypeError, RowError


class Transform(Protocol):
    """Function from raw columns to arrays. A transform treats every row independently and has no side effects.

    A transform may have four more attributes:

    - ``others``: if true, the transform also gets all other columns, without conversion.
    - ``missing``: column -> the number that replaces a missing one.
    - ``list_padding``: column -> the value that lists are padded with if a `map` gets them as batches.
    - ``see_names``: function that is called with the names of the columns of the input, once or more often.

    Attributes:
        required: Raw feature columns to read and the types to read them as (None to keep a column's type); None for all
            columns without conversion.

    >>> class Centimeters:
    ...     required = {"inches": None}
    ...
    ...     def __call__(self, features, labels):
    ...         return {"cm": features["inches"] * 2.54}, labels
    >>> with te.data.Dataset.from_arrays({"inches": [1.0, 10.0]}).batch(2).iterator(Centimeters()) as batches:
    ...     next(batches).features["cm"]
    array([ 2.54, 25.4 ])
    """

    @property
    def required(self) -> Required:
        """The raw columns to read, with the type to read each as; None for all columns."""

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        """Return the transformed features and labels of some rows.

        Args:
            features: Columns by name, or all features in the structure of the input if `required` is None.
            labels: Labels of the rows, or None.

        Raises:
            RowError: A row cannot be used.
        """


class AsNumpy:
    """Transform that converts columns, except columns of lists, to numpy arrays. Strings become `str` objects."""

    required: Required = None

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        """Return the same features and labels as numpy arrays. Columns of lists stay Arrow arrays."""
        return tree.map(_plain, features), tree.map(_plain, labels)


AS_NUMPY = AsNumpy()
"""Shared instance of `AsNumpy`. All iterators use the same one, so that they share the rows of a cache."""


def wants_others(transform: Transform | None) -> bool:
    """Return whether a transform asks for the columns outside of its `required` as well.

    If `required` is None, the transform gets all columns anyway.
    """
    return bool(getattr(transform, "others", False))


def apply_transform(transform: Transform, chunk: Chunk) -> Chunk:
    """Return a chunk with the same rows, but with the features and labels that the transform returns."""
    features = chunk.features
    required = transform.required
    see_names = getattr(transform, "see_names", None)
    if see_names is not None and isinstance(features, dict):
        see_names(list(features))
    if required is not None:
        missing = getattr(transform, "missing", {})
        features = _select(required, chunk, missing, others=wants_others(transform))
    try:
        return chunk.with_columns(*transform(features, chunk.labels))
    except RowError as error:
        raise chunk.error(error) from error


def _plain(column: Column) -> Column:
    return column if is_lists(column) else to_numpy(column)


def _select(
    required: dict[str, pa.DataType | None], chunk: Chunk, missing: Mapping[str, float], *, others: bool
) -> dict[str, Column]:
    if not required and not others:
        # A model without columns may still need the number of rows, so return an array of rows without values.
        return {"": np.empty((chunk.rows, 0), dtype=np.float32)}
    if not isinstance(chunk.features, dict):
        raise DataError(
            f"{chunk.locate(0)}: the model wants the named columns {', '.join(required)}, but the features have no "
            "names; give a dict."
        )
    selected = {name: _required(name, kind, chunk, missing.get(name)) for name, kind in required.items()}
    return {**chunk.features, **selected} if others else selected


def _required(name: str, kind: pa.DataType | None, chunk: Chunk, missing: float | None) -> Column:
    """Return a column of a chunk. Convert the column if the model reads strings or lists from it."""
    if name not in chunk.features:
        raise missing_column(name, f"the features ({chunk.locate(0)})", chunk.features)
    column = chunk.features[name]
    if kind is None:
        return column
    if isinstance(column, np.ndarray) and is_strings(column):
        try:
            column = from_objects(column, name, convert=True, missing=missing)
        except RowError as error:
            raise chunk.error(error) from error
        except InvalidTypeError as error:
            raise DataError(f"{chunk.locate(0)}: {error}") from error
    if is_list_type(kind) or (isinstance(column, np.ndarray) and column.ndim == 2 and is_strings(column)):
        column = as_lists(column)
    if is_lists(column):
        return _required_lists(column, name, kind, chunk, missing)
    wanted = _content_of_type(kind)
    if missing is not None and pa.types.is_integer(kind):
        column = _whole(column, missing)
    found, what = _content(column)
    if found != wanted:
        integers = isinstance(column, np.ndarray) and column.dtype.kind in "iu" and wanted == "strings"
        cure = _INTEGERS if integers else ""
        raise DataError(f"{chunk.locate(0)}: column {name!r} holds {what}, but the model wants {wanted}{cure}.")
    return column


def _whole(column: Column, missing: float) -> Column:
    """Return floats that are whole numbers or NaN as int64, with `missing` for NaN, or any other column unchanged.

    pandas and numpy make floats of integers if one is missing.
    """
    if not isinstance(column, np.ndarray) or column.dtype.kind != "f":
        return column
    numbers = np.where(np.isnan(column), missing, column)
    exact = np.abs(numbers) <= 2.0 ** (np.finfo(column.dtype).nmant + 1)
    return numbers.astype(np.int64) if (exact & (numbers == np.rint(numbers))).all() else column


def _required_lists(lists: pa.ListArray, name: str, kind: pa.DataType, chunk: Chunk, missing: float | None) -> Column:
    """Return a column of lists unchanged, or as an array ``[rows, length]`` if the model reads vectors of floats.

    A vector that is missing, which readers make an empty list, holds the number `missing` throughout.
    """
    value_type = kind.value_type if is_list_type(kind) else kind
    if pa.types.is_null(lists.type.value_type):
        lists = lists.cast(pa.list_(value_type))
    if _content_of_type(lists.type.value_type) != _content_of_type(value_type):
        raise DataError(
            f"{chunk.locate(0)}: column {name!r} holds lists of {lists.type.value_type}, but the model wants "
            f"{_content_of_type(value_type)}."
        )
    if is_list_type(kind) or not pa.types.is_floating(kind):
        return lists
    try:
        return as_matrix(lists if missing is None else fill_empty(lists, missing), name)
    except RowError as error:
        raise chunk.error(error) from error


_INTEGERS = (
    "; make it strings (astype(str), or schema=te.feature_column.schema(columns) of from_parquet), or give a "
    "hash bucket column dtype='int64', a vocabulary column integers, and a crossed_column "
    "categorical_column_with_identity(key, num_buckets) in the place of the key"
)


def _content_of_type(kind: pa.DataType) -> str:
    return "strings" if pa.types.is_string(kind) or pa.types.is_dictionary(kind) else "numbers"


def _content(column: Column) -> tuple[str, str]:
    """Return "strings", "numbers" or "others", and a longer description of a column's values for messages."""
    if not isinstance(column, np.ndarray):
        return "strings", f"strings (here {column[0].as_py()!r})"
    if column.dtype.kind in "biuf":
        return "numbers", f"numbers ({column.dtype})"
    shape = f" of shape {list(column.shape[1:])} per row" if column.ndim > 1 else ""
    kind = type(column[0]).__name__ if column.dtype == object and column.ndim == 1 else str(column.dtype)
    return "others", f"values of type {kind}{shape}"
