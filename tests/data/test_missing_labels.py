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
