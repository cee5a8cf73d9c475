"""Checks of arguments: counts, column names, and values given by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


def check_count(what: str, value: object, *, at_least: int) -> None:
    """Check that an argument is an `int` that is not too small.

    Args:
        what: Name of the argument, for messages.
        value: The argument.
        at_least: Smallest valid value.

    Raises:
        InvalidTypeError: The value is not an `int`.
        InvalidValueError: The value is too small.
    """
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
    """Check an argument that lists column names, and return the names as a tuple.

    Args:
        what: Name of the argument, for messages.
        given: The argument.

    Raises:
        InvalidTypeError: The argument is not a sequence of strings.
        InvalidValueError: A name repeats, or the sequence is empty.
    """
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

    Args:
        given: A dict by column, a list in the order of `names`, or None for no values.
        what: Name of the argument, for messages.
        names: The columns in the order that a list follows; None if their order is unknown.

    Raises:
        InvalidTypeError: The argument is neither a dict nor a list.
        InvalidValueError: A list does not have the length of `names`, or the order of the columns is unknown.
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

    Args:
        name: The column.
        where: Name of the file or structure that lacks the column, for the message.
        names: The columns that the data does have.
        cure: What to do if these are not the names, from a semicolon on.
    """
    available = ", ".join(map(str, names))
    return DataError(f"column {name!r} is not in {where}; the columns there are {available}{cure}.")
