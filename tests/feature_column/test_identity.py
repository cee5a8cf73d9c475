from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidValueError

VALUES = np.array([0, 4, 5, -5, -1, 2**62, -(2**63)])
MISSING = 5


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        (None, [0, 4, MISSING, MISSING, MISSING, MISSING, MISSING]),
        (2, [0, 4, 2, 2, MISSING, 2, 2]),
    ],
)
def test_values_out_of_range_get_the_default_or_no_id(default: Any, expected: list[int]) -> None:
    column = fc.categorical_column_with_identity("x", 5, default_value=default)
    lists = fc.categorical_column_with_identity("x", 5, default_value=default, multivalent=True)
    raw = {"x": VALUES}
    one = fc.FeatureTransform([column], [fc.indicator_column(column), fc.embedding_column(column, 2)])(raw)
    assert {key: ids.ravel().tolist() for key, ids in one.items()} == dict.fromkeys(
        ("linear/ids", "dnn/indicator_ids", "dnn/embedding_ids_2"), expected
    )
    many = fc.FeatureTransform([lists])(raw)["linear/ids/x"].to_pylist()
    assert many == [[] if one == MISSING else [one] for one in expected]


def test_a_value_out_of_range_is_minus_one_in_a_cross_and_a_missing_one_has_none() -> None:
    column = fc.categorical_column_with_identity("x", 5)
    vocabulary = fc.categorical_column_with_vocabulary_list("x", [0, 1, 2, 3, 4])
    raw = {"x": VALUES, "s": np.array(["a"] * len(VALUES))}
    ids = [
        fc.FeatureTransform([fc.crossed_column([leaf, "s"], 1000)])(raw)["linear/ids"].ravel().tolist()
        for leaf in (column, vocabulary)
    ]
    assert ids[0] == ids[1]
    assert ids[0][4] == 1000
    assert ids[0][2] == ids[0][3] == ids[0][5] < 1000


def test_nulls_are_missing_even_with_a_default() -> None:
    column = fc.categorical_column_with_identity("x", 5, default_value=1)
    ids = fc.FeatureTransform([column])({"x": pa.array([3, None, 7])})["linear/ids"]
    assert ids.ravel().tolist() == [3, MISSING, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_buckets": 0}, "must be an integer of at least 1, but got 0"),
        ({"num_buckets": 2.5}, "must be an integer of at least 1, but got 2.5"),
        ({"num_buckets": 3, "default_value": 3}, "must be None or an id below 3, but got 3"),
        ({"num_buckets": 3, "default_value": -1}, "must be None or an id below 3, but got -1"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        fc.categorical_column_with_identity("x", **arguments)


@pytest.mark.parametrize("column", [np.array([1.5]), np.array(["a"]), pa.array([0.5])])
def test_other_types_than_integers_are_refused(column: Any) -> None:
    with pytest.raises(InvalidValueError, match="raw column 'x' must be int64, but is"):
        fc.FeatureTransform([fc.categorical_column_with_identity("x", 5)])({"x": column})
