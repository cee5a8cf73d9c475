"""Column that divides numbers into ranges (buckets), and a function that chooses the boundaries of the ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import as_items
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import (
    CategoricalColumn,
    Encoders,
    IdEncoder,
    NetworkInputs,
    NumberColumn,
    column_error,
)
from torch_estimator.feature_column.ids import Ids
from torch_estimator.feature_column.lowering import Lowering
from torch_estimator.feature_column.raw_feature import RawFeature

# Up to this number of boundaries, comparing with each boundary is several times faster than a binary search.
_FEW_BOUNDARIES = 64

# Minimum width of a bucket in `quantile_boundaries`, the same as in scikit-learn.
_NARROWEST = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketizedColumn(CategoricalColumn):
    """Column that replaces each number by the id of its range. Created by `bucketized_column`.

    If a row holds several numbers, the ids of number i start at ``i * (len(boundaries) + 1)``.

    Attributes:
        source_column: The numeric column.
        boundaries: Lower ends of all ranges but the first.

    >>> column = fc.bucketized_column(fc.numeric_column("age", shape=2), [18, 25, 30])
    >>> column.name, column.buckets, column.num_buckets
    ('age_bucketized', 4, 8)
    """

    source_column: NumberColumn
    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        source = self.source_column
        if not isinstance(source, NumberColumn) or source.is_sequence:
            raise column_error(source, f"source_column must be made by numeric_column(), but got {source!r}.")
        if len(source.shape) > 1:
            raise InvalidValueError(
                f"source_column {source.name!r} must have one dimension to be bucketized, but its shape is "
                f"{source.shape}."
            )
        if not self.boundaries:
            raise InvalidValueError(f"boundaries for {source.name!r} must not be empty.")
        if any(not math.isfinite(boundary) for boundary in self.boundaries) or any(
            not low < high for low, high in zip(self.boundaries, self.boundaries[1:], strict=False)
        ):
            raise InvalidValueError(
                f"boundaries for {source.name!r} must be strictly increasing finite numbers, but got {self.boundaries}."
            )
        with np.errstate(over="ignore"):
            compared = np.array(self.boundaries, np.float32)
        if len(same := np.flatnonzero(compared[1:] == compared[:-1])):
            low, high = self.boundaries[same[0] : same[0] + 2]
            raise InvalidValueError(
                f"boundaries {low} and {high} for {source.name!r} are one number as float32, which columns compare; "
                "subtract an offset from the raw column in the input, as with map, and from the boundaries."
            )

    @property
    def name(self) -> str:
        """Name of the column: ``<source>_bucketized``."""
        return f"{self.source_column.name}_bucketized"

    @property
    def buckets(self) -> int:
        """Number of buckets into which one number can fall."""
        return len(self.boundaries) + 1

    @property
    def num_buckets(self) -> int:
        """Number of ids: the number of buckets, times how many numbers a row holds."""
        return self.buckets * self.slots

    @property
    def slots(self) -> int:
        """Number of ids in each row: one for each number of the row."""
        return self.source_column.width

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw columns that the numeric column reads."""
        return self.source_column.raw_features

    @property
    def number_columns(self) -> tuple[NumberColumn, ...]:
        """The numeric column whose numbers are divided into ranges."""
        return (self.source_column,)

    def add_to_network(self, inputs: NetworkInputs) -> None:
        """Make the count of each bucket in a row an input of a network. No `indicator_column` is needed."""
        inputs.add_counts(self.name, self)

    def encoder(self, encoders: Encoders) -> IdEncoder:
        """Return a function that takes a chunk (some rows of the data) and returns its bucket ids."""
        boundaries = np.array(self.boundaries, dtype=np.float32)
        first = np.arange(self.slots, dtype=np.intp) * self.buckets
        ids = np.arange(self.num_buckets, dtype=np.int64)

        def encode(chunk: Chunk) -> Ids:
            codes = _buckets(boundaries, self.source_column.numbers(chunk))
            return Ids(ids, codes + first if len(first) > 1 else codes)

        return encode

    def lower(self, lowering: Lowering) -> str:
        """Add the computation of the bucket ids to an ONNX graph; return the name of the result."""
        graph = lowering.graph
        numbers = lowering.numbers(self.source_column)
        if self.slots > 1:
            numbers = graph.op("Unsqueeze", numbers, graph.constant([-1], np.int64))
        # Subtract the number of boundaries above a number from the id of the last bucket.
        # No boundary is above NaN, so NaN gets the last bucket, as in `_buckets`.
        above = lowering.cast(graph.op("Less", numbers, graph.constant(self.boundaries, np.float32)), "int64")
        count = graph.op("ReduceSum", above, graph.constant([-1], np.int64), keepdims=int(self.slots == 1))
        last = [(slot + 1) * self.buckets - 1 for slot in range(self.slots)]
        return graph.op("Sub", graph.constant([last], np.int64), count)


