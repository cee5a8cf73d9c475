"""Columns of lists that differ in length, and their batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.positions import check_every_position
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError

NUMBERS = [[1, 2, 3], [], [4], [5, 6]]
WORDS = [["a", "b", "c"], [], ["d"], ["e", ""]]


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def parquet(folder: Path) -> Dataset:
    pq.write_table(pa.table({"n": NUMBERS, "w": WORDS}), folder / "a.parquet", row_group_size=3)
    return Dataset.from_parquet(folder / "a.parquet")


def large_lists(folder: Path) -> Dataset:
    kinds = [pa.large_list(pa.int64()), pa.large_list(pa.large_string())]
    return Dataset.from_arrays({"n": pa.array(NUMBERS, kinds[0]), "w": pa.array(WORDS, kinds[1])})


def arrow(folder: Path) -> Dataset:
    missing = pa.chunked_array([[["a", "b", "c"], None], [["d"], ["e", None]]])
    return Dataset.from_arrays({"n": pa.array(NUMBERS), "w": missing})


def object_arrays(folder: Path) -> Dataset:
    return Dataset.from_arrays({"n": objects([np.array(v, int) for v in NUMBERS]), "w": objects(WORDS)})


def frame(folder: Path) -> Dataset:
    return Dataset.from_pandas(pd.DataFrame({"n": NUMBERS, "w": WORDS}))


def iterable(folder: Path) -> Dataset:
    batches = [{"n": objects(NUMBERS[i : i + 2]), "w": objects(WORDS[i : i + 2])} for i in (0, 2)]
    return Dataset.from_iterable(batches)


def json_lines(folder: Path) -> Dataset:
    pd.DataFrame({"n": NUMBERS, "w": WORDS}).to_json(folder / "a.jsonl", orient="records", lines=True)
    return Dataset.from_json(folder / "a.jsonl")


SOURCES = [parquet, large_lists, arrow, object_arrays, frame, iterable, json_lines]
Source = Callable[[Path], Dataset]


@pytest.mark.parametrize("source", SOURCES)
def test_lists_are_padded_to_the_longest_of_their_batch(source: Source, tmp_path: Path) -> None:
    first, second = source(tmp_path).batch(2)
    assert first["n"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert first["n"].dtype == np.int64
    assert second["n"].tolist() == [[4, 0], [5, 6]]
    assert first["w"].tolist() == [["a", "b", "c"], ["", "", ""]]
    assert second["w"].tolist() == [["d", ""], ["e", ""]]
    assert list(first) == ["n", "w"]


@pytest.mark.parametrize("source", SOURCES)
def test_a_padded_batch_has_the_lengths(source: Source, tmp_path: Path) -> None:
    padding = {"n": -1, "w": "?"}
    first, second = source(tmp_path).padded_batch(3, padding_values=padding)
    assert first["n"].tolist() == [[1, 2, 3], [-1, -1, -1], [4, -1, -1]]
    assert first["w"].tolist() == [["a", "b", "c"], ["?", "?", "?"], ["d", "?", "?"]]
    assert first["n_length"].tolist() == first["w_length"].tolist() == [3, 0, 1]
    assert first["n_length"].dtype == np.int64
    assert second["n_length"].tolist() == [2]
    assert len(list(source(tmp_path).padded_batch(3, drop_remainder=True))) == 1


@pytest.mark.parametrize("source", SOURCES)
def test_every_position_in_lists_is_restored(source: Source, tmp_path: Path) -> None:
    def make() -> Dataset:
        return source(tmp_path).shuffle(9, seed=3).repeat(3).padded_batch(3)

    assert check_every_position(make) == 4


def test_an_iterable_s_own_batches_are_padded() -> None:
    first, second = iterable(Path())
    assert first["n"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert second["n"].tolist() == [[4, 0], [5, 6]]


def test_a_map_sees_padded_batches_or_lists_before_batching() -> None:
    data = arrow(Path())
    assert [batch["n"].shape for batch in data.batch(2).map(lambda f: {"n": f["n"] + 1})] == [(2, 3), (2, 2)]
    doubled = data.map(lambda f: {"n": objects([2 * np.array(one) for one in f["n"]])})
    assert [batch["n"].tolist() for batch in doubled.batch(4)] == [[[2, 4, 6], [0, 0, 0], [8, 0, 0], [10, 12, 0]]]


def test_labels_may_be_lists() -> None:
    ((_, labels),) = Dataset.from_arrays({"x": [1, 2, 3, 4]}, pa.array(NUMBERS)).batch(4)
    assert labels.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0], [5, 6, 0]]


def test_empty_lists_fit_any_kind() -> None:
    data = Dataset.from_iterable([{"x": objects([[], []])}, {"x": objects([[1]])}, {"x": objects([[0.5]])}])
    assert [batch["x"].tolist() for batch in data.batch(4)] == [[[0.0], [0.0], [1.0], [0.5]]]
    assert [batch["x"].shape for batch in data] == [(2, 0), (1, 1), (1, 1)]


class Wants:
    """A transform that returns what it gets."""

    def __init__(self, kind: pa.DataType) -> None:
        self.required = {"x": kind}

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return {"kind": np.array([type(features["x"]).__name__] * len(features["x"])), **features}, labels


def wanted(column: Any, kind: pa.DataType) -> Any:
    with Dataset.from_arrays({"x": column}).batch(9).iterator(Wants(kind)) as batches:
        return next(batches).features


def test_a_model_that_reads_lists_gets_arrow_lists() -> None:
    strings, integers = pa.list_(pa.string()), pa.list_(pa.int64())
    assert wanted(pa.array(WORDS), strings)["kind"][0] == "ListArray"
    assert wanted(np.array([["a", "b"], ["c", ""]], object), strings)["x"].tolist() == [["a", "b"], ["c", ""]]
    assert wanted(["a", "b"], strings)["x"].tolist() == [["a"], ["b"]]
    assert wanted(np.array([[1, 2], [3, 4]]), integers)["x"].tolist() == [[1, 2], [3, 4]]
    assert wanted([1, 2], integers)["kind"][0] == "ListArray"
    assert wanted(objects([[], []]), strings)["x"].dtype == object


def test_a_model_that_reads_numbers_gets_lists_of_one_length_as_an_array() -> None:
    column = pa.array([[1.0, 2.0], [3.0, 4.0]])
    assert wanted(column, pa.float32())["kind"][0] == "ndarray"
    with pytest.raises(DataError, match=r"row 1 .*column 'x': the list has length 0, but those before have 3"):
        wanted(pa.array(NUMBERS), pa.float32())
    with pytest.raises(DataError, match="column 'x' holds lists of string, but the model wants numbers"):
        wanted(pa.array(WORDS), pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: {"x": pa.array([[1], [2, None]])}, DataError, "row 1 .*column 'x': the value is missing"),
        (lambda: {"x": pa.array([[[1]], [[2]]])}, InvalidTypeError, "column 'x' must hold lists of numbers or of"),
        (lambda: {"x": [[1], [2, 3]]}, InvalidTypeError, r"row 1 holds a list of 2; give pyarrow.array\(...\) if"),
    ],
)
def test_lists_of_unusable_values_are_refused(make: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset.from_arrays(make())


@pytest.mark.parametrize("value", ["a", 1.5, 2**70])
def test_padding_must_be_of_the_lists_kind(value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"padding_values has {value!r} for column 'n', which holds int64"):
        list(arrow(Path()).padded_batch(2, padding_values={"n": value}))
    with pytest.raises(InvalidTypeError, match=r"padding_values must be a number or a string, .*but got \[1\]"):
        arrow(Path()).padded_batch(2, padding_values=[1])


def test_a_column_in_the_place_of_the_lengths_is_named() -> None:
    data = Dataset.from_arrays({"x": pa.array([[1], [2]]), "x_length": [1, 2]})
    with pytest.raises(DataError, match="there is a column 'x_length', which is where the lengths"):
        list(data.padded_batch(2))
