"""Checks of what users give to the makers of columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError

_MOST = 2**63


def plain(value: Any) -> Any:
    """A numpy number as a Python one; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def is_count(value: object, at_least: int) -> bool:
    """Whether a value is an integer from `at_least` up to what 64 bits hold."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value < _MOST


def check_flag(value: object, what: str) -> None:
    """Raises InvalidTypeError unless a value is True or False."""
    if not isinstance(value, bool):
        raise InvalidTypeError(f"{what} must be True or False, but got {value!r}.")


def as_items(values: Any, what: str) -> tuple[Any, ...]:
    """The items of a list, tuple, array or other iterable.

    Raises:
        InvalidTypeError: It is none of these, or a string.
    """
    no_list = isinstance(values, str | bytes) or not isinstance(values, Iterable)
    if no_list or (isinstance(values, np.ndarray) and values.ndim == 0):
        raise InvalidTypeError(f"{what} must be a list, but got {values!r}.")
    return tuple(values)


def check_text(text: str, what: str) -> None:
    """Raises InvalidValueError for a string that UTF-8 cannot express."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{what} is {text!r}, which is not UTF-8 text.") from error
