"""Inputs that programs for tf.data have: rows of generators, lines of text, Arrow tables, filters, spellings."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from tests.data.positions import numbers
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


def batches(data: Dataset) -> list[Any]:
    return [{name: column.tolist() for name, column in features.items()} for features in data]


# Rows of generators.


def rows(count: int) -> Iterator[Any]:
    for i in range(count):
        yield (
            {"x": i, "v": np.full(2, i, np.float32), "w": f"w{i}", "l": [1] * (i % 3 if i < 150 else 2)},
            torch.tensor(float(i)),
        )


def test_rows_of_a_generator_become_columns_with_labels() -> None:
    data = Dataset.from_generator(rows, args=(300,))
    (first, _), (features, labels) = data.batch(150)
    assert first["l"][:3].tolist() == [[0, 0], [1, 0], [1, 1]]
    assert features["x"].tolist() == list(range(150, 300))
    assert features["v"].dtype == np.float32
    assert features["v"].shape == (150, 2)
    assert features["w"][0] == "w150"
    assert features["l"].tolist() == [[1, 1]] * 150
    assert labels.tolist() == list(range(150, 300))


def test_a_generator_is_shuffled_repeated_and_may_be_a_list() -> None:
    data = Dataset.from_generator([{"x": i} for i in range(10)]).shuffle(10, seed=1).repeat(2).batch(10)
    first, second = (batch["x"] for batch in batches(data))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert batches(Dataset.from_generator(lambda: iter([])).batch(2)) == []
    assert [one.tolist() for one in Dataset.from_generator([1.5, 2.5]).batch(2)] == [[1.5, 2.5]]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([{"x": 1}, {"y": 1}], "row 1 of the generator has y, but the rows before it have the columns x"),
        ([{"x": np.zeros((2, 2))}, {"x": np.zeros((1, 2))}], "column 'x' has values of the shapes"),
        ([{"x": 1}, {"x": "a"}], "'a' is a string, but the values before"),
        ([({"x": 1}, 2, 3)], "must be features or a pair"),
    ],
)
def test_rows_that_do_not_fit_are_named(made: list[Any], words: str) -> None:
    with pytest.raises((DataError, InvalidValueError), match=words):
        list(Dataset.from_generator(made).batch(2))


def test_a_generator_that_was_called_already_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="not the generator that it returned"):
        Dataset.from_generator(rows(3))
    with pytest.raises(InvalidTypeError, match="takes a function that yields rows, but got 3"):
        Dataset.from_generator(3)  # type: ignore[arg-type]


# Lines of text.


def test_lines_are_rows_also_empty_ones_and_without_a_last_newline(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b'one\r\n\r\n,"two\x01\n')
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("drei ä\n\nlast".encode()))
    data = Dataset.from_text([tmp_path / "a.txt", tmp_path / "b.txt.gz"], column="text")
    (batch,) = data.batch(100)
    assert batch["text"].tolist() == ["one", "", ',"two\x01', "drei ä", "", "last"]


def test_many_lines_are_shuffled_over_all_files(tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"{part}.txt").write_text("".join(f"{100_000 * part + i}\n" for i in range(70_000)))
    data = Dataset.from_text(tmp_path / "*.txt").shuffle(1000, seed=1)
    lines = np.concatenate([batch["line"] for batch in data.batch(10_000)]).astype(int)
    assert len(set(lines)) == len(lines) == 210_000
    assert {line // 100_000 for line in lines[:1000]} == {0, 1, 2}


def test_a_line_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nb\xe4d\n")
    with pytest.raises(DataError, match=r"a\.txt, line 2: the line is not UTF-8 text"):
        list(Dataset.from_text(tmp_path / "a.txt").batch(2))


# Arrow tables.


class Capsules:
    """An object that gives Arrow data, as data frames of other libraries do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Any:
        return iter(self._table.columns)


TABLE = pa.table({"x": [1, 2, 3], "w": ["a", None, "c"], "y": [0, 1, 0]})
TABLES = [TABLE, TABLE.to_batches()[0], TABLE.to_reader(), Capsules(TABLE), pa.concat_tables([TABLE[:1], TABLE[1:]])]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)
def test_whatever_gives_arrow_data_is_read(table: Any) -> None:
    table = TABLE.to_reader() if isinstance(table, pa.RecordBatchReader) else table
    ((features, labels),) = Dataset.from_arrow(table, label="y").batch(3)
    assert (features["x"].tolist(), features["w"].tolist(), labels.tolist()) == ([1, 2, 3], ["a", "", "c"], [0, 1, 0])


def test_a_dataset_of_hugging_face_is_read_as_it_is_formatted() -> None:
    # As theirs: rows that were chosen are only in what a slice in the format "arrow" returns.
    methods = {
        "__module__": "datasets.arrow_dataset",
        "data": TABLE,
        "with_format": lambda self, kind: {"arrow": self}[kind],
        "__getitem__": lambda self, rows: TABLE.take([2, 0])[rows],
        "__iter__": lambda self: iter(TABLE.to_pylist()),
    }
    given = type("Dataset", (), methods)()
    ((features, labels),) = Dataset.from_arrow(given, label="y").batch(3)
    assert (features["x"].tolist(), features["w"].tolist(), labels.tolist()) == ([3, 1], ["c", "a"], [0, 0])
    (batch,) = te.data.to_dataset(given, repeat_single_batch=False)
    assert batch["x"].tolist() == [3, 1]


