"""Features and labels may be one column, a dict of columns or a tuple of them; these functions see to all three."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch_estimator.data.columns import as_column
from torch_estimator.errors import InvalidValueError


def map_columns(function: Callable[[Any], Any], structure: Any) -> Any:
    """Returns the same structure with ``function`` applied to every column; None stays None.

    >>> map_columns(len, {"x": [1, 2], "y": [3]})
    {'x': 2, 'y': 1}
    """
    if isinstance(structure, dict):
        return {name: map_columns(function, column) for name, column in structure.items()}
    if isinstance(structure, tuple):
        return tuple(map_columns(function, column) for column in structure)
    return None if structure is None else function(structure)


def columns_of(structure: Any) -> Iterator[Any]:
    """Yields the columns of a structure."""
    if isinstance(structure, dict):
        for column in structure.values():
            yield from columns_of(column)
    elif isinstance(structure, tuple):
        for column in structure:
            yield from columns_of(column)
    elif structure is not None:
        yield structure


def as_columns(value: Any, name: str | None = None, *, lists: bool = False) -> Any:
    """Returns a user's features or labels as a structure of columns; see `columns.as_column`."""
    if isinstance(value, Mapping):
        return {key: as_columns(column, str(key), lists=lists) for key, column in value.items()}
    if isinstance(value, tuple):
        return tuple(as_columns(column, name, lists=lists) for column in value)
    return None if value is None else as_column(value, name, lists=lists)


def count_rows(features: Any, labels: Any) -> int:
    """Returns the number of rows that all columns have.

    Raises:
        InvalidValueError: There is no column, or they differ in length.
    """
    lengths = [len(column) for column in columns_of(features)]
    if not lengths:
        raise InvalidValueError("features must hold at least one column, but there is none.")
    lengths += [len(column) for column in columns_of(labels)]
    if len(set(lengths)) > 1:
        raise InvalidValueError(
            f"features and labels must have the same number of rows, but features have "
            f"{map_columns(len, features)} and labels {map_columns(len, labels)}."
        )
    return lengths[0]


def as_pair(value: Any) -> tuple[Any, Any]:
    """Splits what a user gives into features and labels: a tuple or list of two is a pair, anything else features.

    Raises:
        InvalidValueError: A tuple or list of another length.
    """
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise InvalidValueError(
                f"data must be features or a pair (features, labels), but got a {type(value).__name__} of {len(value)}."
            )
        return value[0], value[1]
    return value, None
