"""Numeric column: numbers of the data, optionally normalized by a function of the user."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import (
    as_items,
    check_key,
    check_number_dtype,
    dtype_name,
    is_count,
    is_integer,
    plain,
    set_fields,
)
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import Normalizer, NumberColumn
from torch_estimator.feature_column.lowering import Lowering
from torch_estimator.feature_column.raw_feature import RawFeature, with_one_nan


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericColumn(NumberColumn):
    """Column of numbers. Created by `numeric_column`.

    Attributes:
        key: Name of the raw column.
        shape: Shape of one row's value.
        default_value: Numbers that replace a missing value, flattened, or None.
        dtype: Type as which the raw column is parsed.
        normalizer_fn: Function that is applied to the numbers, or None.
        name: Name of the column; by default `key`.

    >>> fc.numeric_column("x", shape=3, default_value=0.0).default_value
    (0.0, 0.0, 0.0)
    """

    key: str
    shape: tuple[int, ...] = (1,)
    default_value: tuple[float, ...] | None = None
    dtype: str = "float32"
    normalizer_fn: Normalizer | None = None
    name: str = ""

    def __post_init__(self) -> None:
        check_key(self.key)
        if not isinstance(self.name, str):
            raise InvalidTypeError(f"name of numeric column {self.key!r} must be a string, but got {self.name!r}.")
        set_fields(self, name=self.name or self.key)
        if not self.shape or not all(is_count(size, 1) for size in self.shape):
            raise InvalidValueError(
                f"shape of numeric column {self.key!r} must be positive integers, but got {self.shape}."
            )
        check_number_dtype(self.dtype, f"numeric column {self.key!r}")
        if self.default_value is not None and len(self.default_value) != self.width:
            raise InvalidValueError(
                f"default_value of numeric column {self.key!r} has {len(self.default_value)} values, "
                f"but its shape {self.shape} needs {self.width}."
            )
        if is_integer(self.dtype) and not all(number.is_integer() for number in self.default_value or ()):
            raise InvalidValueError(
                f"default_value of numeric column {self.key!r} is {self.default_value}, but its dtype is {self.dtype}; "
                "leave out the dtype, since the model gets float32 anyway."
            )
        if self.normalizer_fn is not None and not callable(self.normalizer_fn):
            raise InvalidTypeError(
                f"normalizer_fn of numeric column {self.key!r} must be callable, but got {self.normalizer_fn!r}."
            )

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw column that `key` names: int64 for integer dtypes, else float32."""
        feature = RawFeature(
            key=self.key,
            dtype="int64" if is_integer(self.dtype) else "float32",
            shape=self.shape,
            default=self.default_value,
        )
        return (feature,)

    def encode(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Return the numbers of a chunk before normalization, float32 ``[rows, *shape]``; missing ones are filled."""
        return chunk.numbers(self.key, self.shape)

    def lower(self, lowering: Lowering) -> str:
        """Return the name of a float32 tensor ``[N, width]`` with the numbers before normalization."""
        return lowering.floats(self.key)


def numeric_column(
    key: str,
    shape: int | Iterable[int] = (1,),
    default_value: float | Iterable[Any] | None = None,
    dtype: Any = "float32",
    normalizer_fn: Normalizer | None = None,
    *,
    name: str | None = None,
) -> NumericColumn:
    """Return a column of numbers, one or several per row, optionally normalized.

    Args:
        key: Name of the raw column.
        shape: Shape of one row's value.
        default_value: Number in place of a missing one, which may also be NaN: one number, or numbers of the shape.
            Columns of one key have the same default. None makes a missing number an error in files and exports, while
            NaN stays NaN.
        dtype: Type as which the raw column is parsed. The model always gets float32.
        normalizer_fn: Function that maps a float32 tensor ``[rows, *shape]`` to one of the same shape, row by row. It
            is applied after the default has filled what is missing, and before the numbers are used, also before
            `bucketized_column` cuts them.
        name: Name of the column, where two columns of one key differ, as in `normalizer_fn`; by default `key`.

    Raises:
        InvalidTypeError: `shape` is not a list, or `normalizer_fn` is not callable.
        InvalidValueError: A size of the shape is not positive, the dtype is not numeric, or the default is no number
            of the dtype or has another shape.

    >>> age = fc.numeric_column("age", normalizer_fn=lambda age: (age - 40) / 10)
    >>> fc.FeatureTransform([age])({"age": np.array([20, 45])})["linear/numeric"]
    array([[-2. ],
           [ 0.5]], dtype=float32)
    """
    check_key(key)
    whole = isinstance(shape, int | np.integer)
    given = (shape,) if whole else as_items(shape, f"shape of numeric column {key!r}")
    sizes = tuple(map(plain, given))
    return NumericColumn(
        key=key,
        shape=sizes,
        default_value=_flat_default(key, default_value, sizes),
        dtype=dtype_name(dtype),
        normalizer_fn=normalizer_fn,
        name="" if name is None else name,
    )


def _flat_default(key: str, value: float | Iterable[Any] | None, shape: tuple[int, ...]) -> tuple[float, ...] | None:
    """Return a default value as a flat tuple of numbers, one for each element of a row; None stays None."""
    if value is None:
        return None
    try:
        given = np.asarray(value)
        numbers = given.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_number(key, value) from error
    if given.dtype.kind in "USMmc":
        # Numpy would read the number in a text.
        raise _no_number(key, value)
    if numbers.ndim == 0 and all(is_count(size, 1) for size in shape):
        return with_one_nan((float(numbers),) * math.prod(shape))
    if numbers.shape != shape:
        raise InvalidValueError(
            f"default_value of numeric column {key!r} has the shape {numbers.shape}, but the column has {shape}."
        )
    return with_one_nan(tuple(float(number) for number in numbers.ravel()))


def _no_number(key: str, value: object) -> InvalidValueError:
    return InvalidValueError(f"default_value of numeric column {key!r} must be a number or numbers, but got {value!r}.")
