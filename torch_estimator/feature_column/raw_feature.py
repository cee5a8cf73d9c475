"""The raw inputs that feature columns read: what has to be parsed, and what a served model takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import check_text

RawDtype = Literal["string", "float32", "int64"]

LISTS = (-1,)
"""The shape of one row's value where rows hold lists of any length."""

MISSING_INTEGER = -1
"""The integer that is a missing value to a categorical column: it has no id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawFeature:
    """One raw input of a model.

    Attributes:
        key: Name of the raw column.
        dtype: ``"string"``, ``"float32"`` or ``"int64"``.
        shape: Shape of one row's value; ``(1,)`` for a plain column, `LISTS` where rows hold lists of any length.
        default: What parsing puts in for a missing value, flattened to the shape's size; None where a value
            is required.
        missing: What stands for a missing value in the column itself, or in a list: `MISSING_INTEGER` for integers that
            only categorical columns read; None where a value is required, or missing ones are ``''``.
    """

    key: str
    dtype: RawDtype
    shape: tuple[int, ...] = (1,)
    default: tuple[float, ...] | None = None
    missing: int | None = None

    @property
    def multivalent(self) -> bool:
        """Whether rows hold lists of any length."""
        return self.shape == LISTS


def check_key(key: object) -> None:
    """Raises InvalidValueError unless `key` can name a raw column."""
    if not isinstance(key, str) or not key:
        raise InvalidValueError(
            f"key must be a non-empty string that names a raw column, but got {key!r} ({type(key).__name__})."
        )
    check_text(key, "key")


def dtype_name(dtype: Any) -> str:
    """The plain name of a dtype given as a string, a Python type, or a numpy, torch or Arrow dtype."""
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


def is_integer(name: str) -> bool:
    """Whether a name from `dtype_name` is an integer dtype."""
    return name.startswith(("int", "uint"))


def is_float(name: str) -> bool:
    """Whether a name from `dtype_name` is a floating-point dtype."""
    return name.startswith(("float", "bfloat", "double", "half"))


def categorical_feature(key: str, dtype: RawDtype, *, multivalent: bool) -> RawFeature:
    """The raw column of a categorical column, whose missing values have no id."""
    missing = MISSING_INTEGER if dtype == "int64" else None
    return RawFeature(key=key, dtype=dtype, shape=LISTS if multivalent else (1,), missing=missing)


def merge_raw_features(features: Iterable[RawFeature]) -> dict[str, RawFeature]:
    """One raw feature per key, in key order.

    Raises:
        InvalidValueError: Two columns read the same key with another dtype, shape or default.
    """
    merged: dict[str, RawFeature] = {}
    for feature in features:
        known = merged.setdefault(feature.key, feature)
        if known.dtype == feature.dtype and known.multivalent != feature.multivalent:
            raise InvalidValueError(
                f"raw column {feature.key!r} holds lists for one feature column and one value per row for another; "
                "give both multivalent=True or neither (a crossed_column names its lists: multivalent=[...])."
            )
        if (known.dtype, known.shape) != (feature.dtype, feature.shape):
            raise InvalidValueError(
                f"raw column {feature.key!r} is read as {known.dtype} of shape {known.shape} by one feature "
                "column and as "
                f"{feature.dtype} of shape {feature.shape} by another; give both the same dtype and shape."
            )
        defaults = {one.default for one in (known, feature)} - {None}
        if len(defaults) > 1:
            raise InvalidValueError(
                f"raw column {feature.key!r} has the default {known.default} in one feature column and "
                f"{feature.default} in another; give both the same default_value."
            )
        # To a numeric column, -1 is a number.
        missing = known.missing if known.missing == feature.missing else None
        merged[feature.key] = replace(known, default=next(iter(defaults), None), missing=missing)
    return dict(sorted(merged.items(), key=lambda item: item[0].encode()))
