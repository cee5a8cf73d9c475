"""What a source of rows offers to the pipeline: numbered ranges of rows, read in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array
from torch_estimator.data.label import Label
from torch_estimator.data.state import Signature
from torch_estimator.errors import DataError

Required = dict[str, pa.DataType | None] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a pipeline wants of a source.

    Attributes:
        columns: Feature columns and the types to read them as (None for a column as it is), or None for all, as they
            are.
        label: The columns to use as labels, or None.
        shuffled: Whether ranges will be read in a random order.
        also: Feature columns that are wanted as they are, whether or not they are in ``columns``.
        optional: Those of ``columns`` that the source need not have.
        others: Whether all other columns are wanted, too, as they are.
        missing: Column -> what missing integers become that have no default, in lists or not.
    """

    columns: Required = None
    label: Label | None = None
    shuffled: bool = False
    also: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    others: bool = False
    missing: Mapping[str, int] = field(default_factory=dict)

    def names(self, there: Sequence[str]) -> list[str] | None:
        """Returns the feature columns to read of those that are there (or should be); None for all."""
        if self.columns is None:
            return None
        wanted = [name for name in self.columns if name in there or name not in self.optional]
        more = (*self.also, *(there if self.others else ()))
        return list(dict.fromkeys((*wanted, *more)))

    def stand_ins(self, own: Mapping[str, int]) -> dict[str, int]:
        """Returns what missing integers become, by feature column; ``own`` is what the source was told."""
        labels = self.label.columns if self.label is not None else ()
        return {name: value for name, value in {**self.missing, **own}.items() if name not in labels}


class Reader(ABC):
    """An open source.

    Attributes:
        ranges: Number of ranges.
        rows_per_range: How many rows a range has; may be an estimate.
        bytes_per_row: Memory of a row; an estimate.
    """

    ranges: int
    rows_per_range: float
    bytes_per_row: float

    @abstractmethod
    def read(self, ranges: Array) -> Chunk:
        """Returns the rows of the ranges with these numbers, in this order."""

    @abstractmethod
    def signature(self) -> Signature:
        """Returns what a position in this source depends on."""

    @abstractmethod
    def identity(self) -> Signature:
        """Returns what tells that another run reads the very same rows."""


class Source(Protocol):
    """Where a Dataset's rows come from."""

    def open(self, wanted: Wanted) -> Reader:
        """Looks at files, columns and types, without reading all of the data."""


def missing_column(name: str, where: str, names: Any) -> DataError:
    """Returns the error for a column that the data does not have."""
    there = ", ".join(map(str, names))
    return DataError(f"column {name!r} is not in {where}; the columns there are {there}.")
