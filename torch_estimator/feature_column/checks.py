"""Checks and conversions of the arguments that users give to feature columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError

_INT64_END = 2**63


def set_fields(column: object, **values: Any) -> None:
    """Set fields of a frozen dataclass. Only the dataclass's `__post_init__` may call this, to convert arguments."""
    for name, value in values.items():
        object.__setattr__(column, name, value)


def plain(value: Any) -> Any:
    """Return a numpy number as a Python number, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def is_count(value: object, at_least: int) -> bool:
    """Return whether a value is an integer from `at_least` to the largest int64."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value < _INT64_END


def check_flag(value: object, what: str) -> None:
    """Raise InvalidTypeError unless a value is True or False; `what` names the value in the message."""
    if not isinstance(value, bool):
        raise InvalidTypeError(f"{what} must be True or False, but got {value!r}.")


def check_key(key: object) -> None:
    """Raise InvalidValueError unless `key`, the name of a raw column, is a non-empty string of valid text."""
    if not isinstance(key, str) or not key:
        raise InvalidValueError(
            f"key must be a non-empty string that names a raw column, but got {key!r} ({type(key).__name__})."
        )
    check_text(key, "key")


def check_text(text: str, what: str) -> None:
    """Raise InvalidValueError for a string that UTF-8 cannot encode; `what` names the string in the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{what} is {text!r}, which is not UTF-8 text.") from error


def check_number_dtype(dtype: str, of: str) -> None:
    """Raise InvalidValueError unless a dtype name is numeric; `of` says in the message what has the dtype."""
    if not (is_integer(dtype) or is_float(dtype)):
        raise InvalidValueError(f"dtype of {of} must be an integer or floating-point type, but got {dtype!r}.")


def as_items(values: Any, what: str) -> tuple[Any, ...]:
    """Return the items of an iterable other than a string as a tuple."""
    no_list = isinstance(values, str | bytes) or not isinstance(values, Iterable)
    if no_list or (isinstance(values, np.ndarray) and values.ndim == 0):
        raise InvalidTypeError(f"{what} must be a list, but got {values!r}.")
    return tuple(values)


def dtype_name(dtype: Any) -> str:
    """Return the plain name of a dtype (``"string"``, ``"int64"``, ``"float32"``), or an unknown name unchanged."""
    if dtype is str or dtype is bytes:
        return "string"
    if isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    name = str(dtype)
    if name in ("string", "str", "object", "large_string", "utf8"):
        return "string"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return np.dtype(dtype if isinstance(dtype, type) else name).name
    except (TypeError, ValueError):
        return name


def value_dtype_name(dtype: Any) -> str:
    """Return the name of a dtype as categorical columns use it: ``"int64"`` for every integer dtype."""
    name = dtype_name(dtype)
    return "int64" if is_integer(name) else name


def is_integer(name: str) -> bool:
    """Return whether a dtype name, such as ``"uint8"``, is the name of an integer type."""
    return name.startswith(("int", "uint"))


def is_float(name: str) -> bool:
    """Return whether a dtype name, such as ``"bfloat16"``, is the name of a floating-point type."""
    return name.startswith(("float", "bfloat", "double", "half"))
