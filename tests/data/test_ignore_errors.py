"""Rows that cannot be read are left out where `ignore_errors` says so, and the log names them by file and position."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError

CSV = b'x,word\n1,a\n2\n\nold,b\n,c\n"open,d\n6,\xff\n7,e\n'
JSON = b"""\
{"x": 1, "word": "a"}
{"x": 2
[3]

{"x": null, "word": "c"}
{"x": 6, "word": "\xff"}
{"x": 7, "word": "e"}
"""

FLOATS = {"x": "float32"}


def rows_of(data: Dataset) -> list[tuple[float, str]]:
    batches = list(data.batch(3))
    return [
        pair for features in batches for pair in zip(features["x"].tolist(), features["word"].tolist(), strict=True)
    ]


def csv(path: Path, **options: Any) -> Dataset:
    path.write_bytes(CSV)
    return Dataset.from_csv(path, column_types=FLOATS, **options)


def json_lines(path: Path, **options: Any) -> Dataset:
    path.write_bytes(JSON)
    return Dataset.from_json(path, column_types=FLOATS, **options)


def parquet(path: Path, **options: Any) -> Dataset:
    columns = {"x": [1.0, None, None, 7.0], "word": ["a", "b", "c", "e"]}
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return Dataset.from_parquet(path, **options)


@pytest.mark.parametrize(
    ("make", "left_out", "place", "problem"),
    [
        (csv, 5, "line 3", "1 fields, but there are 2 columns (x, word)"),
        (json_lines, 4, "line 2", "not JSON"),
        (parquet, 2, "row 1 (from 0)", "column 'x': the value is missing and has no default"),
    ],
)
def test_wrong_rows_are_left_out_and_logged_once(
    make: Callable[..., Dataset],
    left_out: int,
    place: str,
    problem: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "rows"
    with pytest.raises(DataError) as raised:
        rows_of(make(path))
    assert str(raised.value).startswith(f"{path}, {place}: {problem}")
    with caplog.at_level(logging.WARNING, "torch_estimator"):
        assert rows_of(make(path, ignore_errors=True).repeat(2)) == [(1.0, "a"), (7.0, "e")] * 2
    messages = [record.getMessage() for record in caplog.records]
    assert sum(int(message.split()[2]) for message in messages) == left_out
    assert f"{path}, {place}: {problem}" in messages[0]


@pytest.mark.parametrize("make", [csv, json_lines, parquet])
def test_errors_about_the_rows_that_are_left_name_their_own_place(make: Callable[..., Dataset], tmp_path: Path) -> None:
    path = tmp_path / "rows"
    data = make(path, ignore_errors=True, label="word")
    estimator = te.LinearClassifier([fc.numeric_column("x")], tmp_path / "model", label_vocabulary=["a", "b"])
    with pytest.raises(DataError, match="unknown label 'e'") as raised:
        estimator.train(lambda: data.batch(10), steps=1)
    place = {csv: "line 9", json_lines: "line 7", parquet: "row 3 (from 0)"}[make]
    assert str(raised.value).startswith(f"{path}, {place}: ")


@pytest.mark.parametrize("shuffled", [False, True])
def test_wrong_rows_among_many_good_ones(shuffled: bool, tmp_path: Path) -> None:
    wrong = {0, 777, 7999}
    lines = [f"{number},word" if number not in wrong else f"{number}" for number in range(20_000)]
    (tmp_path / "rows.csv").write_text("x,word\n" + "\n".join(lines))
    data = Dataset.from_csv(tmp_path / "rows.csv", ignore_errors=True)
    found = [x for features in (data.shuffle(30_000, seed=1) if shuffled else data).batch(999) for x in features["x"]]
    assert sorted(found) == [number for number in range(20_000) if number not in wrong]
    assert (found == sorted(found)) is not shuffled


def test_the_types_of_a_model_decide_which_values_of_json_are_wrong(tmp_path: Path) -> None:
    values = [1.5, "old", 2.5, None]
    (tmp_path / "rows").write_text("".join(json.dumps({"x": value, "y": 0.0}) + "\n" for value in values))
    data = Dataset.from_json(tmp_path / "rows", label="y", ignore_errors=True)
    estimator = te.LinearRegressor([fc.numeric_column("x")], tmp_path / "model")
    assert len(list(estimator.train(lambda: data.batch(5), steps=1).predict(lambda: data.batch(5)))) == 2


def test_values_that_cannot_be_converted_leave_out_their_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": ["1.5", "old", "2.5"]}), tmp_path / "rows")
    schema = pa.schema({"x": pa.float32()})
    with pytest.raises(DataError, match=r"rows, row 1 \(from 0\): column 'x': 'old' is not a number \(float\)\."):
        list(Dataset.from_parquet(tmp_path / "rows", schema=schema).batch(5))
    data = Dataset.from_parquet(tmp_path / "rows", schema=schema, ignore_errors=True)
    assert [features["x"].tolist() for features in data.batch(5)] == [[1.5, 2.5]]


@pytest.mark.parametrize("make", [csv, json_lines])
def test_a_file_without_a_row_that_can_be_read_is_an_error(make: Callable[..., Dataset], tmp_path: Path) -> None:
    data = make(tmp_path / "rows", ignore_errors=True)
    (tmp_path / "rows").write_text("x,word\n1,2,3\n")
    with pytest.raises(DataError, match=r"rows has no rows|none of the first rows can be read"):
        rows_of(data)
