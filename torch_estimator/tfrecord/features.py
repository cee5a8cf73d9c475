"""Descriptions of the features of a tf.Example, as in tf.io: `FixedLenFeature`, `VarLenFeature` and others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError

FeatureDtype: TypeAlias = Literal["float32", "int64", "string", "bytes"]

_DTYPES: dict[Any, FeatureDtype] = {
    **dict.fromkeys(("float32", "float", "float64", "double", float), "float32"),
    **dict.fromkeys(("int64", "int", "int32", "long", int), "int64"),
    **dict.fromkeys(("string", "str", "object", str), "string"),
    **dict.fromkeys(("bytes", "binary", bytes), "bytes"),
}


@dataclass(frozen=True, slots=True)
class FixedLenFeature:
    """Feature with the same number of values in every tf.Example. Its column is an array ``[rows, *shape]``.

    Attributes:
        shape: Shape of one row's values; ``[]`` for one value.
        dtype: ``"float32"``, ``"int64"``, ``"string"`` (UTF-8 text) or ``"bytes"`` (any bytes, such as an image).
        default_value: Value of rows that lack the feature: one value, or as many as `shape` holds. None makes a missing
            feature an error.

    Raises:
        InvalidTypeError: The shape, the dtype or the default has another type.
        InvalidValueError: The shape has a size below 1, or the default another number of values.

    >>> te.data.FixedLenFeature([2], "float32", default_value=[0.0, 1.0])
    FixedLenFeature(shape=(2,), dtype='float32', default_value=(0.0, 1.0))
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _sizes(self))
        object.__setattr__(self, "dtype", as_feature_dtype(self.dtype))
        if self.default_value is not None:
            object.__setattr__(self, "default_value", self._default())

    @property
    def size(self) -> int:
        """Number of values in a row."""
        return math.prod(self.shape)

    def _default(self) -> tuple[Any, ...]:
        given = self.default_value
        values = np.asarray(given, dtype=object).reshape(-1).tolist() if not isinstance(given, str | bytes) else [given]
        if len(values) == 1:
            values *= self.size
        if len(values) != self.size:
            raise InvalidValueError(
                f"the default of a FixedLenFeature of shape {list(self.shape)} must have {self.size} values, but got "
                f"{given!r}."
            )
        return tuple(_checked(value, self.dtype) for value in values)


@dataclass(frozen=True, slots=True)
class FixedLenSequenceFeature:
    """Feature with any number of steps, each with the same number of values. Its column holds lists of them.

    `batch` pads the lists to an array ``[rows, steps, *shape]``, and `padded_batch` adds their lengths, which
    tf.io.parse_sequence_example returns apart. In a tf.Example the steps are one after the other in one list.

    Attributes:
        shape: Shape of one step's values; ``[]`` for one value.
        dtype: As in `FixedLenFeature`.
        allow_missing: Whether a row without the feature has no steps; otherwise it is an error.
        default_value: The padding in TensorFlow, None or 0 ('' for text). Other padding is an argument of
            `padded_batch`.

    Raises:
        InvalidTypeError: The shape or the dtype has another type.
        InvalidValueError: The shape has a size below 1, or `default_value` is another value.

    >>> te.data.FixedLenSequenceFeature([], "int64", allow_missing=True)
    FixedLenSequenceFeature(shape=(), dtype='int64', allow_missing=True, default_value=None)
    """

    shape: Sequence[int]
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _sizes(self))
        object.__setattr__(self, "dtype", as_feature_dtype(self.dtype))
        if self.default_value not in (None, 0, "", b""):
            raise InvalidValueError(
                f"the default_value of a FixedLenSequenceFeature must be None, but got {self.default_value!r}; pad the "
                "lists with padded_batch(padding_values=…)."
            )

    @property
    def size(self) -> int:
        """Number of values in a step."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class VarLenFeature:
    """Feature with any number of values. Its column holds lists, and `batch` pads them; a missing list is empty.

    In the feature lists of SequenceExamples each step has any number of values, and `batch` pads to
    ``[rows, steps, values]``.

    Attributes:
        dtype: As in `FixedLenFeature`.

    >>> te.data.VarLenFeature("string")
    VarLenFeature(dtype='string')
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_feature_dtype(self.dtype))


@dataclass(frozen=True, slots=True)
class RaggedFeature:
    """Feature with any number of values, as `VarLenFeature`, whose column may have another name than the feature.

    Attributes:
        dtype: As in `FixedLenFeature`.
        value_key: Name of the feature in the tf.Example; None for the name of the column.

    >>> te.data.RaggedFeature("int64", value_key="ids")
    RaggedFeature(dtype='int64', value_key='ids')
    """

    dtype: Any
    value_key: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_feature_dtype(self.dtype))


