"""Names, arguments and errors of every column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidTypeError, InvalidValueError

AGE = fc.numeric_column("age")
GENDER = fc.categorical_column_with_vocabulary_list("gender", ["Female", "Male"])
JOB = fc.categorical_column_with_hash_bucket("job", 10)
AGE_BUCKETS = fc.bucketized_column(AGE, [18, 65])


def test_names_equal_those_of_tensorflow() -> None:
    cross = fc.crossed_column(["zip", AGE_BUCKETS, fc.crossed_column([GENDER, "b"], 5)], 10)
    assert cross.name == "age_bucketized_X_b_X_gender_X_zip"
    assert fc.indicator_column(GENDER).name == "gender_indicator"
    assert fc.embedding_column(cross, 3).name == "age_bucketized_X_b_X_gender_X_zip_embedding"


def test_numeric_default_value_takes_the_shape() -> None:
    assert fc.numeric_column("x", shape=3, default_value=1).default_value == (1.0, 1.0, 1.0)
    assert fc.numeric_column("x", shape=(2, 1), default_value=[[1], [2]]).default_value == (1.0, 2.0)


@pytest.mark.parametrize("dtype", [int, "int64", np.int32, np.dtype("int16"), torch.int64])
def test_integer_dtypes_in_any_spelling_are_parsed_as_int64(dtype: Any) -> None:
    assert fc.numeric_column("x", dtype=dtype).raw_features[0].dtype == "int64"
    assert fc.categorical_column_with_hash_bucket("x", 5, dtype=dtype).dtype == "int64"
    assert fc.categorical_column_with_vocabulary_list("x", [1, 2], dtype=dtype).dtype == "int64"


@pytest.mark.parametrize("dtype", [float, "float64", np.float32, torch.float32, np.dtype("float16")])
def test_float_dtypes_in_any_spelling_are_parsed_as_float32(dtype: Any) -> None:
    assert fc.numeric_column("x", dtype=dtype).raw_features[0].dtype == "float32"


def test_bucket_counts_include_dimensions_and_oov_buckets() -> None:
    assert fc.bucketized_column(fc.numeric_column("x", shape=3), [0, 1]).num_buckets == 9
    assert fc.categorical_column_with_vocabulary_list("x", ["a"], num_oov_buckets=4).num_buckets == 5


def test_columns_come_before_raw_strings_in_a_cross() -> None:
    cross = fc.crossed_column(["b", AGE_BUCKETS, fc.crossed_column(["a", GENDER], 5)], 10)
    assert cross.leaves == (AGE_BUCKETS, GENDER, "b", "a")


def test_hash_key_zero_is_the_default() -> None:
    assert fc.crossed_column(["a", "b"], 5, hash_key=0).start == fc.crossed_column(["a", "b"], 5).start


def test_numpy_vocabularies_become_plain_values() -> None:
    assert fc.categorical_column_with_vocabulary_list("x", np.array([3, 1])).vocabulary_list == (3, 1)
    assert fc.categorical_column_with_vocabulary_list("x", [b"a", "b"]).vocabulary_list == ("a", "b")


Make = Callable[[], object]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fc.numeric_column(3), "key must be a non-empty string"),  # type: ignore[arg-type]
        (lambda: fc.numeric_column(""), "key must be a non-empty string"),
        (lambda: fc.numeric_column("x", shape=0), "must be positive integers, but got"),
        (lambda: fc.numeric_column("x", shape=()), "must be positive integers, but got"),
        (lambda: fc.numeric_column("x", dtype="string"), "integer or floating-point type, but got 'string'"),
        (lambda: fc.numeric_column("x", default_value="a"), "must be a number or numbers, but got 'a'"),
        (lambda: fc.numeric_column("x", default_value=[1, 2]), r"has the shape \(2,\)"),
        (lambda: fc.bucketized_column(GENDER, [1]), "must be made by numeric_column"),  # type: ignore[arg-type]
        (lambda: fc.bucketized_column(fc.numeric_column("x", (2, 2)), [1]), "must have one dimension"),
        (lambda: fc.bucketized_column(AGE, []), "boundaries for 'age' must not be empty"),
        (lambda: fc.bucketized_column(AGE, [1, 1]), "strictly increasing"),
        (lambda: fc.bucketized_column(AGE, [2, 1]), "strictly increasing"),
        (lambda: fc.bucketized_column(AGE, [float("nan")]), "strictly increasing finite"),
        (lambda: fc.bucketized_column(AGE, [1, 1_700_000_000, 1_700_000_060]), "1700000060.0 for 'age' are one number"),
        (lambda: fc.bucketized_column(AGE, [2**24, 2**24 + 1]), "16777216.0 and 16777217.0 for"),
        (lambda: fc.bucketized_column(AGE, [0.1, 0.1 + 1e-12]), "are one number as float32"),
        (lambda: fc.bucketized_column(AGE, [1e300, 2e300]), "are one number as float32"),
        (lambda: fc.bucketized_column(AGE, 3), "must be a list of numbers"),  # type: ignore[arg-type]
        (lambda: fc.categorical_column_with_vocabulary_list("x", []), "must not be empty"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", ["a", "a"]), "has 'a' more than once"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", [1.5]), "all strings or all integers"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", ["a", 1]), "all strings or all integers"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", ["a"], dtype="int64"), "holds string"),
        (
            lambda: fc.categorical_column_with_vocabulary_list("x", ["a"], default_value=0, num_oov_buckets=1),
            "only one of them",
        ),
        (
            lambda: fc.categorical_column_with_vocabulary_list("x", ["a"], num_oov_buckets=-1),
            "must be an integer that is not negative, but got -1",
        ),
        (
            lambda: fc.categorical_column_with_vocabulary_list("x", ["a"], default_value=1),
            "must be -1 or an id below 1, but got 1",
        ),
        (lambda: fc.categorical_column_with_hash_bucket("x", 0), "at least 1, but got 0"),
        (lambda: fc.categorical_column_with_hash_bucket("x", None), "at least 1, but got None"),  # type: ignore[arg-type]
        (lambda: fc.categorical_column_with_hash_bucket("x", 5, dtype=float), "must be string or an integer"),
        (
            lambda: fc.categorical_column_with_hash_bucket("x", 5, hash_function="md5"),  # type: ignore[arg-type]
            "but got 'md5'",
        ),
        (lambda: fc.crossed_column(["a"], 10), "at least 2 keys"),
        (lambda: fc.crossed_column("ab", 10), "must be a list of at least 2 keys"),
        (lambda: fc.crossed_column(["a", "b"], 0), "hash_bucket_size of crossed column 'a_X_b'"),
        (lambda: fc.crossed_column(["a", JOB], 10), "giving the string 'job'"),  # type: ignore[list-item]
        (lambda: fc.crossed_column(["a", AGE], 10), "names of raw string columns"),  # type: ignore[list-item]
        (lambda: fc.crossed_column(["a", "b"], 10, hash_key=-1), "unsigned 64-bit integer, but got -1"),
        (lambda: fc.indicator_column(AGE), "takes a categorical column"),  # type: ignore[arg-type]
        (lambda: fc.embedding_column(fc.indicator_column(GENDER), 3), "takes a categorical column"),  # type: ignore[arg-type]
        (lambda: fc.embedding_column(GENDER, 0), "must be a positive integer, but got 0"),
        (
            lambda: fc.embedding_column(GENDER, 2, combiner="max"),  # type: ignore[arg-type]
            "'mean', 'sqrtn' or 'sum', but got 'max'",
        ),
        (
            lambda: fc.embedding_column(GENDER, 2, initializer=3),  # type: ignore[arg-type]
            "a callable that fills a tensor",
        ),
        (lambda: fc.embedding_column(GENDER, 2, max_norm=0.0), "must be None or a positive number, but got 0.0"),
    ],
)
def test_invalid_values_are_refused(make: Make, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: fc.bucketized_column("age", [1]),  # type: ignore[arg-type]
        lambda: fc.crossed_column(["a", 42], 10),  # type: ignore[list-item]
        lambda: fc.indicator_column("gender"),  # type: ignore[arg-type]
        lambda: fc.embedding_column(torch.zeros(2), 3),  # type: ignore[arg-type]
        lambda: fc.FeatureTransform(["gender"]),
        lambda: fc.FeatureTransform((), [AGE, None]),
        lambda: fc.FeatureTransform(AGE),  # type: ignore[arg-type]
    ],
)
def test_non_columns_raise_invalid_type_error(make: Make) -> None:
    with pytest.raises(InvalidTypeError, match=r"but (got|holds) "):
        make()
