"""A chunk: some rows of all raw columns. It caches results, so that each column is read and encoded only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from torch_estimator.feature_column.raw_feature import RawDtype, RawFeature
from torch_estimator.feature_column.raw_values import (
    Distinct,
    Lists,
    RawColumn,
    distinct_integers,
    distinct_strings,
    integers,
    list_integers,
    list_numbers,
    list_values,
    numbers,
)

_T = TypeVar("_T")


class Chunk:
    """Some rows of all raw columns, and a cache of the results computed from them."""

    def __init__(self, columns: Mapping[str, RawColumn], rows: int, features: Mapping[str, RawFeature]) -> None:
        self.rows = rows
        self._columns = columns
        self._features = features
        self._done: dict[object, object] = {}

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """Return the cached result for `key`; call `make` to compute the result if there is none yet."""
        if key not in self._done:
            self._done[key] = make()
        return self._done[key]  # type: ignore[return-value]

    def encoded(self, encoder: Callable[[Chunk], _T]) -> _T:
        """Return the encoder's result for this chunk; call the encoder only if the result is not cached."""
        if encoder not in self._done:
            self._done[encoder] = encoder(self)
        return self._done[encoder]  # type: ignore[return-value]

    def values(self, key: str, dtype: RawDtype) -> Distinct:
        """Return a column of strings or integers as distinct values and, for each row, the index of its value."""
        read = distinct_strings if dtype == "string" else distinct_integers
        return self.once((key, dtype), lambda: read(self._columns[key], key))

    def integers(self, key: str) -> npt.NDArray[np.int64]:
        """Return a raw column of integers, int64 ``[rows]``, with -1 for a missing value."""
        return self.once((key, "integers"), lambda: integers(self._columns[key], key))

    def numbers(self, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return a raw column of numbers, float32 ``[rows, *shape]``, with its default for a missing value.

        NaN is a missing value, too. Without a default, a missing value is NaN.
        """
        return self.once((key, "filled", shape), lambda: self._filled(key, self.unfilled(key, shape)))

    def unfilled(self, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return a raw column of numbers, float32 ``[rows, *shape]``, with NaN for a missing value."""
        return self.once((key, "numbers", shape), lambda: self._numbers(key, shape))

    def _numbers(self, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        column = self._columns[key]
        if isinstance(column, np.ndarray) and column.shape[1:] == (0,) and self._features[key].default is not None:
            # The vectors of all rows are missing.
            return np.full((self.rows, *shape), np.nan, np.float32)
        return numbers(column, key, shape)

    def _filled(self, key: str, given: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        default = self._features[key].default
        if default is None or not (missing := np.isnan(given)).any():
            return given
        return np.where(missing, np.array(default, np.float32).reshape(given.shape[1:]), given)

    def list_values(self, key: str, dtype: RawDtype) -> Lists[Distinct]:
        """Return a column of lists of strings or integers as distinct values, their indices, and row offsets."""
        return self.once((key, dtype, "lists"), lambda: list_values(self._columns[key], key, dtype))

    def list_integers(self, key: str) -> Lists[npt.NDArray[np.int64]]:
        """Return a column of lists of integers as flat integers and row offsets, with -1 for a missing value."""
        return self.once((key, "integer lists"), lambda: list_integers(self._columns[key], key))

    def list_numbers(self, key: str) -> Lists[npt.NDArray[np.float32]]:
        """Return a column of lists of numbers as flat numbers and row offsets, with NaN for a missing value."""
        return self.once((key, "number lists"), lambda: list_numbers(self._columns[key], key))
