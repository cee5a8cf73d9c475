"""Values of each type, as callers give them."""

from __future__ import annotations

from typing import Any

import pytest

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.dtypes import DTYPES


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("DT_BOOL", [True, 1], r"booleans, but has 1 \(int\)"),
        ("DT_BOOL", [True, "yes"], r"booleans, but has 'yes' \(str\)"),
        ("DT_BOOL", [True, None], r"booleans, but has None \(NoneType\)"),
        ("DT_INT64", [1, True], r"integers, but has True \(bool\)"),
        ("DT_INT32", [1, -(2**31) - 1], "integers, but has -2147483649, which does not fit into int32"),
        ("DT_FLOAT", [0.5, "1"], r"numbers, but has '1' \(str\)"),
        ("DT_STRING", ["a", 2], r"strings, but has 2 \(int\)"),
    ],
)
def test_the_first_value_of_another_type_is_named(name: str, value: list[Any], wrong: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^Input x takes {wrong}\\.$"):
        DTYPES[name].check("x", value)
