"""The protocol of sources: rows in numbered ranges that a pipeline reads in any order.

A new source is one file with two classes. A `Source` holds what the user said; a `Reader` is the opened source.
`Dataset.from_source` takes the Source. `tests/data/test_own_source.py` has a complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array
from torch_estimator.data.label import Label
from torch_estimator.data.stream import Signature
from torch_estimator.errors import InvalidValueError

Required = dict[str, pa.DataType | None] | None
"""Columns that a model reads and the types to read them as (None for a column as it is); None for all columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRequest:
    """What a pipeline needs from a source.

    A source may ignore all of it but `label`: the pipeline picks the columns that it needs from those of a chunk.
    Reading only these columns, in the types that are asked for, is faster.

    Attributes:
        columns: Feature columns and the types to read them as (None for a column as it is). None for all columns.
        label: The columns to use as labels, or None; see `labelled`.
        shuffled: Whether ranges will be read in random order.
        extra: Feature columns to read as they are, whether or not they are in `columns`.
        optional: Columns of `columns` that the source may lack.
        others: Whether to read all other columns, too, as they are.
        missing: Column -> the integer that a missing integer without a default becomes, in lists or not.
    """

    columns: Required = None
    label: Label | None = None
    shuffled: bool = False
    extra: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    others: bool = False
    missing: Mapping[str, int] = field(default_factory=dict)

    def names(self, available: Sequence[str]) -> list[str] | None:
        """Return the feature columns to read, also those that should be available but are not; None for all."""
        if self.columns is None:
            return None
        wanted = [name for name in self.columns if name in available or name not in self.optional]
        more = (*self.extra, *(available if self.others else ()))
        return list(dict.fromkeys((*wanted, *more)))

    def missing_integers(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return the integers that missing ones become, by feature column.

        Args:
            given: Integers by column that the source's schema gives; they go before those of the request.
        """
        labels = self.label.columns if self.label is not None else ()
        return {name: value for name, value in {**self.missing, **given}.items() if name not in labels}

    def labelled(self, chunk: Chunk) -> Chunk:
        """Return a chunk with the label columns moved from its features to its labels, if the request has a label."""
        return chunk if self.label is None else self.label.extract(chunk)


class Reader(ABC):
    """An open source: its rows are divided into ranges, which are numbered from 0.

    Small ranges let a pipeline shuffle well, since it reads a random choice of ranges at a time. Many ranges are read
    in one call.

    Attributes:
        ranges: Number of ranges.
        rows_per_range: Mean number of rows in a range; may be an estimate.
        bytes_per_row: Memory of a row in bytes; an estimate.
    """

    ranges: int
    rows_per_range: float
    bytes_per_row: float

    @abstractmethod
    def read(self, ranges: Array) -> Chunk:
        """Return the rows of some ranges.

        Args:
            ranges: Numbers of the ranges, integers ``[n]``; rows come in this order.
        """

    @abstractmethod
    def signature(self) -> Signature:
        """Return what a saved position in this source depends on, with the kind of source under ``"source"``."""

    def identity(self) -> Signature:
        """Return what is equal only if another run reads exactly the same values, for caches in files.

        Raises:
            InvalidValueError: The source cannot tell, which is the default.
        """
        raise InvalidValueError(
            f"{type(self).__name__} cannot tell whether it reads the same rows in another run; use cache() without a "
            "filename."
        )


class Source(Protocol):
    """Where the rows of a Dataset come from."""

    def open(self, request: ReadRequest) -> Reader:
        """Return a reader. Looks at files, columns and types, but does not read all data."""
