"""What the categorical columns have in common: `name`, `num_buckets`, `slots` and `raw_features`."""

from __future__ import annotations

from typing import TypeAlias

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn

CategoricalColumn: TypeAlias = (
    BucketizedColumn | CrossedColumn | HashedCategoricalColumn | VocabularyListCategoricalColumn
)

CATEGORICAL_COLUMNS = (
    BucketizedColumn,
    CrossedColumn,
    HashedCategoricalColumn,
    VocabularyListCategoricalColumn,
)


def check_categorical(column: object, where: str) -> None:
    """Raises InvalidTypeError for what is no column and InvalidValueError for a column of another kind."""
    if isinstance(column, CATEGORICAL_COLUMNS):
        return
    error = InvalidValueError if hasattr(column, "raw_features") else InvalidTypeError
    raise error(
        f"{where} takes a categorical column (vocabulary list, hash bucket, crossed or bucketized), but got {column!r}."
    )