def test_an_input_fn_may_return_a_table_and_from_arrays_may_take_one() -> None:
    for given in (TABLE, TABLE.to_batches()[0], Capsules(TABLE)):
        (batch,) = te.data.to_dataset(given, repeat_single_batch=False)
        assert batch["x"].tolist() == [1, 2, 3]
        features, labels = next(iter(te.data.to_dataset((given, [1.0, 2.0, 3.0]), repeat_single_batch=False)))
        assert (features["w"].tolist(), labels.tolist()) == (["a", "", "c"], [1.0, 2.0, 3.0])
        assert next(iter(Dataset.from_arrays(given).batch(3)))["y"].tolist() == [0, 1, 0]


def test_what_gives_no_table_is_refused() -> None:
    for given, words in [
        ({"x": [1]}, "but got dict"),
        (pa.array([1]), "but got Int64Array"),
        (pd.DataFrame(), "use from_pandas"),
    ]:
        with pytest.raises(InvalidTypeError, match=words):
            Dataset.from_arrow(given)


# Filter and unbatch.


def test_filter_keeps_rows_before_and_after_batch() -> None:
    data = Dataset.from_arrays({"x": np.arange(10)}, np.arange(10) % 2)
    assert numbers(data.filter(lambda features, labels: labels == 1).batch(2)) == [1, 3, 5, 7, 9]
    assert numbers(data.batch(4).filter(lambda features, labels: features["x"].reshape(-1, 1) > 2)) == list(
        range(3, 10)
    )
    assert numbers(data.batch(4).filter(lambda features, labels: bool(len(labels) == 4))) == list(range(8))
    assert numbers(data.filter(lambda features, labels: labels > 5).batch(2).repeat()) == []
    assert numbers(data.filter(lambda features, labels: labels == 1).take(2).batch(2)) == [1, 3]


def test_filter_counts_for_a_model_with_columns(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"x": np.arange(10.0), "keep": [True, False] * 5}, np.arange(10.0))
    estimator = te.BaselineRegressor(str(tmp_path))
    result = estimator.evaluate(data.filter(lambda features, labels: features["keep"]).batch(3))
    assert result["label/mean"] == 4.0


@pytest.mark.parametrize("wrong", [lambda features: [True], lambda features: features["x"], lambda features: True])
def test_an_answer_of_a_filter_that_does_not_fit_is_a_sentence(wrong: Any) -> None:
    data = Dataset.from_arrays({"x": np.arange(3)})
    with pytest.raises(InvalidValueError, match="must return a boolean for each of the 3 rows; before batch"):
        list(data.filter(wrong).batch(2))
    with pytest.raises(InvalidTypeError, match="filter takes a function, but got 3"):
        data.filter(3)  # type: ignore[arg-type]


def test_unbatch_lets_operations_work_on_rows() -> None:
    data = Dataset.from_iterable(lambda: ({"x": np.arange(i, i + 3)} for i in range(0, 9, 3))).unbatch()
    assert numbers(data.skip(1).take(6).shard(2, 0).batch(2)) == [1, 3, 5]
    assert sorted(numbers(data.shuffle(9, seed=1).batch(4))) == list(range(9))
    with pytest.raises(InvalidValueError, match="no batch size"):
        next(iter(data))


def test_a_filter_is_part_of_what_a_cached_file_compares(tmp_path: Path) -> None:
    def cached(most: int) -> list[int]:
        data = Dataset.from_arrays({"x": np.arange(6)}).filter(lambda features: features["x"] < most)
        return numbers(data.cache(tmp_path / "rows.arrow").batch(4))

    assert (cached(3), cached(3), cached(5)) == ([0, 1, 2], [0, 1, 2], [0, 1, 2, 3, 4])


# Spellings of tf.data.


def test_spellings_without_a_meaning_here_are_accepted() -> None:
    data = Dataset.from_arrays({"x": np.arange(6)})
    spelled = (
        data.map(lambda features: features, num_parallel_calls=te.data.AUTOTUNE, deterministic=False)
        .shuffle(6, seed=1, reshuffle_each_iteration=True)
        .batch(2, drop_remainder=True, num_parallel_calls=4)
        .prefetch(te.data.AUTOTUNE)
    )
    assert numbers(spelled) == numbers(data.map(lambda features: features).shuffle(6, seed=1).batch(2))
    with pytest.raises(InvalidValueError, match=r"one order for all epochs, .* call cache\(\) after shuffle"):
        data.shuffle(6, reshuffle_each_iteration=False)


def test_a_dataset_stands_for_its_input_fn(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"x": np.arange(8.0)}, np.arange(8.0)).batch(4)
    estimator = te.BaselineRegressor(str(tmp_path))
    estimator.train(data.repeat(), steps=3)
    train, evaluate = te.TrainSpec(data.repeat(), max_steps=5), te.EvalSpec(data)
    result, _ = te.train_and_evaluate(estimator, train, evaluate)
    assert result["global_step"] == 5
    assert len(list(estimator.predict(data))) == 8
