from __future__ import annotations

from torch_estimator.cli.table import table


def test_columns_are_sorted_and_aligned() -> None:
    rows = [{"b": [1.5], "a": ["x"]}, {"b": [0.25], "a": ["long text"]}]
    assert table(rows) == "A              B\n['x']          [1.5]\n['long text']  [0.25]"


def test_rows_that_are_no_objects_have_no_heading() -> None:
    assert table([[1, 2], "x"]) == "[1, 2]\nx"
