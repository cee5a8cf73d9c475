"""Directories such as ``day=1/`` hold a column of their files, for training and for batch prediction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from tests.batch_prediction.test_batch_prediction import lines, predict
from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError

FORMATS = ["csv", "jsonl", "parquet"]


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(columns)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in [columns, *(row.values() for row in rows)]))


def read(files: Any, **options: Any) -> Dataset:
    name = str(files[0] if isinstance(files, list) else files)
    kinds = {".csv": Dataset.from_csv, ".jsonl": Dataset.from_json, ".parquet": Dataset.from_parquet}
    method: Any = kinds[Path(name).suffix]
    return method(files, **options)


def values(data: Dataset) -> dict[str, list[Any]]:
    (batch,) = data.batch(100)
    return {name: np.asarray(column).tolist() for name, column in batch.items()}


@pytest.mark.parametrize("form", FORMATS)
def test_columns_of_paths_are_integers_or_strings(form: str, tmp_path: Path) -> None:
    write(tmp_path / "hour=07" / "town=S%C3%A3o Paulo" / f"a.{form}", {"x": [1.5, 2.5]})
    write(tmp_path / "hour=8" / "town=__HIVE_DEFAULT_PARTITION__" / f"a.{form}", {"x": [3.5]})
    files = str(tmp_path / "*" / "*" / f"*.{form}")
    everything = {"x": [1.5, 2.5, 3.5], "hour": [7, 7, 8], "town": ["São Paulo", "São Paulo", ""]}
    assert values(read(files)) == everything
    schema = pa.schema({"hour": pa.string(), "x": pa.float32()})
    assert values(read(files, schema=schema)) == {"x": [1.5, 2.5, 3.5], "hour": ["07", "07", "8"]}
    assert values(read(files, schema=pa.schema({"hour": pa.float32()}))) == {"hour": [7.0, 7.0, 8.0]}
    shuffled = values(read(files).shuffle(10, seed=1))
    rows = zip(shuffled["x"], shuffled["hour"], strict=True)
    assert sorted(rows) == list(zip(everything["x"], everything["hour"], strict=True))


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_that_the_file_has_too_must_agree(form: str, tmp_path: Path) -> None:
    write(tmp_path / "day=1" / f"a.{form}", {"x": [1.5, 2.5], "day": [1, 1]})
    write(tmp_path / "day=2" / f"a.{form}", {"x": [3.5, 4.5], "day": [2, 3]})
    assert values(read(tmp_path / "day=1" / f"a.{form}")) == {"x": [1.5, 2.5], "day": [1, 1]}
    with pytest.raises(DataError) as raised:
        values(read(str(tmp_path / "*" / f"*.{form}")))
    where = {"csv": "line 3", "jsonl": "line 2", "parquet": "row 1 (from 0)"}[form]
    problem = "column 'day': the row has 3, but the path of its file has day=2"
    assert str(raised.value) == f"{tmp_path / 'day=2' / f'a.{form}'}, {where}: {problem}."


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_of_some_paths_only_is_none(form: str, tmp_path: Path) -> None:
    write(tmp_path / "day=1" / f"a.{form}", {"x": [1.5]})
    write(tmp_path / f"a.{form}", {"x": [2.5]})
    files = [str(tmp_path / "day=1" / f"a.{form}"), str(tmp_path / f"a.{form}")]
    assert values(read(files)) == {"x": [1.5, 2.5]}
    with pytest.raises(DataError, match="column 'day' is not in"):
        values(read(files, schema=pa.schema({"day": pa.int64()})))


@pytest.mark.parametrize("form", FORMATS)
def test_a_path_without_a_number_is_named(form: str, tmp_path: Path) -> None:
    write(tmp_path / "day=monday" / f"a.{form}", {"x": [1.5]})
    with pytest.raises(DataError, match=rf"a\.{form}, .*: column 'day': 'monday' is not a whole number \(int64\)\.$"):
        values(read(tmp_path / "day=monday" / f"a.{form}", schema=pa.schema({"day": pa.int64()})))


@pytest.mark.parametrize("form", FORMATS)
def test_a_model_trains_and_predicts_with_columns_of_paths(form: str, tmp_path: Path) -> None:
    for day in (1, 2):
        write(tmp_path / f"day={day}" / f"town=t{day}" / f"a.{form}", {"x": [0.5, 1.5], "y": [1.0 * day, 2.0]})
    files = str(tmp_path / "day=*" / "*" / f"*.{form}")
    columns = [
        fc.numeric_column("x"),
        fc.categorical_column_with_identity("day", 5),
        fc.categorical_column_with_hash_bucket("town", 100),
    ]
    estimator = te.LinearRegressor(columns, tmp_path / "run", optimizer="Adam")
    estimator.train(lambda: read(files, label="y").batch(4).repeat(), max_steps=20)
    wanted = [float(row["predictions"][0]) for row in estimator.predict(lambda: read(files, label="y").batch(4))]
    export = te.ExportedModel.load(
        estimator.export_saved_model(tmp_path / "export", te.serving_input.raw_features(columns))
    )
    found = [tmp_path / "day=1" / "town=t1" / f"a.{form}", tmp_path / "day=2" / "town=t2" / f"a.{form}"]
    predict(export, found, tmp_path / "out", keys=("town",), ignore_unknown=True)
    results = lines(tmp_path / "out")
    assert [row["town"] for row in results] == ["t1", "t1", "t2", "t2"]
    np.testing.assert_allclose([row["predictions"][0] for row in results], wanted, rtol=1e-5)
    write(tmp_path / "day=2" / "town=t2" / f"a.{form}", {"x": [1.5, 2.5], "day": [2, 3]})
    predict(export, found[1], tmp_path / "other")
    (rejected,) = lines(tmp_path / "other", "errors_stats")
    value = "'3'" if form == "csv" else "3"
    assert rejected["reason"] == f"Column day: the row has {value}, but the path of its file has day=2."
    write(tmp_path / "day=monday" / "town=a" / f"a.{form}", {"x": [1.5]})
    predict(export, tmp_path / "day=monday" / "town=a" / f"a.{form}", tmp_path / "monday")
    (rejected,) = lines(tmp_path / "monday", "errors_stats")
    assert "'monday'" in rejected["reason"] and "Input day " in rejected["reason"]


def test_pandas_is_not_imported_for_the_text_of_a_path(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.csv").write_text("x\n1\n")
    code = "import sys; from torch_estimator.data import Dataset; list(Dataset.from_csv(sys.argv[1]).batch(1)); "
    code += "sys.exit('pandas' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", code, tmp_path / "day=1" / "a.csv"]).returncode


def test_a_row_of_json_without_the_column_has_the_value_of_its_path(tmp_path: Path) -> None:
    rows: list[tuple[str, dict[str, Any]]] = [
        ("day=3/a", {"x": 1.0}),
        ("a", {"x": 1.0}),
        ("day=4/a", {"x": 1.0, "day": 4}),
        ("day=5/a", {"x": 1.0, "day": None}),
    ]
    for place, row in rows:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / f"{place}.jsonl").write_text(json.dumps(row) + "\n")
    files = [str(tmp_path / f"{place}.jsonl") for place, _ in rows]
    schema = fc.schema([fc.numeric_column("x"), fc.numeric_column("day", default_value=100.0)])
    assert values(read(files, schema=schema))["day"] == [3.0, 100.0, 4.0, 5.0]
    assert values(read([files[0], files[2]]))["day"] == [3, 4]


def test_a_later_row_of_json_must_agree_with_its_path(tmp_path: Path) -> None:
    write(tmp_path / "day=3" / "a.jsonl", {"x": [1.0]})
    write(tmp_path / "day=4" / "a.jsonl", {"x": [1.0], "day": [8]})
    schema = fc.schema([fc.numeric_column("x"), fc.numeric_column("day", default_value=100.0)])
    files = [str(tmp_path / "day=3" / "a.jsonl"), str(tmp_path / "day=4" / "a.jsonl")]
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: column 'day': the row has 8\.0, but .* day=4\.$"):
        values(read(files, schema=schema))
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: column 'day': the row has 8, but .* day=4\.$"):
        values(read(files))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_missing_value_is_named_as_missing_although_it_has_a_default(form: str, tmp_path: Path) -> None:
    write(tmp_path / "day=7" / f"a.{form}", {"x": [1.0], "day": ["" if form == "csv" else None]})
    schema = fc.schema([fc.numeric_column("x"), fc.numeric_column("day", default_value=100.0)])
    with pytest.raises(DataError, match="column 'day': the row has None, but the path of its file has day=7"):
        values(read(tmp_path / "day=7" / f"a.{form}", schema=schema))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_of_some_paths_that_all_files_have_must_agree(form: str, tmp_path: Path) -> None:
    write(tmp_path / "day=3" / f"a.{form}", {"x": [1.0], "day": [8]})
    write(tmp_path / f"a.{form}", {"x": [1.0], "day": [9]})
    with pytest.raises(DataError, match="column 'day': the row has 8, but the path of its file has day=3"):
        values(read([str(tmp_path / "day=3" / f"a.{form}"), str(tmp_path / f"a.{form}")]))


def test_a_path_with_two_values_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "day=1" / "day=2" / "a.csv", {"x": [1.0]})
    with pytest.raises(DataError, match=r"a\.csv has both day=1 and day=2 in its path; rename one\.$"):
        values(read(tmp_path / "day=1" / "day=2" / "a.csv"))
    write(tmp_path / "day=1" / "day=1" / "a.csv", {"x": [1.0]})
    assert values(read(tmp_path / "day=1" / "day=1" / "a.csv")) == {"x": [1.0], "day": [1]}


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_of_paths_cannot_be_the_label(form: str, tmp_path: Path) -> None:
    write(tmp_path / "day=1" / f"a.{form}", {"x": [1.0]})
    with pytest.raises(DataError, match=rf"column 'day' is only in the paths .*a\.{form}, and cannot be the label;"):
        list(read(tmp_path / "day=1" / f"a.{form}", label="day").batch(1))


@pytest.mark.parametrize("form", FORMATS)
def test_a_key_of_a_path_may_be_missing(form: str, tmp_path: Path) -> None:
    export = model_of([fc.numeric_column("x")], []).export(tmp_path / "export")
    write(tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / f"a.{form}", {"x": [1.0]})
    predict(export, tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / f"a.{form}", tmp_path / "out", keys=("day",))
    (row,) = lines(tmp_path / "out")
    assert row["day"] == ("" if form == "csv" else None)
