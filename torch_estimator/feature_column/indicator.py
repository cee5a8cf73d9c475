"""A categorical column as counts per id, for networks."""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.feature_column.categorical import CategoricalColumn, check_categorical
from torch_estimator.feature_column.raw_feature import RawFeature


@dataclass(frozen=True, kw_only=True, slots=True)
class IndicatorColumn:
    """One number per id of a categorical column; made by `indicator_column`."""

    categorical_column: CategoricalColumn

    def __post_init__(self) -> None:
        check_categorical(self.categorical_column, "indicator_column")

    @property
    def name(self) -> str:
        """``<column>_indicator``."""
        return f"{self.categorical_column.name}_indicator"

    @property
    def width(self) -> int:
        """Numbers per row: one per id."""
        return self.categorical_column.num_buckets

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """Those of the categorical column."""
        return self.categorical_column.raw_features


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """Turns a categorical column into ``num_buckets`` numbers: how often each id occurs in the row.

    A row without an id gives zeros.

    Raises:
        InvalidTypeError: What is given is no column.
        InvalidValueError: It is no categorical column.

    >>> from torch_estimator.feature_column import categorical_column_with_vocabulary_list
    >>> indicator_column(categorical_column_with_vocabulary_list("gender", ["Female", "Male"])).name
    'gender_indicator'
    """
    return IndicatorColumn(categorical_column=categorical_column)
