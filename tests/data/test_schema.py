"""A schema determines which columns of a file are read, and their types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError

ROWS: dict[str, list[Any]] = {"a": [1, 2], "b": [3, 4], "s": ["x", "y"], "y": [0, 1], "unused": [9, 9]}
SCHEMA = pa.schema({"s": pa.string(), "a": pa.float32()})


def csv(folder: Path, **arguments: Any) -> Dataset:
    lines = [",".join(ROWS), *(",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True))]
    (folder / "a.csv").write_text("\n".join(lines))
    return Dataset.from_csv(folder / "a.csv", **arguments)


def parquet(folder: Path, **arguments: Any) -> Dataset:
    pq.write_table(pa.table(ROWS), folder / "a.parquet")
    return Dataset.from_parquet(folder / "a.parquet", **arguments)


def json_lines(folder: Path, **arguments: Any) -> Dataset:
    rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Dataset.from_json(folder / "a.jsonl", **arguments)


SOURCES = [csv, parquet, json_lines]
Source = Callable[..., Dataset]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("label", [None, "y", "a"])
def test_exactly_the_schema_s_columns_are_read_in_its_types(source: Source, label: str | None, tmp_path: Path) -> None:
    with source(tmp_path, schema=SCHEMA, label=label).batch(2).iterator() as iterator:
        features, labels = next(iterator)
    assert set(features) == {"s", "a"} - {label}
    assert features["s"].to_pylist() == ["x", "y"]
    if label == "a":
        assert labels.dtype == np.float32
    else:
        assert features["a"].dtype == np.float32
        assert (labels is None) == (label is None)


@pytest.mark.parametrize("source", SOURCES)
def test_a_column_that_is_not_there_is_named(source: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'z' is not in"):
        list(source(tmp_path, schema=pa.schema({"z": pa.int64()})).batch(2))


@pytest.mark.parametrize("source", SOURCES)
def test_a_value_that_is_not_of_its_type_is_named(source: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 's'.*"):
        list(source(tmp_path, schema=pa.schema({"s": pa.int64()})).batch(2))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        ({"a": pa.int64()}, InvalidTypeError, "schema must be a pyarrow.Schema, but got"),
        (pa.schema([]), InvalidValueError, "schema has no columns"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), InvalidValueError, "several columns called 'a'"),
        (pa.schema({"a": pa.date32()}), InvalidTypeError, "column 'a' cannot be read as"),
    ],
)
def test_other_schemas_are_refused(
    source: Source, schema: Any, error: type[UserError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        source(tmp_path, schema=schema)


def test_a_schema_excludes_other_arguments(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="takes a schema, or column_types and select_columns, not both"):
        csv(tmp_path, schema=SCHEMA, column_types={"a": int})
    with pytest.raises(InvalidValueError, match="takes a schema or columns, not both"):
        parquet(tmp_path, schema=SCHEMA, columns=["a"])


def test_files_without_a_header_may_have_just_the_schema_s_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,1\ny,2\n")
    (batch,) = Dataset.from_csv(tmp_path / "a.csv", schema=SCHEMA, header=False).batch(2)
    assert {name: column.tolist() for name, column in batch.items()} == {"s": ["x", "y"], "a": [1, 2]}


def test_parquet_columns_are_converted(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([1, 2], pa.int16()),
            "f": pa.array([[1.5, 2.5], [3.5, 4.5]]),
            "v": pa.array([[1], [2, 3]], pa.list_(pa.int32())),
            "d": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    schema = pa.schema({"n": pa.string(), "f": pa.list_(pa.float32(), 2), "v": pa.list_(pa.int64()), "d": pa.string()})
    with Dataset.from_parquet(tmp_path / "a.parquet", schema=schema).batch(2).iterator() as iterator:
        features = next(iterator).features
    assert features["n"].to_pylist() == ["1", "2"]
    assert features["f"].dtype == np.float32
    assert features["f"].shape == (2, 2)
    assert features["v"].tolist() == [[1, 0], [2, 3]]
    assert features["d"].to_pylist() == ["a", "b"]