def bucketized_column(source_column: NumberColumn, boundaries: Iterable[float]) -> BucketizedColumn:
    """Return a column that divides numbers into ``len(boundaries) + 1`` ranges. A range includes its lower end.

    NaN falls into the last range. Numbers and boundaries are compared as float32.

    Args:
        source_column: A `numeric_column` of one dimension.
        boundaries: Strictly increasing finite numbers.

    Raises:
        InvalidTypeError: `source_column` is not a column.
        InvalidValueError: `source_column` is not a numeric column of one dimension, or the boundaries are empty or do
            not increase.

    >>> age = fc.bucketized_column(fc.numeric_column("age"), [18, 25, 30])
    >>> fc.FeatureTransform([age])({"age": np.array([17, 18, 40])})["linear/ids"].ravel()
    array([0, 1, 3])
    """
    try:
        numbers = tuple(float(boundary) for boundary in as_items(boundaries, "boundaries"))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"boundaries must be a list of numbers, but got {boundaries!r}.") from error
    return BucketizedColumn(source_column=source_column, boundaries=numbers)


def _buckets(boundaries: npt.NDArray[np.float32], numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """Return the bucket of each number: how many boundaries are not above it. NaN gets the last bucket."""
    if len(boundaries) > _FEW_BOUNDARIES:
        return np.searchsorted(boundaries, numbers, side="right")
    codes = np.full(numbers.shape, len(boundaries), dtype=np.uint8)
    for boundary in boundaries:
        codes -= (numbers < boundary).view(np.uint8)
    return codes.astype(np.intp)


def quantile_boundaries(values: Any, num_buckets: int) -> list[float]:
    """Return boundaries for `bucketized_column` that put equally many numbers into each bucket.

    They are the same as those of scikit-learn's ``KBinsDiscretizer(num_buckets, strategy="quantile")``: the quantiles
    between the smallest and the largest number, averaged if a quantile falls between two numbers (the method
    ``"averaged_inverted_cdf"`` of ``numpy.percentile``). If many numbers are equal, there are fewer boundaries. If most
    numbers are zero, divide only the other numbers: ``[1, *quantile_boundaries(gains[gains > 0], 100)]``.

    Boundaries are part of the model: compute them once, on the training data.

    Args:
        values: Numbers, of any shape: numpy, torch, Arrow, pandas or lists. NaN and nulls are left out.
        num_buckets: Number of buckets, at least 2.

    Returns:
        At most ``num_buckets - 1`` numbers, which increase strictly even as float32; an empty list if there are fewer
        than three different quantiles.

    Raises:
        InvalidTypeError: `values` are not numbers.
        InvalidValueError: `values` hold no number or an infinite one, or `num_buckets` is below 2.

    >>> fc.quantile_boundaries([1, 2, 3, 4, 5, 6, 7, 8], 4)
    [2.5, 4.5, 6.5]
    >>> fc.quantile_boundaries([0, 0, 0, 0, 0, 0, 0, 5, 7, 9], 4)
    [5.0]
    """
    if not isinstance(num_buckets, int) or isinstance(num_buckets, bool) or num_buckets < 2:
        raise InvalidValueError(f"num_buckets must be an integer of at least 2, but got {num_buckets!r}.")
    numbers = _finite_numbers(values)
    edges = np.percentile(numbers, np.linspace(0, 100, num_buckets + 1), method="averaged_inverted_cdf")
    wide_enough = np.ediff1d(edges, to_begin=np.inf) > _NARROWEST
    edges = edges[wide_enough]
    # Drop boundaries that differ as float64 but not as float32, because columns compare as float32.
    apart = np.ediff1d(edges.astype(np.float32), to_begin=np.float32(np.inf)) > 0
    return [float(edge) for edge in edges[apart][1:-1]]


def _finite_numbers(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return `values` as a flat float64 array without NaN and nulls; raise an error for infinite numbers."""
    try:
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "biuf":
            # Accept an object array, because numbers with nulls become an object array.
            # Reject strings even if they look like numbers, which `astype` would parse.
            if any(isinstance(value, str | bytes) for value in numbers.ravel()):
                raise TypeError
            numbers = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        shown = repr(values)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise InvalidTypeError(f"values must be numbers, but got {shown}.") from error
    numbers = numbers.astype(np.float64).ravel()
    numbers = numbers[~np.isnan(numbers)]
    if not numbers.size:
        raise InvalidValueError("values must hold at least one number, but hold none.")
    if not np.isfinite(numbers).all():
        raise InvalidValueError(f"values must be finite, but hold {numbers[~np.isfinite(numbers)][0]}.")
    return numbers
