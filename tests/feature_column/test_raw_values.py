from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.raw_values import Distinct, distinct_integers, distinct_strings, numbers


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
def test_numbers_where_strings_are_wanted_name_key_and_types(column: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"raw column 'job' must be string, but is (float|double|int|bool)"):
        distinct_strings(column, "job")


@pytest.mark.parametrize("bad", [3, 2.5, b"\xff", ["a"]])
def test_one_value_that_is_no_string_names_its_row(bad: Any) -> None:
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
def test_integers_are_not_guessed(column: Any) -> None:
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
def test_text_where_numbers_are_wanted_names_key_and_types(column: Any) -> None:
    with pytest.raises(InvalidValueError, match="raw column 'age' must be float32, but is"):
        numbers(column, "age", (1,))


def test_numbers_of_another_shape_are_refused() -> None:
    assert numbers(np.zeros((4, 2, 3)), "k", (2, 3)).shape == (4, 2, 3)
    for shape in ((4,), (4, 3), (4, 3, 2)):
        with pytest.raises(InvalidValueError, match=r"must have the shape \(2, 3\) per row"):
            numbers(np.zeros(shape), "k", (2, 3))


def test_a_number_that_float32_does_not_hold_is_named_and_infinities_stay() -> None:
    column = np.array([[1.0, np.inf], [np.nan, -1e300]])
    with pytest.raises(RowError, match=r"^column 'k', row 1 of the batch: number -1e\+300 is beyond float32, who"):
        numbers(column, "k", (2,))
    with pytest.raises(RowError, match="row 1 of the batch: number 1e"):
        numbers(pa.array([1.0, 1e300, None]), "k", (1,))
    column[1, 1] = 3.4e38
    np.testing.assert_array_equal(numbers(column, "k", (2,)), column.astype(np.float32))
