"""Boundaries at quantiles, as `bucketized_column` uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def buckets(values: np.ndarray[Any, Any], boundaries: list[float]) -> list[int]:
    """Return how many values fall into each bucket of a column with these boundaries."""
    column = fc.bucketized_column(fc.numeric_column("x"), boundaries)
    ids = fc.FeatureTransform([column])({"x": values})["linear/ids"]
    return np.bincount(ids.ravel(), minlength=len(boundaries) + 1).tolist()


def test_buckets_hold_equal_counts() -> None:
    values = np.random.default_rng(0).lognormal(size=1200).astype(np.float32)

    assert buckets(values, fc.quantile_boundaries(values, 12)) == [100] * 12


@pytest.mark.parametrize(
    ("values", "num_buckets", "expected"),
    [
        # Bin edges of scikit-learn 1.9.1's KBinsDiscretizer(num_buckets, strategy="quantile"), without the two ends.
        ([1.0, 2.0, 3.0, 4.0, 5.0], 2, [3.0]),
        ([1.0, 2.0, 3.0, 4.0], 2, [2.5]),
        ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0, 5.0], 5, [2.0, 3.0, 5.0]),
        ([0.0] * 95 + [10.0, 20.0, 30.0, 40.0, 50.0], 20, [5.0]),
        ([0.0] * 50 + [1.0] * 50, 4, [0.5]),
        ([7.0] * 4 + [7.0 + 1e-9] * 4 + [8.0] * 4, 6, [7.5]),
    ],
)
def test_boundaries_equal_kbins_discretizer(values: list[float], num_buckets: int, expected: list[float]) -> None:
    assert fc.quantile_boundaries(values, num_buckets) == pytest.approx(expected, abs=1e-8)


def test_numbers_equal_as_float32_share_a_bucket() -> None:
    values = np.repeat([1, 2**24, 2**24 + 1, 2**25], [1, 4, 4, 1])

    assert fc.quantile_boundaries(values, 5) == [2.0**24]


def test_few_distinct_numbers_give_few_boundaries_or_none() -> None:
    assert fc.quantile_boundaries([4, 4, 4], 10) == []
    assert fc.quantile_boundaries([0, 1], 100) == [0.5]
    assert fc.quantile_boundaries([False, True, True, True], 3) == []


@pytest.mark.parametrize(
    "values",
    [
        [5, 1, 4, 2, 3],
        np.array([[5, 1, 4], [2, 3, np.nan]], np.float32),
        torch.tensor([5, 1, 4, 2, 3]),
        pa.array([5, None, 1, 4, 2, 3]),
        pa.chunked_array([[5, 1], [4, 2, 3]]),
        [5.0, None, 1.0, 4.0, 2.0, 3.0],
    ],
)
def test_quantiles_accept_any_array_and_skip_missing_values(values: object) -> None:
    assert fc.quantile_boundaries(values, 2) == [3.0]


@pytest.mark.parametrize("values", [["1", "2"], pa.array(["a"]), object(), [[1, 2], [3]], [1, "2"], {"x": [1, 2]}])
def test_quantiles_of_non_numbers_are_refused(values: object) -> None:
    with pytest.raises(InvalidTypeError, match=r"values must be numbers, but got .+\."):
        fc.quantile_boundaries(values, 4)


@pytest.mark.parametrize(
    ("values", "num_buckets", "message"),
    [
        ([], 4, "values must hold at least one number, but hold none."),
        ([float("nan")], 4, "values must hold at least one number, but hold none."),
        ([1.0, float("-inf")], 4, "values must be finite, but hold -inf."),
        ([1.0, 2.0], 1, "num_buckets must be an integer of at least 2, but got 1."),
        ([1.0, 2.0], 2.5, "num_buckets must be an integer of at least 2, but got 2.5."),
        ([1.0, 2.0], True, "num_buckets must be an integer of at least 2, but got True."),
    ],
)
def test_bad_values_and_bucket_counts_raise_errors(values: object, num_buckets: Any, message: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        fc.quantile_boundaries(values, num_buckets)

    assert str(raised.value) == message
