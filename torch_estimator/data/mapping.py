"""A user's function on batches, or on many rows at once before there are batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.data import arrow
from torch_estimator.data.chunk import Chunk, chunk_of
from torch_estimator.data.columns import Array, Column, to_numpy
from torch_estimator.data.lists import is_lists
from torch_estimator.data.stream import Passing, Stream
from torch_estimator.data.structure import map_columns
from torch_estimator.errors import InvalidTypeError, InvalidValueError

logger = logging.getLogger("torch_estimator")

_MANY_EMPTY = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Map:
    """Applies ``function`` to the features (and labels, if there are any) of every batch, as numpy arrays.

    A batch that it leaves without rows is skipped.

    Attributes:
        function: The user's.
        of_batches: Whether it sees batches; else pieces of the stream of rows, whose lists are arrays of their own.
    """

    function: Callable[..., Any]
    of_batches: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidTypeError(f"map takes a function, but got {self.function!r}.")

    def stream(self, upstream: Stream) -> Stream:
        """Returns the mapped batches."""
        return _Mapped(upstream, self)

    def signature(self) -> str:
        """What a position depends on."""
        return "map"


class _Mapped(Passing):
    def __init__(self, upstream: Stream, mapping: Map) -> None:
        super().__init__(upstream)
        self._function = mapping.function
        self._of_batches = mapping.of_batches

    def next(self) -> Chunk | None:
        empty = 0
        while (chunk := self._upstream.next()) is not None:
            mapped = self._mapped(chunk)
            if mapped.rows:
                return mapped
            empty += 1
            if empty == _MANY_EMPTY:
                # An endless input of which nothing is left would otherwise wait without a word.
                logger.warning("The function given to map has left no rows of %d batches in a row.", empty)
        return None

    def _mapped(self, chunk: Chunk) -> Chunk:
        as_given = to_numpy if self._of_batches else _row_by_row
        features = map_columns(as_given, chunk.features)
        if chunk.labels is None:
            result = _pair_or_features(self._function(features), features)
        else:
            result = _pair(self._function(features, map_columns(as_given, chunk.labels)))
        mapped = chunk_of(*result, chunk.place)
        if not self._of_batches and mapped.rows != chunk.rows:
            raise InvalidValueError(
                f"the function given to map must return as many rows as it gets, but made {mapped.rows} of "
                f"{chunk.rows}; before batch it sees many rows at once."
            )
        mapped.label_column = chunk.label_column
        return mapped


def _row_by_row(column: Column) -> Array:
    if isinstance(column, np.ndarray) or not is_lists(column):
        return to_numpy(column)
    return arrow.to_numpy(column)


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise InvalidValueError(
            f"the function given to map must return (features, labels) if it gets both, but returned {_kind(result)}."
        )
    return result[0], result[1]


def _pair_or_features(result: Any, features: Any) -> tuple[Any, Any]:
    """Without labels going in, a pair coming out adds some, unless features were a pair themselves."""
    was_pair = isinstance(features, tuple) and len(features) == 2
    if isinstance(result, tuple) and len(result) == 2 and not was_pair:
        return result
    return result, None


def _kind(result: Any) -> str:
    return f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, tuple | list) else "")
