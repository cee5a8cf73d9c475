"""A chunk of raw columns, each decoded at most once however many feature columns read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.numeric import NumericColumn
from torch_estimator.feature_column.raw_lists import Lists, list_numbers, list_values
from torch_estimator.feature_column.raw_values import (
    Distinct,
    RawColumn,
    distinct_integers,
    distinct_strings,
    integers,
    numbers,
)

_T = TypeVar("_T")


class Chunk:
    """Raw columns of the same number of rows, and what was computed from them so far."""

    def __init__(self, columns: Mapping[str, RawColumn], rows: int) -> None:
        self.rows = rows
        self._columns = columns
        self._done: dict[object, object] = {}

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """The result of `make`, which is called the first time only."""
        if key not in self._done:
            self._done[key] = make()
        return self._done[key]  # type: ignore[return-value]

    def values(self, key: str, dtype: str) -> Distinct:
        """The raw column by distinct values, as ``"string"`` or ``"int64"``."""
        read = distinct_strings if dtype == "string" else distinct_integers
        return self.once((key, dtype), lambda: read(self._columns[key], key))

    def integers(self, key: str) -> npt.NDArray[np.int64]:
        """The raw column as integers, int64 ``[rows]``; -1 where missing."""
        return self.once((key, "integers"), lambda: integers(self._columns[key], key))

    def list_values(self, key: str, dtype: str) -> Lists[Distinct]:
        """The raw column of lists by distinct values, as ``"string"`` or ``"int64"``."""
        return self.once((key, dtype, "lists"), lambda: list_values(self._columns[key], key, dtype))

    def list_numbers(self, key: str) -> Lists[npt.NDArray[np.float32]]:
        """The raw column of lists as numbers."""
        return self.once((key, "number lists"), lambda: list_numbers(self._columns[key], key))

    def plain_numbers(self, key: str, width: int) -> npt.NDArray[np.float32]:
        """The raw column as numbers, float32 ``[rows, width]``."""
        return self.once((key, "numbers", width), lambda: numbers(self._columns[key], key, (width,)))

    def numbers(self, column: NumericColumn) -> npt.NDArray[np.float32]:
        """A numeric column's normalised numbers, float32 ``[rows, width]``."""
        return self.once(("numbers", id(column)), lambda: self._numbers(column))

    def _numbers(self, column: NumericColumn) -> npt.NDArray[np.float32]:
        raw = numbers(self._columns[column.key], column.key, column.shape)
        if column.normalizer_fn is not None:
            # A copy, so that a normalizer that works in place cannot change the caller's data.
            raw = _normalized(column, torch.from_numpy(raw.copy()))
        return raw.reshape(self.rows, column.width)


def _normalized(column: NumericColumn, values: torch.Tensor) -> npt.NDArray[np.float32]:
    assert column.normalizer_fn is not None
    with torch.no_grad():
        result = column.normalizer_fn(values)
    if not isinstance(result, torch.Tensor) or result.shape != values.shape:
        got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise InvalidValueError(
            f"normalizer_fn of numeric column {column.name!r} must return a tensor of the shape "
            f"{tuple(values.shape)} "
            f"that it was given, but returned {got}."
        )
    array: npt.NDArray[np.float32] = result.to(torch.float32).numpy()
    return array
