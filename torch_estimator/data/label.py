"""Which column is the label, and what its values mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Column, from_objects, is_strings, to_numpy
from torch_estimator.data.stream import Passing, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Takes a column out of the features and makes it the labels.

    Attributes:
        column: Name of the column.
        mapping: Raw value -> number, or None to leave the values as they are.
    """

    column: str
    mapping: Mapping[Any, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InvalidTypeError(f"label must be the name of a column, but got {self.column!r}.")
        if self.mapping is not None and not self.mapping:
            raise InvalidValueError(f"the mapping of label {self.column!r} must not be empty.")

    def apply(self, column: Column) -> Column:
        """Returns the labels that a raw column stands for.

        Raises:
            RowError: A value is not in the mapping.
        """
        if self.mapping is None:
            return column
        if isinstance(column, np.ndarray):
            distinct, indices = np.unique(column, return_inverse=True)
            values = distinct.tolist()
            indices = indices.reshape(-1)
        else:
            encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
            values, indices = encoded.dictionary.to_pylist(), to_numpy(encoded.indices)
        known = np.array([value in self.mapping for value in values], dtype=bool)
        if not known[indices].all():
            row = int(np.flatnonzero(~known[indices])[0])
            raise RowError(f"unknown label {values[indices[row]]!r}; expected {self._choices()}", row=row)
        lookup = np.array([self.mapping.get(value, 0) for value in values])
        return np.asarray(lookup[indices])

    def extract(self, chunk: Chunk) -> Chunk:
        """Returns the chunk with its label column made the labels."""
        if not isinstance(chunk.features, dict) or self.column not in chunk.features:
            there = (
                f"the columns there are {', '.join(chunk.features)}"
                if isinstance(chunk.features, dict)
                else ("the features have no names")
            )
            raise DataError(f"{chunk.place(0)}: label column {self.column!r} is not there; {there}.")
        features = {name: column for name, column in chunk.features.items() if name != self.column}
        labelled = Chunk(features, None, chunk.rows, chunk.place, self.column)
        column = chunk.features[self.column]
        try:
            if isinstance(column, np.ndarray) and is_strings(column):
                column = from_objects(column, self.column, convert=True)
            labelled.labels = self.apply(column)
        except RowError as error:
            raise labelled.error(error) from error
        return labelled

    def stream(self, upstream: Stream) -> Stream:
        """Returns ``upstream`` with labels."""
        return _Labelled(self, upstream)

    def signature(self) -> str:
        """Labels do not change what a position means."""
        return ""

    def _choices(self) -> str:
        assert self.mapping is not None
        shown = [repr(value) for value in list(self.mapping)[:10]]
        more = len(self.mapping) - len(shown)
        return f"one of {', '.join(shown)}" + (f" or {more} more" if more else "")


class _Labelled(Passing):
    def __init__(self, label: Label, upstream: Stream) -> None:
        super().__init__(upstream)
        self._label = label

    def next(self) -> Chunk | None:
        chunk = self._upstream.next()
        return None if chunk is None else self._label.extract(chunk)
