from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.raw_values import list_numbers, list_values

WORDS = [["b", "Škoda"], [], ["b", ""], [""], ["日本"]]


def rows(values: Any, offsets: Any) -> list[list[Any]]:
    return [list(values[start:stop]) for start, stop in pairwise(offsets)]


def read(column: Any, dtype: str = "string") -> list[list[Any]]:
    lists = list_values(column, "k", dtype)
    return rows([lists.values.values[code] for code in lists.values.codes], lists.offsets)


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    "column",
    [
        pa.array(WORDS),
        pa.array(WORDS, pa.large_list(pa.large_string())),
        pa.array([["x"], *WORDS]).slice(1),
        pa.array([["b", "Škoda"], None, ["b", None], [""], ["日本"]]),
        objects(WORDS),
        objects([np.array(row) for row in WORDS[:1]] + WORDS[1:]),
        objects([tuple(row) for row in WORDS]),
        objects([["b", "Škoda"], None, ["b", None], "", "日本"]),
    ],
)
def test_lists_of_strings_of_every_kind_are_the_same(column: Any) -> None:
    assert read(column) == WORDS


@pytest.mark.parametrize(
    "column",
    [
        np.array([["a", "b"], ["", "c"]]),
        np.array([["a", "b"], ["", "c"]], object),
        np.array([["a", "b"], [None, "c"]], object),
        np.array([["a", "b"], [float("nan"), "c"]], object),
        np.array([[b"a", b"b"], [b"", b"c"]]),
        pa.array([["a", "b"], ["", "c"]], pa.list_(pa.string(), 2)),
    ],
)
def test_padded_arrays_keep_their_padding_as_missing_values(column: Any) -> None:
    assert read(column) == [["a", "b"], ["", "c"]]


def test_single_values_are_lists_of_one() -> None:
    assert read(np.array(["a", ""])) == [["a"], [""]]
    assert read(pa.array(["a", None]).dictionary_encode()) == [["a"], [""]]
    assert read(np.array([3, -1]), "int64") == [[3], [-1]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[5, -7], None, [None, 2]]),
        pa.array([[5, -7], [], [None, 2]], pa.large_list(pa.int16())),
        objects([[5, -7], [], [-1, 2]]),
        objects([np.array([5, -7]), np.array([], np.int64), np.array([-1, 2])]),
    ],
)
def test_lists_of_integers(column: Any) -> None:
    assert read(column, "int64") == [[5, -7], [], [-1, 2]]


@pytest.mark.parametrize("dtype", ["string", "int64"])
@pytest.mark.parametrize("column", [objects([[], []]), objects([None, None]), pa.array([[], None])])
def test_lists_without_any_value(column: Any, dtype: str) -> None:
    found = read(column, dtype)
    assert found == [[], []] or (column[0] is None and all(len(row) <= 1 for row in found))


def test_numbers() -> None:
    lists = list_numbers(pa.array([[1, 2], None, [3]]), "k")
    assert lists.values.dtype == np.float32
    assert rows(lists.values, lists.offsets) == [[1, 2], [], [3]]
    lists = list_numbers(pa.array([[1.5, None]]), "k")
    assert np.isnan(lists.values).tolist() == [False, True]
    assert rows(*_pair(list_numbers(np.ones((2, 3)), "k"))) == [[1, 1, 1], [1, 1, 1]]


def _pair(lists: Any) -> tuple[Any, Any]:
    return lists.values, lists.offsets


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.5]]), "must be string, but is double"),
        (np.zeros((2, 2)), "must be string, but is float64"),
        (np.full((1, 2, 2), "a"), r"a list per row, but has the shape \(2, 2\)"),
        (pa.array([[["a"]]]), "must be string|holds lists"),
    ],
)
def test_other_types_are_refused(column: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        read(column)


@pytest.mark.parametrize("bad", [["a", 3], [["a"], 3], {"a": 1}, 3])
def test_a_row_that_cannot_be_is_named(bad: Any) -> None:
    with pytest.raises((RowError, InvalidValueError), match=r"raw column 'k'|column 'k', row 1"):
        read(objects([["a"], bad, ["b"]]))
