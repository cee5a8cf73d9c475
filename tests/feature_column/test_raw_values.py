"""Reading raw columns: strings, integers and numbers, one value a row or lists of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.raw_values import (
    Distinct,
    distinct_integers,
    distinct_strings,
    list_numbers,
    list_values,
    numbers,
)


def decoded(distinct: Distinct) -> list[Any]:
    return [distinct.values[code] for code in distinct.codes]


WORDS = ["b", "", "Škoda", "b", "日本"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(WORDS),
        pa.array(WORDS, pa.large_string()),
        pa.array(["x", *WORDS]).slice(1),
        pa.array(WORDS).dictionary_encode(),
        pa.array(["x", *WORDS]).dictionary_encode().slice(1),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, 1, 3], pa.int32()), ["", "b", "Škoda", "日本"]),
        np.array(WORDS, dtype=object),
        np.array(WORDS),
        np.array(WORDS)[:, None],
        np.array([word.encode() for word in WORDS]),
        np.array([word.encode() for word in WORDS], dtype=object),
        np.array([np.str_(word) for word in WORDS], dtype=object),
    ],
)
def test_strings_of_every_kind_are_the_same(column: Any) -> None:
    assert decoded(distinct_strings(column, "k")) == WORDS


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", None])),
        np.array(["a", None], dtype=object),
        np.array(["a", float("nan")], dtype=object),
    ],
)
def test_nulls_are_empty_strings(column: Any) -> None:
    assert decoded(distinct_strings(column, "k")) == ["a", ""]


def test_a_dictionary_much_larger_than_the_chunk_is_narrowed() -> None:
    column = pa.array([str(i) for i in range(5000)]).dictionary_encode().slice(4000, 3)
    distinct = distinct_strings(column, "k")
    assert decoded(distinct) == ["4000", "4001", "4002"]
    assert len(distinct.values) == 3


@pytest.mark.parametrize(
    "column",
    [np.zeros(3), np.zeros(3, np.int64), pa.array([1.5]), pa.array([1]).dictionary_encode(), np.array([True])],
)
def test_numbers_in_place_of_strings_name_key_and_types(column: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"raw column 'job' must be string, but is (float|double|int|bool)"):
        distinct_strings(column, "job")


@pytest.mark.parametrize("bad", [3, 2.5, b"\xff", ["a"]])
def test_a_value_that_is_not_a_string_names_its_row(bad: Any) -> None:
    column = np.empty(3, dtype=object)
    column[:] = ["a", "b", "c"]
    column[1] = bad
    with pytest.raises(RowError) as caught:
        distinct_strings(column, "job")
    assert (caught.value.row, caught.value.column) == (1, "job")


def test_several_strings_a_row_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"one value per row, but has the shape \(2,\)"):
        distinct_strings(np.array([["a", "b"]]), "job")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint16])
def test_integers_of_any_width(dtype: Any) -> None:
    assert decoded(distinct_integers(np.array([7, 3, 7], dtype), "k")) == [7, 3, 7]
    assert decoded(distinct_integers(pa.array([7, None, 7]), "k")) == [7, -1, 7]


@pytest.mark.parametrize("column", [np.zeros(2), np.array(["1"]), pa.array(["1"]), np.array([True])])
def test_floats_are_not_accepted_as_integers(column: Any) -> None:
    with pytest.raises(InvalidValueError, match="raw column 'k' must be int64, but is"):
        distinct_integers(column, "k")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.bool_])
def test_numbers_of_any_dtype_become_float32(dtype: Any) -> None:
    result = numbers(np.array([1, 0], dtype), "k", (1,))
    assert result.dtype == np.float32
    assert result.tolist() == [[1], [0]]


def test_arrow_nulls_are_nan() -> None:
    assert np.isnan(numbers(pa.array([1.0, None]), "k", (1,))[1, 0])
    assert np.isnan(numbers(pa.array([1, None]), "k", (1,))[1, 0])


@pytest.mark.parametrize("column", [np.array(["1"]), np.array(["1"], object), pa.array(["1"])])
def test_text_in_place_of_numbers_names_key_and_types(column: Any) -> None:
    with pytest.raises(InvalidValueError, match="raw column 'age' must be float32, but is"):
        numbers(column, "age", (1,))


def test_numbers_of_another_shape_are_refused() -> None:
    assert numbers(np.zeros((4, 2, 3)), "k", (2, 3)).shape == (4, 2, 3)
    for shape in ((4,), (4, 3), (4, 3, 2)):
        with pytest.raises(InvalidValueError, match=r"must have the shape \(2, 3\) per row"):
            numbers(np.zeros(shape), "k", (2, 3))


def test_a_number_too_large_for_float32_is_named_and_infinities_stay() -> None:
    column = np.array([[1.0, np.inf], [np.nan, -1e300]])
    with pytest.raises(RowError, match=r"^column 'k', row 1 of the batch: number -1e\+300 is beyond float32, who"):
        numbers(column, "k", (2,))
    with pytest.raises(RowError, match="row 1 of the batch: number 1e"):
        numbers(pa.array([1.0, 1e300, None]), "k", (1,))
    column[1, 1] = 3.4e38
    np.testing.assert_array_equal(numbers(column, "k", (2,)), column.astype(np.float32))


WORD_LISTS = [["b", "Škoda"], [], ["b", ""], [""], ["日本"]]


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
        pa.array(WORD_LISTS),
        pa.array(WORD_LISTS, pa.large_list(pa.large_string())),
        pa.array([["x"], *WORD_LISTS]).slice(1),
        pa.array([["b", "Škoda"], None, ["b", None], [""], ["日本"]]),
        objects(WORD_LISTS),
        objects([np.array(row) for row in WORD_LISTS[:1]] + WORD_LISTS[1:]),
        objects([tuple(row) for row in WORD_LISTS]),
        objects([["b", "Škoda"], None, ["b", None], "", "日本"]),
    ],
)
def test_lists_of_strings_of_every_kind_are_the_same(column: Any) -> None:
    assert read(column) == WORD_LISTS


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
def test_an_invalid_row_is_named(bad: Any) -> None:
    with pytest.raises((RowError, InvalidValueError), match=r"raw column 'k'|column 'k', row 1"):
        read(objects([["a"], bad, ["b"]]))
