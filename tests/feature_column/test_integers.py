"""Integers in categorical columns: missing ones have no id, and crosses take them as ids or as strings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError

IDENTITY = fc.categorical_column_with_identity("id", 5)
HASHED = fc.categorical_column_with_hash_bucket("hashed", 9, dtype="int64")
KNOWN = fc.categorical_column_with_vocabulary_list("known", [7, 8])
LISTS = fc.categorical_column_with_identity("list", 5, multivalent=True)
CROSS = fc.crossed_column([IDENTITY, KNOWN], 20)
PLAIN = [IDENTITY, HASHED, KNOWN, CROSS]
COLUMNS = [*PLAIN, LISTS]
ROWS: list[dict[str, Any]] = [
    {"id": 3, "hashed": 4, "known": 8, "list": [1, None, 4], "y": 1.0},
    {"y": 2.0},
    {"id": None, "hashed": 4, "known": 7, "list": [None], "y": 3.0},
]
FILLED = {"id": [3, -1, -1], "hashed": [4, -1, 4], "known": [8, -1, 7]}


def write(kind: str, folder: Path) -> Any:
    """Write the rows to a file and return a function that reads them; CSV has no lists."""
    path = folder / f"rows.{kind}"
    if kind == "csv":
        names = ["id", "hashed", "known", "y"]
        values = [["" if row.get(name) is None else str(row[name]) for name in names] for row in ROWS]
        path.write_text("\n".join(map(",".join, [names, *values])) + "\n")
        return lambda **arguments: Dataset.from_csv(path, label="y", **arguments).batch(3)
    if kind == "json":
        path.write_text("\n".join(map(json.dumps, ROWS)))
        return lambda **arguments: Dataset.from_json(path, label="y", **arguments).batch(3)
    pq.write_table(pa.Table.from_pylist(ROWS, schema=fc.schema(COLUMNS).append(pa.field("y", pa.float32()))), path)
    return lambda **arguments: Dataset.from_parquet(path, label="y", **arguments).batch(3)


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_schema_reads_a_missing_integer_without_an_id(kind: str, tmp_path: Path) -> None:
    columns = PLAIN if kind == "csv" else COLUMNS
    with write(kind, tmp_path)(schema=fc.schema(columns)).iterator() as iterator:
        features, _ = next(iterator)
    assert {name: features[name].tolist() for name in FILLED} == FILLED
    if kind != "csv":
        # Batches pad lists with zeros.
        assert features["list"].tolist() == [[1, -1, 4], [0, 0, 0], [-1, 0, 0]]
    ids = fc.FeatureTransform(PLAIN)(features)["linear/ids"]
    no_id = 9 + 5 + 20 + 2
    assert (ids == no_id).sum(axis=1).tolist() == [0, 4, 2]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_model_reads_files_without_a_schema_alike(kind: str, tmp_path: Path) -> None:
    columns = PLAIN if kind == "csv" else COLUMNS
    estimator = te.LinearRegressor(columns, str(tmp_path / "job"))
    read = write(kind, tmp_path)
    estimator.train(lambda: read(), steps=3)
    found = [one["predictions"][0] for one in estimator.predict(lambda: read())]
    given: dict[str, Any] = {name: np.array(values) for name, values in FILLED.items()}
    given["list"] = pa.array([[1, 4], [], []], pa.list_(pa.int64()))
    arrays = Dataset.from_arrays(given).batch(3)
    assert found == [one["predictions"][0] for one in estimator.predict(lambda: arrays)]
    assert len(set(found)) == 3
    mapped = [one["predictions"][0] for one in estimator.predict(lambda: read().map(lambda *both: both))]
    assert mapped == found


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    "other", [fc.numeric_column("id", dtype="int64"), fc.weighted_categorical_column(HASHED, "id", dtype="int64")]
)
def test_a_column_that_reads_numbers_still_requires_them(kind: str, other: Any, tmp_path: Path) -> None:
    schema = fc.schema([IDENTITY, other])
    assert not schema.field("id").nullable
    with pytest.raises(DataError, match="column 'id': the value is missing and has no default"):
        list(write(kind, tmp_path)(schema=schema))
    default = fc.schema([fc.numeric_column("id", dtype="int64", default_value=2), IDENTITY])
    ((features, _),) = write(kind, tmp_path)(schema=default)
    assert features["id"].tolist() == [3, 2, 2]


def test_a_default_replaces_a_missing_integer(tmp_path: Path) -> None:
    for kind in ("csv", "json", "parquet"):
        ((features, _),) = write(kind, tmp_path)(schema=fc.schema(PLAIN), defaults={"id": 0})
        assert (features["id"].tolist(), features["known"].tolist()) == ([3, 0, 0], [8, -1, 7])


def test_a_missing_label_or_weight_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"id": 1, "y": 1}\n{"id": null, "y": 1}\n')
    with pytest.raises(DataError, match="column 'id': the value is missing"):
        list(Dataset.from_json(path, schema=fc.schema([IDENTITY]), label="id").batch(2))
    weighted = te.LinearRegressor([IDENTITY], str(tmp_path / "job"), weight_column="id")
    with pytest.raises(DataError, match="column 'id': the value is missing"):
        weighted.train(lambda: Dataset.from_json(path, label="y").batch(2), steps=1)


def test_an_empty_csv_field_is_served_as_in_training(tmp_path: Path) -> None:
    estimator = te.LinearRegressor(PLAIN, str(tmp_path / "job"))
    read = write("csv", tmp_path)
    estimator.train(lambda: read(), steps=3)
    path = estimator.export_saved_model(
        str(tmp_path / "export"), te.serving_input.csv(["id", "hashed", "known"], PLAIN)
    )
    answer = te.ExportedModel.load(path).predict({"csv_row": ["3,4,8", ",,", ",4,7"]})["predictions"]
    expected = [one["predictions"] for one in estimator.predict(lambda: read())]
    np.testing.assert_allclose(answer, expected, atol=1e-6)


RAW_CROSS = fc.crossed_column(["job", "zip"], 100)
JOBS, ZIPS = np.array(["a", "b"]), np.array([3, 4])


def train(column: Any, data: Dataset, folder: Path) -> te.Estimator:
    estimator = te.LinearRegressor([column], str(folder / "job"))
    estimator.train(lambda: data.batch(2), steps=1)
    return estimator


def test_a_raw_key_of_integers_raises_an_error_with_the_cure(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"job": JOBS, "zip": ZIPS}, np.zeros(2, np.float32))
    sentence = (
        "column 'zip' holds numbers (int64), but the model wants strings; make it strings (astype(str), or schema="
    )
    with pytest.raises(DataError, match=re.escape(sentence)) as raised:
        train(RAW_CROSS, data, tmp_path)
    assert "a crossed_column categorical_column_with_identity(key, num_buckets)" in str(raised.value)


def test_the_cures_for_integer_keys_train(tmp_path: Path) -> None:
    labels = np.array([0, 1], np.float32)
    identity = fc.crossed_column(["job", fc.categorical_column_with_identity("zip", 10)], 100)
    train(identity, Dataset.from_arrays({"job": JOBS, "zip": ZIPS}, labels), tmp_path / "identity")
    strings = Dataset.from_arrays({"job": JOBS, "zip": ZIPS.astype(str)}, labels)
    expected = train(RAW_CROSS, strings, tmp_path / "strings")
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"job": JOBS.tolist(), "zip": ZIPS, "y": labels}), path)
    stored = Dataset.from_parquet(path, schema=fc.schema([RAW_CROSS]), label="y")
    found = train(RAW_CROSS, stored, tmp_path / "parquet")
    both = [[one["predictions"][0] for one in e.predict(lambda: strings.batch(2))] for e in (expected, found)]
    assert both[0] == both[1]
