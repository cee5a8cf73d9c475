"""A categorical column whose values have weights, which another raw column holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.identity import IdentityCategoricalColumn
from torch_estimator.feature_column.raw_feature import (
    LISTS,
    RawFeature,
    check_key,
    dtype_name,
    is_float,
    is_integer,
)
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn

Weighable: TypeAlias = (
    BucketizedColumn
    | CrossedColumn
    | HashedCategoricalColumn
    | IdentityCategoricalColumn
    | VocabularyListCategoricalColumn
)
_KINDS = (
    BucketizedColumn,
    CrossedColumn,
    HashedCategoricalColumn,
    IdentityCategoricalColumn,
    VocabularyListCategoricalColumn,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedCategoricalColumn:
    """Ids with weights; made by `weighted_categorical_column`."""

    categorical_column: Weighable
    weight_feature_key: str
    dtype: str = "float32"

    def __post_init__(self) -> None:
        column = self.categorical_column
        if not isinstance(column, _KINDS):
            error = InvalidValueError if hasattr(column, "raw_features") else InvalidTypeError
            raise error(f"weighted_categorical_column takes a categorical column without weights, but got {column!r}.")
        if isinstance(column, CrossedColumn) and column.multivalent:
            raise InvalidValueError(
                f"crossed column {column.name!r} cannot have weights, since how many values a row has depends on its "
                "lists; give weights to a column that is not crossed."
            )
        check_key(self.weight_feature_key)
        if not (is_integer(self.dtype) or is_float(self.dtype)):
            raise InvalidValueError(
                f"dtype of the weights {self.weight_feature_key!r} must be an integer or floating-point type, but got "
                f"{self.dtype!r}."
            )
        keys = [feature.key for feature in column.raw_features]
        if self.weight_feature_key in keys:
            raise InvalidValueError(
                f"raw column {self.weight_feature_key!r} cannot be both the values and the weights of a column."
            )

    @property
    def name(self) -> str:
        """``<column>_weighted_by_<key>``."""
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def num_buckets(self) -> int:
        """That of the categorical column."""
        return self.categorical_column.num_buckets

    @property
    def slots(self) -> int:
        """That of the categorical column."""
        return self.categorical_column.slots

    @property
    def multivalent(self) -> bool:
        """Whether rows hold lists of values and of weights."""
        return self.categorical_column.multivalent

    @property
    def weight_feature(self) -> RawFeature:
        """The raw column of weights: as many a row as there are values."""
        return RawFeature(
            key=self.weight_feature_key,
            dtype="int64" if is_integer(self.dtype) else "float32",
            shape=LISTS if self.multivalent else (self.slots,),
        )

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """Those of the categorical column, and the weights."""
        return (*self.categorical_column.raw_features, self.weight_feature)


def weighted_categorical_column(
    categorical_column: Weighable, weight_feature_key: str, dtype: Any = "float32"
) -> WeightedCategoricalColumn:
    """Gives each value of a categorical column the weight at its place in another raw column.

    An indicator adds the weights up, a linear model multiplies the value's weight by them, and an embedding combines
    vectors by them; with ``"mean"`` and ``"sqrtn"`` a value whose weight is not positive does not count. A weight
    that is NaN is 0; one that is missing in the data is an error, unless the Dataset has a default for it.

    Args:
        categorical_column: A vocabulary, hash bucket, identity, bucketized or crossed column. With
            ``multivalent=True`` every row's list of weights must be as long as its list of values.
        weight_feature_key: Name of the raw column of weights.
        dtype: How the weights are parsed; the model sees float32 in any case.

    Raises:
        InvalidTypeError: `categorical_column` is no column.
        InvalidValueError: It has weights, is a cross of lists or is not categorical; or the dtype is no number.

    >>> from torch_estimator.feature_column import categorical_column_with_hash_bucket
    >>> words = categorical_column_with_hash_bucket("words", 1000, multivalent=True)
    >>> weighted_categorical_column(words, "frequencies").name
    'words_weighted_by_frequencies'
    """
    return WeightedCategoricalColumn(
        categorical_column=categorical_column, weight_feature_key=weight_feature_key, dtype=dtype_name(dtype)
    )
