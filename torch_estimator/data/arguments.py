"""Checks of arguments: counts, column names, and values given by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


def check_count(what: str, value: object, *, at_least: int) -> None:
    """Check that an argument is an `int` that is not too small."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{what} must be a whole number, but got {value!r}.")
    if value < at_least:
        raise InvalidValueError(f"{what} must be at least {at_least}, but got {value}.")


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that occur several times, sorted. Takes linear time, since files may have thousands of columns.

    >>> duplicates(["b", "a", "b"])
    ['b']
    """
    return sorted(name for name, count in Counter(names).items() if count > 1)


def column_names(what: str, given: Sequence[str]) -> tuple[str, ...]:
    """Check an argument that lists column names, and return the names as a tuple."""
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise InvalidTypeError(f"{what} must be a sequence of strings, but got {given!r}.")
    names = tuple(given)
    twice = duplicates(names)
    if twice:
        raise InvalidValueError(f"{what} must be distinct, but {twice[0]!r} is there several times.")
    if not names:
        raise InvalidValueError(f"{what} must not be empty.")
    return names


def by_column(given: Any, what: str, names: Sequence[str] | None) -> dict[str, Any]:
    """Convert an argument with one value per column to a dict by column.

    `given` is a dict by column, a list in the order of `names` (None if that is unknown), or None for no values.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidTypeError(f"{what} must be a dict by column, or a list in their order, but got {given!r}.")
    if names is None:
        raise InvalidValueError(f"{what} in a list need column_names or select_columns; or give a dict by column.")
    if len(given) != len(names):
        raise InvalidValueError(f"{what} must have one entry for each of {len(names)} columns, but has {len(given)}.")
    return dict(zip(names, given, strict=True))


def missing_column(name: str, where: str, names: Iterable[Any], cure: str = "") -> DataError:
    """Return the error for a column that the data does not have.

    `where` names the file or structure that lacks the column, and `names` the columns that the data does have. `cure`,
    from a semicolon on, says what to do if these are not the names.
    """
    available = ", ".join(map(str, names))
    return DataError(f"column {name!r} is not in {where}; the columns there are {available}{cure}.")
