"""Checks of the arguments of a Dataset's methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch_estimator.errors import InvalidTypeError, InvalidValueError


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there several times, sorted; there may be many thousands of names.

    >>> repeated(["b", "a", "b"])
    ['b']
    """
    return sorted(name for name, count in Counter(names).items() if count > 1)


def check_count(what: str, value: object, *, at_least: int) -> None:
    """Raises unless ``value`` is a whole number from ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{what} must be a whole number, but got {value!r}.")
    if value < at_least:
        raise InvalidValueError(f"{what} must be at least {at_least}, but got {value}.")