@dataclass(frozen=True, slots=True)
class SparseFeature:
    """Numbers of a sparse vector: one feature with their indices, one with their values.

    The column is a dense array ``[rows, size]``, with 0 where no value is.

    Attributes:
        index_key: Name of the feature with the indices, from 0.
        value_key: Name of the feature with the values.
        dtype: Type of the values, ``"float32"`` or ``"int64"``.
        size: Number of columns of the array.

    Raises:
        InvalidTypeError: The values are not numbers, or the size is not a whole number.

    >>> te.data.SparseFeature("ids", "weights", "float32", 100)
    SparseFeature(index_key='ids', value_key='weights', dtype='float32', size=100)
    """

    index_key: str
    value_key: str
    dtype: Any
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_feature_dtype(self.dtype))
        if self.dtype not in ("float32", "int64"):
            raise InvalidTypeError(
                f"a SparseFeature holds numbers, but its dtype is {self.dtype!r}; VarLenFeature reads strings."
            )
        if type(self.size) is not int or self.size < 1:
            raise InvalidTypeError(f"the size of a SparseFeature must be a whole number from 1, but got {self.size!r}.")


Feature: TypeAlias = FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | RaggedFeature | SparseFeature
ListFeature: TypeAlias = FixedLenSequenceFeature | VarLenFeature | RaggedFeature
ServedFeature: TypeAlias = FixedLenFeature | FixedLenSequenceFeature | VarLenFeature
FeatureSpec: TypeAlias = Mapping[str, Feature]


@dataclass(frozen=True, slots=True)
class FeatureList:
    """Feature list of a SequenceExample, whose steps all have the same feature."""

    feature: ListFeature

    @property
    def step(self) -> FixedLenFeature | VarLenFeature:
        """Feature of one step."""
        one = self.feature
        return (
            FixedLenFeature(one.shape, one.dtype)
            if isinstance(one, FixedLenSequenceFeature)
            else VarLenFeature(one.dtype)
        )


def as_feature_lists(given: Any) -> dict[str, FeatureList]:
    """Check a dict of the features of feature lists by the name of their column.

    Raise if it is empty or something else.
    """
    spec = as_feature_spec(given)
    for name, feature in spec.items():
        if not isinstance(feature, ListFeature):
            raise InvalidTypeError(
                f"a feature list is read by FixedLenSequenceFeature, VarLenFeature or RaggedFeature, but the "
                f"sequence_schema has {name!r}: {feature!r}."
            )
    return {name: FeatureList(feature) for name, feature in spec.items()}  # type: ignore[arg-type]


def as_feature_spec(given: Any) -> dict[str, Feature]:
    """Check a dict of features by the name of their column, and return a copy.

    Raise if it is empty or something else.
    """
    if not isinstance(given, Mapping):
        raise InvalidTypeError(f"a feature spec must be a dict of features by name, but got {given!r}.")
    if not given:
        raise InvalidValueError("a feature spec must hold at least one feature, but it is empty.")
    for name, feature in given.items():
        if not isinstance(name, str) or not isinstance(feature, Feature):
            raise InvalidTypeError(
                f"a feature spec must hold FixedLenFeature, FixedLenSequenceFeature, VarLenFeature, RaggedFeature or "
                f"SparseFeature by name, but has {name!r}: {feature!r}."
            )
    return dict(given)


def as_feature_dtype(given: Any) -> FeatureDtype:
    """Convert the name of a type, a Python type, or a numpy, torch, Arrow or TensorFlow type.

    Raise an InvalidTypeError if a tf.Example cannot hold values of this type.
    """
    if isinstance(given, type) and given in _DTYPES:
        return _DTYPES[given]
    name = getattr(given, "name", None)
    if isinstance(given, type):
        name = np.dtype(given).name
    text = name if isinstance(name, str) else str(given).removeprefix("torch.")
    if text not in _DTYPES:
        raise InvalidTypeError(
            f"a feature holds 'float32', 'int64', 'string' (text) or 'bytes' (such as images), but got {given!r}."
        )
    return _DTYPES[text]


def _sizes(feature: FixedLenFeature | FixedLenSequenceFeature) -> tuple[int, ...]:
    kind, shape = type(feature).__name__, feature.shape
    sizes = (shape,) if isinstance(shape, int) else shape
    if isinstance(sizes, str) or not all(type(size) is int for size in sizes):
        raise InvalidTypeError(f"the shape of a {kind} must hold whole numbers, but got {shape!r}.")
    if any(size < 1 for size in sizes):
        raise InvalidValueError(
            f"the sizes of a {kind} must be at least 1, but got {list(sizes)}; VarLenFeature reads lists of any length."
        )
    return tuple(sizes)


def _checked(value: Any, dtype: FeatureDtype) -> Any:
    """Return a default as a Python value of its feature's type."""
    if dtype in ("string", "bytes"):
        if isinstance(value, str | bytes):
            text = value.encode() if isinstance(value, str) else value
            return text if dtype == "bytes" else text.decode()
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        if dtype == "float32":
            return float(value)
        if int(value) == value:
            return int(value)
    raise InvalidTypeError(f"the default of a feature of {dtype} must be {_IN_WORDS[dtype]}, but got {value!r}.")


_IN_WORDS = {"float32": "a number", "int64": "a whole number", "string": "text", "bytes": "bytes"}
