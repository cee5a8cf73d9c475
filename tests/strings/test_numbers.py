"""Operations on numbers: of numpy's arrays and in graphs the same, with the signs, types and limits of numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.strings.test_strings import in_graph

FLOATS = [0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 7.0, -7.0, 3.3, -3.3, 1e-3, 16777216.0, 3e38, np.inf, -np.inf, np.nan]
INTEGERS = [0, 1, -1, 2, 3, -3, 7, -7, 15, -15, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]

FLOATS_ALIKE: dict[str, Callable[[Any], Any]] = {
    "x ** 2": lambda x: x**2,
    "x ** 0.5": lambda x: x**0.5,
    "x ** -1": lambda x: x**-1,
    "x ** 3": lambda x: x**3,
    "x ** 0": lambda x: x**0,
    "2 ** x": lambda x: 2**x,
    "-x": lambda x: -x,
    "+x": lambda x: +x,
    "abs(x)": abs,
    "x % 7": lambda x: x % 7,
    "x % -7": lambda x: x % -7,
    "x % 0.1": lambda x: x % 0.1,
    "7 % x": lambda x: 7 % x,
    "x // 2": lambda x: x // 2,
    "x // -0.1": lambda x: x // -0.1,
    "x // 0": lambda x: x // 0,
    "7 // x": lambda x: 7 // x,
    "round(x)": np.round,
    "round(x, 2)": lambda x: np.round(x, 2),
    "round(x, -1)": lambda x: np.round(x, decimals=-1),
    "x.round(1)": lambda x: x.round(1),
    "rint": np.rint,
    "sqrt": np.sqrt,
    "log": np.log,
    "exp": np.exp,
    "floor": np.floor,
    "ceil": np.ceil,
    "maximum": lambda x: np.maximum(x, 1.5),
    "minimum": lambda x: np.minimum(np.float32(1.5), x),
    "clip": lambda x: np.clip(x, -1, 2.5),
    "x.clip": lambda x: x.clip(0, 1),
    "clip above": lambda x: np.clip(x, None, 2.5),
    "clip by names": lambda x: np.clip(x, a_min=0, a_max=2),
    "numpy's operators": lambda x: np.float32(2) * np.add(x, x) - np.float32(3) ** np.divide(x, 4),
}

INTEGERS_ALIKE: dict[str, Callable[[Any], Any]] = {
    "n ** 0": lambda n: n**0,
    "n ** 1": lambda n: n**1,
    "n ** 5": lambda n: n**5,
    "n ** 63": lambda n: n**63,
    "-n": lambda n: -n,
    "abs(n)": abs,
    **{f"n % {k}": lambda n, k=k: n % k for k in (1, -1, 7, -7, 0, 2**62)},
    **{f"n // {k}": lambda n, k=k: n // k for k in (1, -1, 7, -7, 0, 2**62)},
    "100 % n": lambda n: 100 % n,
    "-100 // n": lambda n: -100 // n,
    "round": np.round,
    "maximum": lambda n: np.maximum(n, 2**53),
    "clip": lambda n: np.clip(n, -3, 2**53 + 1),
}


def alike(transform: Callable[..., Any], **inputs: Any) -> None:
    """Check that a transform gives for arrays what its graph gives: the same type, and the same numbers."""
    with np.errstate(all="ignore"):
        expected = transform(*inputs.values())
    found = in_graph(lambda given: {"y": transform(*given.values())}, inputs)["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=1e-6 if found.dtype == np.float32 else 0)


@pytest.mark.parametrize("name", FLOATS_ALIKE)
def test_floats(name: str) -> None:
    alike(FLOATS_ALIKE[name], x=np.array(FLOATS, np.float32))


@pytest.mark.parametrize("name", INTEGERS_ALIKE)
def test_integers(name: str) -> None:
    alike(INTEGERS_ALIKE[name], n=np.array(INTEGERS, np.int64))


@pytest.mark.parametrize(("values", "dtype"), [(FLOATS, np.float32), (INTEGERS, np.int64)])
def test_two_columns(values: list[Any], dtype: type) -> None:
    left, right = (np.array(one, dtype) for one in zip(*itertools.product(values, repeat=2), strict=True))
    for operation in (np.remainder, np.floor_divide, np.maximum, np.minimum):
        alike(operation, x=left, y=right)
    alike(lambda x, y: x % y + x // y - y, x=left, y=right)


def test_powers_of_two_columns_and_a_distance() -> None:
    x, y = np.array([1.5, 2, -2, 0, 4], np.float32), np.array([2, 0.5, 3, 0, -1], np.float32)
    alike(lambda x, y: x**y, x=x, y=y)
    alike(lambda x, y: (x * x + y * y) ** 0.5, x=x, y=y)
    alike(lambda x, y: np.clip(x, y, None), x=x, y=y)


def test_lists_and_vectors() -> None:
    alike(lambda x: abs(-x) % 2 // 1, x=np.array([[1.5, -2.5], [3, 4]], np.float32))
    alike(lambda n: n**3 // 2, n=np.array([[1, -2], [3, 4]], np.int64))
