"""What the categorical columns have in common: `name`, `num_buckets`, `slots`, `multivalent` and `raw_features`."""

from __future__ import annotations

from typing import TypeAlias

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.identity import IdentityCategoricalColumn
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn

CategoricalColumn: TypeAlias = (
    BucketizedColumn
    | CrossedColumn
    | HashedCategoricalColumn
    | IdentityCategoricalColumn
    | VocabularyListCategoricalColumn
    | WeightedCategoricalColumn
)

CATEGORICAL_COLUMNS = (
    BucketizedColumn,
    CrossedColumn,
    HashedCategoricalColumn,
    IdentityCategoricalColumn,
    VocabularyListCategoricalColumn,
    WeightedCategoricalColumn,
)


def is_bag(column: CategoricalColumn) -> bool:
    """Whether a column gives lists of ids, or ids with weights, instead of a fixed number of plain ids per row."""
    return column.multivalent or isinstance(column, WeightedCategoricalColumn)


def check_categorical(column: object, where: str) -> None:
    """Raises InvalidTypeError for what is no column and InvalidValueError for a column of another kind."""
    if isinstance(column, CATEGORICAL_COLUMNS):
        return
    error = InvalidValueError if hasattr(column, "raw_features") else InvalidTypeError
    raise error(
        f"{where} takes a categorical column (vocabulary, hash bucket, identity, weighted, crossed or bucketized), "
        f"but got {column!r}."
    )
