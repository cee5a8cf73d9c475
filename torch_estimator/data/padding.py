"""Making a batch of list-valued columns: padded arrays and, if wanted, the lengths of the rows."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.lists import is_lists, list_lengths, padded
from torch_estimator.data.stream import Passing
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

LENGTH_SUFFIX = "_length"
"""What is added to the name of a list column to name its rows' lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """How the lists of a batch are filled up.

    Attributes:
        values: What with: one value, or one by column; None is 0, False or ''.
        lengths: Whether the rows' lengths are added to the features, as ``<column>_length`` (int64 ``[rows]``).
    """

    values: Any = None
    lengths: bool = False

    def __post_init__(self) -> None:
        for value in self.values.values() if isinstance(self.values, Mapping) else (self.values,):
            if value is not None and not isinstance(value, numbers.Real | str):
                raise InvalidTypeError(
                    f"padding_values must be a number or a string, or a dict of them by column, but got {value!r}."
                )

    def apply(self, chunk: Chunk, length: int | None = None) -> Chunk:
        """Returns a batch without lists.

        Args:
            chunk: The batch.
            length: What all lists are filled up to; None for the longest of the batch, in each column.

        Raises:
            DataError: A list is longer, or there is a column already that has the name of the lengths.
        """
        features = self._padded(chunk.features, None, length, chunk)
        if self.lengths and isinstance(chunk.features, dict):
            features = {**features, **self._lengths(chunk)}
        return chunk.with_columns(features, self._padded(chunk.labels, None, length, chunk))

    def _padded(self, structure: Any, name: str | None, length: int | None, chunk: Chunk) -> Any:
        if isinstance(structure, dict):
            return {key: self._padded(column, key, length, chunk) for key, column in structure.items()}
        if isinstance(structure, tuple):
            return tuple(self._padded(column, name, length, chunk) for column in structure)
        if not is_lists(structure):
            return structure
        if length is not None:
            _check_length(structure, name, length, chunk)
        value = self.values.get(name) if isinstance(self.values, Mapping) else self.values
        try:
            return padded(structure, value=value, length=length)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValueError(
                f"padding_values has {value!r} for column {name!r}, which holds {structure.type.value_type}."
            ) from error

    def _lengths(self, chunk: Chunk) -> dict[str, Any]:
        lengths = {f"{name}{LENGTH_SUFFIX}": list_lengths(c) for name, c in chunk.features.items() if is_lists(c)}
        for name in lengths:
            if name in chunk.features:
                raise DataError(
                    f"{chunk.place(0)}: there is a column {name!r}, which is where the lengths of the lists go; "
                    "rename it."
                )
        return lengths


PLAIN = Padding()
"""With zeros (or ''), to the longest of the batch."""


def has_lists(chunk: Chunk) -> bool:
    """Whether a chunk has list-valued columns."""
    return any(map(is_lists, chunk.columns()))


class PadStream(Passing):
    """Batches that may still hold lists, padded."""

    def next(self) -> Chunk | None:
        chunk = self._upstream.next()
        return PLAIN.apply(chunk) if chunk is not None and has_lists(chunk) else chunk


def _check_length(lists: Any, name: str | None, length: int, chunk: Chunk) -> None:
    lengths = list_lengths(lists)
    if lengths.max(initial=0) > length:
        row = int((lengths > length).argmax())
        which = "a list" if name is None else f"the list in column {name!r}"
        raise DataError(
            f"{chunk.place(row)}: {which} has length {lengths[row]}, but the bucket's batches are padded to {length}; "
            "give more bucket_boundaries."
        )
