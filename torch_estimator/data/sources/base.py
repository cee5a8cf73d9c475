"""The interface of data sources. A source divides its rows into numbered ranges, which can be read in any order.

A new source is one file with two classes. A `Source` holds the user's arguments; a `Reader` is the opened source.
`Dataset.from_source` takes the Source. `tests/data/test_own_source.py` has a complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import DEFAULT_CURE, LABEL_CURE, Array
from torch_estimator.data.label import Label
from torch_estimator.data.stream import Signature
from torch_estimator.errors import InvalidValueError

Required = dict[str, pa.DataType | None] | None
"""Columns that a model reads and the types to read them as (None to keep a column's type); None for all columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRequest:
    """Columns, types and labels that a pipeline asks a source to read.

    A source may ignore every attribute but `label`: the pipeline picks the columns that it needs from a chunk. Reading
    only these columns, in the requested types, is faster.

    Attributes:
        columns: Feature columns and the types to read them as (None to keep a column's type). None for all columns.
        label: The columns to use as labels, or None; see `labelled`.
        shuffled: Whether ranges will be read in random order.
        extra: Feature columns to read without conversion, whether or not they are in `columns`.
        optional: Columns of `columns` that the source may lack.
        others: Whether to read all other columns, too, without conversion.
        missing: Column -> the number that replaces a missing one without a default, also in lists.
        see_names: Function that `names` calls with the columns that the source has, or None.

    >>> import pyarrow as pa
    >>> request = te.data.ReadRequest(columns={"age": pa.float32(), "job": None}, missing={"age": -1})
    >>> request.names(available=["id", "age", "job"])
    ['age', 'job']
    >>> request.missing_integers({"id": 0})
    {'age': -1, 'id': 0}
    >>> chunk = te.data.Chunk({"age": np.array([31.0])}, None, 1, lambda row: f"row {row}")
    >>> request.labelled(chunk) is chunk
    True
    """

    columns: Required = None
    label: Label | None = None
    shuffled: bool = False
    extra: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    others: bool = False
    missing: Mapping[str, float] = field(default_factory=dict)
    see_names: Callable[[Sequence[str]], None] | None = None

    def names(self, available: Sequence[str]) -> list[str] | None:
        """Return the feature columns to read, also required columns that the source lacks; None for all columns.

        Args:
            available: Columns that the source has.
        """
        if self.see_names is not None:
            self.see_names(available)
        if self.columns is None:
            return None
        wanted = [name for name in self.columns if name in available or name not in self.optional]
        more = (*self.extra, *(available if self.others else ()))
        return list(dict.fromkeys((*wanted, *more)))

    def missing_integers(self, given: Mapping[str, float]) -> dict[str, float]:
        """Return, by feature column, the number that replaces a missing one.

        Args:
            given: Numbers by column from the source's schema; they take precedence over those of the request.
        """
        labels = self.label.columns if self.label is not None else ()
        return {name: value for name, value in {**self.missing, **given}.items() if name not in labels}

    def labelled(self, chunk: Chunk) -> Chunk:
        """Return a chunk with the label columns moved from its features to its labels, if the request has a label.

        Args:
            chunk: Rows whose features include the label columns.
        """
        return chunk if self.label is None else self.label.extract(chunk)


def cure_of_missing(request: ReadRequest, name: str) -> str:
    """Return the cure in the error for a missing number of a column, to be formatted with the column's name."""
    return LABEL_CURE if request.label is not None and name in request.label.columns else DEFAULT_CURE


class Reader(ABC):
    """Opened source. Its rows are divided into ranges, which are numbered from 0 and can be read in any order.

    Small ranges let a pipeline shuffle well, since it reads a random choice of ranges at a time. Many ranges are read
    in one call.

    Attributes:
        ranges: Number of ranges.
        rows_per_range: Mean number of rows in a range; may be an estimate.
        bytes_per_row: Memory of a row in bytes; an estimate.

    >>> class Numbers(te.data.Reader):
    ...     ranges, rows_per_range, bytes_per_row = 100, 1, 8
    ...
    ...     def read(self, ranges):
    ...         return te.data.Chunk({"x": ranges}, None, len(ranges), lambda row: f"number {ranges[row]}")
    ...
    ...     def signature(self):
    ...         return {"source": "numbers", "count": self.ranges}
    >>> Numbers().read(np.array([7, 3])).features["x"]
    array([7, 3])
    """

    ranges: int
    rows_per_range: float
    bytes_per_row: float

    @abstractmethod
    def read(self, ranges: Array) -> Chunk:
        """Return the rows of some ranges as one chunk.

        Args:
            ranges: Numbers of the ranges, integers ``[n]``; rows come in this order.
        """

    @abstractmethod
    def signature(self) -> Signature:
        """Return what must be equal when a saved position is restored. ``"source"`` names the kind of source."""

    def identity(self) -> Signature:
        """Return a dict that is equal in two runs only if both runs read the same values. File caches compare it.

        JSON can represent the values of the dict.

        Raises:
            InvalidValueError: The source cannot compare its values between runs, which is the default.
        """
        raise InvalidValueError(
            f"{type(self).__name__} cannot tell whether it reads the same rows in another run; use cache() without a "
            "filename."
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FileSource:
    """What the sources of files with named columns have in common.

    `patterns` are paths, URLs and globs. `select_columns` is None for all columns. `column_types` are the user's.
    `defaults` has the value that replaces a missing one, by column, and `missing` the integer where there is no
    default, also in lists. `ignore_errors` leaves out rows that cannot be read. Missing values of the columns
    `unfilled` stay missing.
    """

    patterns: tuple[str, ...]
    column_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    select_columns: tuple[str, ...] | None = None
    missing: Mapping[str, int] = field(default_factory=dict)
    ignore_errors: bool = False
    unfilled: frozenset[str] = frozenset()


class Source(Protocol):
    """Protocol of a Dataset's source: an object that holds the user's arguments and opens a `Reader`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Countdown:
    ...     start: int
    ...
    ...     def open(self, request):
    ...         return CountdownReader(self.start)
    >>> class CountdownReader(te.data.Reader):
    ...     rows_per_range, bytes_per_row = 1, 8
    ...
    ...     def __init__(self, start):
    ...         self.ranges = start
    ...
    ...     def read(self, ranges):
    ...         return te.data.Chunk({"n": self.ranges - ranges}, None, len(ranges), lambda row: f"row {ranges[row]}")
    ...
    ...     def signature(self):
    ...         return {"source": "countdown", "start": self.ranges}
    >>> [features["n"].tolist() for features in te.data.Dataset.from_source(Countdown(5)).batch(3)]
    [[5, 4, 3], [2, 1]]
    """

    def open(self, request: ReadRequest) -> Reader:
        """Return a reader for a request. Opening looks at files, columns and types, but does not read all data.

        Args:
            request: What the pipeline needs: columns, types and labels.

        Raises:
            DataError: The data is missing or cannot be read.
        """
