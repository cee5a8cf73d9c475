"""A missing label must not become a label of 0: the error says to leave the row out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import torch_estimator as te
from torch_estimator.errors import DataError


def csv(folder: Path) -> te.data.Dataset:
    (folder / "a.csv").write_text("x,days\n1,3\n,4\n2,\n")
    return te.data.Dataset.from_csv(str(folder / "a.csv"), defaults={"x": 0})


def json_lines(folder: Path) -> te.data.Dataset:
    rows = [{"x": 1, "days": 3}, {"x": None, "days": 4}, {"x": 2, "days": None}]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return te.data.Dataset.from_json(str(folder / "a.jsonl"), defaults={"x": 0})


def parquet_file(folder: Path) -> te.data.Dataset:
    parquet.write_table(pa.table({"x": [1, None, 2], "days": [3, 4, None]}), folder / "a.parquet")
    return te.data.Dataset.from_parquet(str(folder / "a.parquet"), defaults={"x": 0})


@pytest.mark.parametrize("read", [csv, json_lines, parquet_file])
def test_rows_without_a_label_are_to_be_left_out(read: Callable[[Path], te.data.Dataset], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"days.*read it with defaults=\{'days': float\('nan'\)\}, and leave such rows"):
        list(read(tmp_path).label("days").batch(3))
    with pytest.raises(DataError, match=r"days.*give one, as defaults=\{'days': 0\} does"):
        list(read(tmp_path).batch(3))


def test_the_advice_works(tmp_path: Path) -> None:
    csv(tmp_path)
    data = te.data.Dataset.from_csv(
        str(tmp_path / "a.csv"), label="days", defaults={"x": 0, "days": float("nan")}
    ).filter(lambda features, days: days == days)
    ((_, labels),) = data.batch(3)
    assert labels.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("fields", "dtype", "values"),
    [
        (["+5", "-3", "7"], "int64", [5, -3, 7]),
        ([" +5 ", "-3", "1"], "int64", [5, -3, 1]),
        (["+5", "1.5", "2"], "float32", [5.0, 1.5, 2.0]),
        (["+16777217", "", "3"], "int64", [16777217, 0, 3]),
        (["0x1F", "3", "4"], "object", ["0x1F", "3", "4"]),
        (["3", "0X1f", "4"], "object", ["3", "0X1f", "4"]),
        (["+", "1", "2"], "object", ["+", "1", "2"]),
        (["-+2", "1", "2"], "object", ["-+2", "1", "2"]),
        (["1_000", "1", "2"], "object", ["1_000", "1", "2"]),
    ],
)
def test_signs_and_hexadecimal_digits_are_inferred_as_tensorflow_does(
    fields: list[str], dtype: str, values: list[object], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{field},1\n" for field in ["id", *fields]).replace("id,1", "id,z", 1))
    defaults = {"id": 0} if "" in fields else None
    (batch,) = te.data.Dataset.from_csv(str(tmp_path / "a.csv"), defaults=defaults).batch(3)
    assert (str(batch["id"].dtype), batch["id"].tolist()) == (dtype, values)


def test_a_plus_sign_after_the_sample_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "1\n" * 400_000 + "+9\n")
    *_, last = te.data.Dataset.from_csv(str(tmp_path / "a.csv")).batch(1000)
    assert last["id"].tolist() == [9]
    (tmp_path / "a.csv").write_text("id\n" + "1\n" * 400_000 + "+-9\n")
    with pytest.raises(DataError, match=r"line 400002: column 'id': '\+-9' is not"):
        list(te.data.Dataset.from_csv(str(tmp_path / "a.csv")).batch(100_000))


def test_a_column_that_only_a_later_json_file_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": 0}\n{"x": 2, "y": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 3, "k": "late", "y": 1}\n')
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    with pytest.raises(DataError, match=r"b\.jsonl, line 1: column 'k' is not in the first rows of .*a\.jsonl; give"):
        list(te.data.Dataset.from_json(files).batch(3))
    given = te.data.Dataset.from_json(files, select_columns=["x", "k", "y"], defaults={"k": "none"})
    ((features),) = given.batch(3)
    assert features["k"].tolist() == ["none", "none", "late"]
    # A model that does not read the column trains.
    estimator = te.LinearRegressor([te.feature_column.numeric_column("x")], str(tmp_path / "model"))
    estimator.train(lambda: te.data.Dataset.from_json(files, label="y").batch(3))


def test_pandas_columns_and_labels_of_other_indices_are_refused(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    other = pd.Series([0, 1, 0], index=[2, 1, 0])
    for features, labels in (({"x": frame.x}, other), (frame, other), ({"x": frame.x, "z": other}, None)):
        with pytest.raises(ValueError, match="columns and labels from pandas have different indices"):
            te.data.Dataset.from_arrays(features, labels)
    te.data.Dataset.from_arrays({"x": frame.x}, other.reset_index(drop=True))
    te.data.Dataset.from_arrays({"x": frame.x}, other.to_numpy())


@pytest.mark.parametrize("names", [["b", "a", "y"], ["B", "A", "Y"], [" b", "a ", "y"]])
def test_names_in_another_order_are_seen_in_any_case_and_with_blanks(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(" A,B,Y\n1,2,0\n")
    with pytest.raises(DataError, match=r"line 1: the header is .*, so column_names would call its column"):
        te.data.Dataset.from_csv(str(tmp_path / "a.csv"), column_names=names, header=True).head(1)
    renamed = te.data.Dataset.from_csv(str(tmp_path / "a.csv"), column_names=["a", "b", "label"], header=True)
    assert list(renamed.head(1)) == ["a", "b", "label"]
