"""Parquet files: types, defaults, and errors that name the row."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from tests.data.positions import numbers
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError


def written(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=4)
    return path


def test_types_become_numpy_arrays_and_strings(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.parquet",
        i=pa.array([1, 2], pa.int16()),
        f=pa.array([1.0, 2.0], pa.float64()),
        b=[True, False],
        s=["x", None],
        e=pa.array(["x", None]).dictionary_encode(),
        d=[date(2020, 1, 2), None],
        m=[Decimal("1.5"), Decimal("2.5")],
        v=pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())),
        w=pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        n=pa.nulls(2),
    )
    (batch,) = Dataset.from_parquet(file).batch(2)
    assert {name: column.tolist() for name, column in batch.items()} == {
        "i": [1, 2],
        "f": [1.0, 2.0],
        "b": [True, False],
        "s": ["x", ""],
        "e": ["x", ""],
        "d": ["2020-01-02", ""],
        "m": [1.5, 2.5],
        "v": [[1.0, 2.0], [3.0, 4.0]],
        "w": [[1, 2], [3, 4]],
        "n": ["", ""],
    }
    assert batch["i"].dtype == np.int16
    assert batch["v"].dtype == np.float32


def test_defaults_fill_missing_values(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", x=[1, None, 3], s=["a", None, ""])
    (batch,) = Dataset.from_parquet(file, defaults={"x": 9, "s": "none"}).batch(3)
    assert batch["x"].tolist() == [1, 9, 3]
    assert batch["s"].tolist() == ["a", "none", "none"]


def test_columns_label_globs_and_urls(tmp_path: Path) -> None:
    for number in (2, 1):
        written(tmp_path / f"{number}.parquet", x=[number], y=[7], z=[0])
    batches = list(Dataset.from_parquet(tmp_path / "*.parquet", columns=["x"], label="y").batch(3))
    assert [(list(features), features["x"].tolist(), labels.tolist()) for features, labels in batches] == [
        (["x"], [1, 2], [7, 7])
    ]
    with fsspec.open("memory://parquet/a.parquet", "wb") as file:
        file.write((tmp_path / "1.parquet").read_bytes())
    assert numbers(Dataset.from_parquet("memory://parquet/*.parquet").batch(3)) == [1]


def test_large_row_groups_are_read_in_slices(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(200_000)}), file)
    assert numbers(Dataset.from_parquet(file).batch(30_000)) == list(range(200_000))
    assert sorted(numbers(Dataset.from_parquet(file).shuffle(2, seed=1).batch(30_000))) == list(range(200_000))


def test_a_missing_number_is_named_by_file_and_row(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", x=[*range(9), None])
    with pytest.raises(DataError) as raised:
        list(Dataset.from_parquet(file).batch(2))
    problem = "the value is missing and has no default; give one, as defaults={'x': 0} does"
    assert str(raised.value) == f"{file}, row 9 (from 0): column 'x': {problem}."


def test_an_unknown_label_is_named_by_file_and_row_even_if_shuffled(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", x=range(9), y=[*"abababab", "c"])
    data = Dataset.from_parquet(file).label("y", {"a": 0, "b": 1}).shuffle(100, seed=1).batch(2)
    with pytest.raises(DataError) as raised:
        list(data)
    assert str(raised.value) == f"{file}, row 8 (from 0): column 'y': unknown label 'c'; expected one of 'a', 'b'."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["z"]}, "column 'z' is not in {file}; the columns there are x, s"),
        ({"label": "z"}, "column 'z' is not in {file}; the columns there are x, s"),
        ({"files": "none.parquet"}, "There is no file none.parquet."),
    ],
)
def test_missing_files_and_columns_are_named(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", x=[1], s=["a"])
    with pytest.raises(DataError) as raised:
        list(Dataset.from_parquet(**{"files": file, **arguments}).batch(2))
    assert str(raised.value).startswith(message.format(file=file))


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_text("x\n1\n")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet: "):
        list(Dataset.from_parquet(file).batch(2))


@pytest.mark.parametrize("damage", ["places", "text"])
def test_damaged_strings_are_named(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"word": [f"word {i % 5}" for i in range(200)]}), file, compression="none")
    content = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    end = column.dictionary_page_offset + column.total_compressed_size
    if damage == "places":
        # Three bits a row, of which there are more than the dictionary has entries.
        content[end - 30 : end] = b"\xff" * 30
    else:
        content[content.index(b"word 3")] = 0xFF
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet: "):
        list(Dataset.from_parquet(file).batch(10))


def test_a_column_of_the_wrong_kind_for_the_model_is_named(tmp_path: Path) -> None:
    class Wants:
        required = {"s": pa.float32()}  # noqa: RUF012 - a constant

        def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
            return features, labels

    file = written(tmp_path / "a.parquet", s=["a"])
    with (
        Dataset.from_parquet(file).batch(1).iterator(Wants()) as iterator,
        pytest.raises(DataError, match=r"column 's' holds strings \(here 'a'\), but the model wants numbers"),
    ):
        next(iterator)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            pa.array([date(2020, 1, 2)] * 3),
            "row 0 (from 0): column 'x' holds strings (here '2020-01-02'), but",
        ),
        (pa.array([[1], [1, 2], [3]]), "row 1 (from 0): column 'x': the list has length 2, but those before have 1"),
        (pa.array([[1], [2], [None]]), "row 2 (from 0): column 'x': the value is missing"),
        (pa.array([["a"], ["b"], ["c"]]), "column 'x' holds lists of string, but the model wants numbers"),
        (pa.array([[[1]], [[2]], [[3]]]), "column 'x' must hold lists of numbers or of strings, but is list<"),
        (pa.array([b"a", b"\xff", b"b"]), r"row 1 (from 0): column 'x': b'\xff' is not UTF-8 text."),
        (pa.array([{"a": 1}] * 3), "column 'x' has the Arrow type struct<a: int64>, which cannot be used"),
    ],
)
def test_a_column_that_cannot_be_numbers_is_named(values: pa.Array, message: str, tmp_path: Path) -> None:
    class Wants:
        required = {"x": pa.float32()}  # noqa: RUF012 - a constant

        def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
            return features, labels

    file = written(tmp_path / "a.parquet", x=values)
    with Dataset.from_parquet(file).batch(3).iterator(Wants()) as iterator, pytest.raises(DataError) as raised:
        next(iterator)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(file))


def test_a_default_that_does_not_fit_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", x=[1, None])
    with pytest.raises(DataError, match=r"a\.parquet: the default 'a' of column 'x' cannot be read as int64"):
        list(Dataset.from_parquet(file, defaults={"x": "a"}).batch(2))


def test_files_without_rows_are_an_error_unless_another_one_has_some(tmp_path: Path) -> None:
    empty = written(tmp_path / "a.parquet", x=pa.array([], pa.int64()))
    with pytest.raises(DataError, match=r"a\.parquet has no rows\."):
        list(Dataset.from_parquet(empty).batch(2))
    assert numbers(Dataset.from_parquet([empty, written(tmp_path / "b.parquet", x=[1])]).batch(2)) == [1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("distinct", [3, 200_000])
def test_strings_of_many_pages_and_row_groups_are_read_as_written(
    kind: pa.DataType, distinct: int, tmp_path: Path
) -> None:
    """A file with many distinct strings stores some dictionary encoded and the rest plain."""
    words = [None if i % 7 == 0 else f"wörd {i * 7919 % distinct}" for i in range(150_000)]
    table = pa.table({"s": pa.array(words, kind), "x": np.arange(len(words))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100_000, dictionary_pagesize_limit=10_000)
    for data in (
        Dataset.from_parquet(tmp_path / "a.parquet"),
        Dataset.from_parquet(tmp_path / "*", schema=table.schema),
    ):
        read = [word for batch in data.batch(40_000) for word in batch["s"]]
        assert read == [word or "" for word in words]


def test_dictionary_encoded_strings_stay_encoded(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["a", "b", None, "a"] * 100}), tmp_path / "a.parquet")
    with Dataset.from_parquet(tmp_path / "a.parquet").batch(400).iterator() as batches:
        column = next(batches).features["s"]
    assert column.type == pa.dictionary(pa.int32(), pa.string())
    assert sorted(column.dictionary.to_pylist()) == ["", "a", "b"]


def _write(directory: Path, *tables: dict[str, Any]) -> str:
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), directory / f"{number}.parquet")
    return str(directory / "*.parquet")


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_column_that_a_file_lacks_is_named(tmp_path: Path, lacking: int) -> None:
    tables: list[dict[str, Any]] = [{"x": [1.0]}, {"x": [2.0]}]
    tables[1 - lacking]["z"] = ["a"]
    files = _write(tmp_path, *tables)
    problem = f"{lacking}.parquet has no column 'z', which .*{1 - lacking}.parquet has; give defaults="
    for data in (
        Dataset.from_parquet(files),
        Dataset.from_parquet(files, label="z"),
        Dataset.from_parquet(files).map(len),
    ):
        with pytest.raises(DataError, match=problem):
            next(iter(data.batch(2)))
    # Nobody reads it.
    (batch,) = Dataset.from_parquet(files, columns=["x"]).batch(2)
    assert batch["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "default"), [(["a", "b"], "none"), ([1, 2], 7), ([1.5, 2.5], 0.5), ([True, False], True)]
)
@pytest.mark.parametrize("lacking", [0, 1])
def test_the_default_of_a_column_fills_files_without_it(
    tmp_path: Path, values: list[Any], default: Any, lacking: int
) -> None:
    tables: list[dict[str, Any]] = [{"x": [1.0, 2.0]}, {"x": [3.0, 4.0]}]
    tables[1 - lacking]["z"] = values
    (batch,) = Dataset.from_parquet(_write(tmp_path, *tables), defaults={"z": default}).batch(4)
    filled = [default, default]
    assert batch["z"].tolist() == ([*filled, *values] if lacking == 0 else [*values, *filled])
    assert batch["x"].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        (["1"], [1], "int64 in .*1.parquet, but string in .*0.parquet"),
        ([1.5], ["a"], "string in .*1.parquet, but double in .*0.parquet"),
        ([1], [[1, 2]], "list<element: int64> in .*1.parquet, but int64 in .*0.parquet"),
    ],
)
def test_a_column_of_another_kind_is_named(tmp_path: Path, one: list[Any], other: list[Any], kinds: str) -> None:
    files = _write(tmp_path, {"size": one}, {"size": other})
    with pytest.raises(DataError, match=f"column 'size' is {kinds}; give a schema"):
        next(iter(Dataset.from_parquet(files).batch(2)))


def test_a_schema_converts_columns_of_another_kind(tmp_path: Path) -> None:
    files = _write(tmp_path, {"size": ["1"]}, {"size": [2]})
    (batch,) = Dataset.from_parquet(files, schema=pa.schema([pa.field("size", pa.int64())])).batch(2)
    assert batch["size"].tolist() == [1, 2]


@pytest.mark.parametrize("empty", [0, 1])
def test_a_column_without_values_in_a_file_has_the_type_of_the_others(tmp_path: Path, empty: int) -> None:
    # pandas writes a column of None as one of the type null.
    tables: list[dict[str, Any]] = [{"z": ["a"], "x": [1.0]}, {"z": ["b"], "x": [2.0]}]
    tables[empty]["z"] = pa.nulls(1)
    (batch,) = Dataset.from_parquet(_write(tmp_path, *tables)).batch(2)
    assert batch["z"].tolist() == (["", "b"] if empty == 0 else ["a", ""])


def test_strings_of_both_encodings_are_of_one_kind(tmp_path: Path) -> None:
    files = _write(tmp_path, {"z": ["a"]}, {"z": pa.array(["b"]).dictionary_encode()})
    (batch,) = Dataset.from_parquet(files).batch(2)
    assert batch["z"].tolist() == ["a", "b"]


def test_whole_decimals_are_exact_ids(tmp_path: Path) -> None:
    estimator = te.LinearRegressor([fc.categorical_column_with_hash_bucket("k", 10**6, dtype="int64")], tmp_path / "r")
    for number in (2**53 + 1, 2**62 + 1):
        table = pa.table({"k": pa.array([Decimal(number)], pa.decimal128(38, 0)), "y": [1.0]})
        pq.write_table(table, tmp_path / "a.parquet")
        estimator.train(lambda: Dataset.from_parquet(tmp_path / "a.parquet", label="y").batch(1), steps=5)
        predicted = [
            [row["predictions"].item() for row in estimator.predict(lambda data=data: data.batch(1))]
            for data in (
                Dataset.from_parquet(tmp_path / "a.parquet", label="y"),
                Dataset.from_arrays({"k": [number]}),
            )
        ]
        assert predicted[0] == predicted[1]
    pq.write_table(pa.table({"k": [Decimal("1.5")], "y": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 0 \(from 0\): column 'k': .*1\.5.* is not a whole number \(int64\)"):
        estimator.train(lambda: Dataset.from_parquet(tmp_path / "a.parquet", label="y").batch(1), steps=5)
