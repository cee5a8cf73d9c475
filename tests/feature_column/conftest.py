"""The feature columns of the census sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.programs import CENSUS_VOCABULARIES
from torch_estimator import feature_column as fc
from torch_estimator.feature_column.hashing import HashFunction

AGE_BOUNDARIES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
NUMERIC = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]

CensusColumns = Callable[[HashFunction], tuple[list[Any], list[Any]]]


@pytest.fixture(scope="session")
def census_columns() -> CensusColumns:
    """Return a function that makes all twelve wide columns and all deep columns."""
    return _census_columns


def _census_columns(hash_function: HashFunction) -> tuple[list[Any], list[Any]]:
    vocabulary = {
        key: fc.categorical_column_with_vocabulary_list(key, values) for key, values in CENSUS_VOCABULARIES.items()
    }
    hashed = [
        fc.categorical_column_with_hash_bucket(key, 100, hash_function=hash_function)
        for key in ("occupation", "native_country")
    ]
    age_buckets = fc.bucketized_column(fc.numeric_column("age"), AGE_BOUNDARIES)
    crosses = [
        fc.crossed_column(["education", "occupation"], 10_000, hash_function=hash_function),
        fc.crossed_column([age_buckets, vocabulary["race"], "occupation"], 1_000_000, hash_function=hash_function),
        fc.crossed_column(["native_country", "occupation"], 10_000, hash_function=hash_function),
    ]
    wide = [*vocabulary.values(), *hashed, age_buckets, *crosses]
    deep: list[Any] = [fc.indicator_column(column) for column in vocabulary.values()]
    deep += [fc.embedding_column(column, dimension=8) for column in hashed]
    deep += [fc.numeric_column(key) for key in NUMERIC]
    return wide, deep
