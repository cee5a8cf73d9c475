"""Where to cut numbers so that the parts hold equally many."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError

# scikit-learn merges buckets that are narrower.
_NARROWEST = 1e-8


def quantile_boundaries(values: Any, num_buckets: int) -> list[float]:
    """Boundaries that cut numbers into buckets of equal size, for `bucketized_column`.

    They are those of scikit-learn's ``KBinsDiscretizer(num_buckets, strategy="quantile")``: the quantiles between the
    smallest and the largest number, averaged where one falls between two numbers (the method
    ``"averaged_inverted_cdf"`` of ``numpy.percentile``). Where many numbers are equal, there are fewer; a column of
    zeros with some exceptions is better cut where it is not zero:
    ``[1, *quantile_boundaries(gains[gains > 0], 100)]``.

    Compute them once, on the data to train on: boundaries are part of the model.

    Args:
        values: Numbers, of any shape: numpy, torch, Arrow, pandas or lists. NaN and nulls are left out.
        num_buckets: How many buckets, at least 2.

    Returns:
        At most ``num_buckets - 1`` strictly increasing numbers, also where compared as float32; none where there are
        not three different quantiles.

    Raises:
        InvalidTypeError: `values` are no numbers.
        InvalidValueError: There are none, or infinite ones, or fewer than 2 buckets.

    >>> quantile_boundaries([1, 2, 3, 4, 5, 6, 7, 8], 4)
    [2.5, 4.5, 6.5]
    >>> quantile_boundaries([0, 0, 0, 0, 0, 0, 0, 5, 7, 9], 4)
    [5.0]
    """
    if not isinstance(num_buckets, int) or isinstance(num_buckets, bool) or num_buckets < 2:
        raise InvalidValueError(f"num_buckets must be an integer of at least 2, but got {num_buckets!r}.")
    numbers = _numbers(values)
    edges = np.percentile(numbers, np.linspace(0, 100, num_buckets + 1), method="averaged_inverted_cdf")
    wide_enough = np.ediff1d(edges, to_begin=np.inf) > _NARROWEST
    edges = edges[wide_enough]
    apart = np.ediff1d(edges.astype(np.float32), to_begin=np.float32(np.inf)) > 0
    return [float(edge) for edge in edges[apart][1:-1]]


def _numbers(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "biuf":
            # Nulls make objects of numbers; strings that look like numbers are still strings.
            if any(isinstance(value, str | bytes) for value in numbers.ravel()):
                raise TypeError
            numbers = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"values must be numbers, but got {_short(values)}.") from error
    numbers = numbers.astype(np.float64).ravel()
    numbers = numbers[~np.isnan(numbers)]
    if not numbers.size:
        raise InvalidValueError("values must hold at least one number, but hold none.")
    if not np.isfinite(numbers).all():
        raise InvalidValueError(f"values must be finite, but hold {numbers[~np.isfinite(numbers)][0]}.")
    return numbers


def _short(values: Any) -> str:
    shown = repr(values)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
