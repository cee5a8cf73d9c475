"""Numbers cut into ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import as_items
from torch_estimator.feature_column.numeric import NumericColumn
from torch_estimator.feature_column.raw_feature import RawFeature


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketizedColumn:
    """A numeric column cut at boundaries; made by `bucketized_column`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        source = self.source_column
        if not isinstance(source, NumericColumn):
            error = InvalidValueError if hasattr(source, "raw_features") else InvalidTypeError
            raise error(f"source_column must be made by numeric_column(), but got {source!r}.")
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

    @property
    def name(self) -> str:
        """``<source>_bucketized``."""
        return f"{self.source_column.name}_bucketized"

    @property
    def num_buckets(self) -> int:
        """Buckets of a number times numbers per row; number i has ids from ``i * (len(boundaries) + 1)``."""
        return (len(self.boundaries) + 1) * self.slots

    @property
    def slots(self) -> int:
        """Ids per row."""
        return self.source_column.width

    @property
    def multivalent(self) -> bool:
        """False: a bucketized shape has the same number of values in every row."""
        return False

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """Those of the source column."""
        return self.source_column.raw_features


def bucketized_column(source_column: NumericColumn, boundaries: Iterable[float]) -> BucketizedColumn:
    """Cuts a numeric column into ``len(boundaries) + 1`` ranges, each including its lower end.

    NaN falls into the last range. Numbers and boundaries are compared as float32.

    Args:
        source_column: A `numeric_column` of one dimension.
        boundaries: Strictly increasing finite numbers.

    Raises:
        InvalidTypeError: `source_column` is no column.
        InvalidValueError: It is no numeric column of one dimension, or the boundaries are empty or not
            increasing.

    >>> from torch_estimator.feature_column import numeric_column
    >>> bucketized_column(numeric_column("age"), [18, 25, 30]).num_buckets
    4
    """
    try:
        numbers = tuple(float(boundary) for boundary in as_items(boundaries, "boundaries"))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"boundaries must be a list of numbers, but got {boundaries!r}.") from error
    return BucketizedColumn(source_column=source_column, boundaries=numbers)
