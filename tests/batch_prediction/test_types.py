"""Batch prediction reads a column of any type as training reads it, and rejects the rows that training refuses."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.batch_prediction.test_batch_prediction import lines, predict
from tests.export.models import Built, model_of
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError
from torch_estimator.export.exported_model import ExportedModel

COLUMNS = [
    fc.numeric_column("x"),
    fc.categorical_column_with_hash_bucket("word", 1000),
    fc.categorical_column_with_identity("id", 9),
    fc.categorical_column_with_hash_bucket("tags", 1000, multivalent=True),
]
ROWS = {"x": [1.0, 2.0], "word": ["a", "b"], "id": [1, 2], "tags": [["a"], ["b", "c"]]}
UUIDS = [uuid.UUID(int=2**127 + 1), uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")]
NOON = datetime.datetime(2026, 1, 31, 12, 30)
LATER = datetime.datetime(2026, 1, 31, 12, 30, 10, 20_400)


def extension(kind: Any, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


@pytest.fixture(scope="module")
def built() -> Built:
    return model_of(COLUMNS, [])


@pytest.fixture(scope="module")
def export(built: Built, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    return built.export(tmp_path_factory.mktemp("export"))


def written(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table({**ROWS, **columns}), path)
    return path


def read(path: Path) -> dict[str, Any]:
    """The columns as training reads them."""
    (features,) = Dataset.from_parquet(path, schema=fc.schema(COLUMNS)).batch(10)
    return {name: np.asarray(values) for name, values in features.items()}


@pytest.mark.parametrize(
    ("column", "values", "wanted"),
    [
        ("x", pa.array([Decimal("1.25"), Decimal("-2.5")], pa.decimal128(10, 2)), [1.25, -2.5]),
        ("x", pa.array([True, False]), [1.0, 0.0]),
        ("x", pa.array(["1.5", " 2e1 "]), [1.5, 20.0]),
        ("x", pa.array(["1.5", "2"], pa.large_string()).dictionary_encode(), [1.5, 2.0]),
        ("x", pa.array([2**24 + 1, 3]), [2.0**24, 3.0]),
        ("word", pa.array([7, -1]), ["7", "-1"]),
        ("word", pa.array([7.0, 2.5]), ["7", "2.5"]),
        ("word", pa.array([7.0, float("nan")]), ["7", ""]),
        ("word", pa.array([True, False]), ["true", "false"]),
        ("word", pa.array([Decimal("1.5"), None], pa.decimal128(10, 2)), ["1.50", ""]),
        ("word", pa.array([datetime.date(2026, 1, 31), None]), ["2026-01-31", ""]),
        ("word", pa.array([NOON, NOON], pa.timestamp("ms")), ["2026-01-31 12:30:00"] * 2),
        ("word", pa.array([NOON, None], pa.timestamp("ns")), ["2026-01-31 12:30:00", ""]),
        ("word", pa.array([LATER, NOON], pa.timestamp("us", tz="UTC")), [f"{LATER}"[:-2] + "Z", f"{NOON}Z"]),
        ("word", pa.array([LATER.time(), NOON.time()], pa.time64("us")), ["12:30:10.0204", "12:30:00"]),
        ("word", pa.array([b"a", "é".encode()]), ["a", "é"]),
        ("word", pa.array([b"ab", b"cd"], pa.binary(2)), ["ab", "cd"]),
        ("word", extension(pa.uuid(), [one.bytes for one in UUIDS]), [str(one) for one in UUIDS]),
        ("word", extension(pa.json_(), ['{"a":1}', None]), ['{"a":1}', ""]),
        ("id", pa.array([1.0, 2.0]), [1, 2]),
        ("id", pa.array([True, False]), [1, 0]),
        ("id", pa.array(["1", " +2"]), [1, 2]),
        ("id", pa.array([Decimal(1), Decimal(2)], pa.decimal128(10, 2)), [1, 2]),
        ("tags", pa.array([[1, 2], [3]]), [["1", "2"], ["3", ""]]),
        ("tags", pa.array(["a", None]), [["a"], [""]]),
        ("tags", pa.array([7, 8]), [["7"], ["8"]]),
        ("tags", pa.array([[datetime.date(2026, 1, 31)], []]), [["2026-01-31"], [""]]),
    ],
)
def test_a_parquet_column_of_another_type_is_read_as_training_reads_it(
    built: Built, export: ExportedModel, tmp_path: Path, column: str, values: pa.Array, wanted: list[Any]
) -> None:
    path = written(tmp_path / "rows.parquet", **{column: values})
    features = read(path)
    assert features[column].tolist() == wanted
    predict(export, path, tmp_path / "out")
    assert lines(tmp_path / "out", "errors_stats") == []
    logits = [row["logits"] for row in lines(tmp_path / "out")]
    np.testing.assert_allclose(logits, built.predict(features)["logits"], rtol=1e-5)


@pytest.mark.parametrize(
    ("column", "values", "problem", "reason"),
    [
        ("x", pa.array(["1.5", "old"]), "'old' is not a number (float)", "Input x takes numbers, but has 'old'."),
        ("id", pa.array([1.0, 2.5]), "2.5 is not a whole number (int64)", "Input id takes integers, but has 2.5."),
        (
            "word",
            pa.array([b"a", b"\xff"]),
            r"b'\xff' is not UTF-8 text",
            r"Input word takes strings, but has b'\xff'.",
        ),
        (
            "tags",
            pa.array([[b"a"], [b"\xff"]]),
            r"[b'\xff'] is not UTF-8 text",
            r"Input tags takes strings, but has [b'\xff'].",
        ),
    ],
)
def test_a_value_that_cannot_be_converted_is_an_error_of_training_and_a_rejected_row(
    export: ExportedModel, tmp_path: Path, column: str, values: pa.Array, problem: str, reason: str
) -> None:
    path = written(tmp_path / "rows.parquet", **{column: values})
    with pytest.raises(DataError) as raised:
        read(path)
    assert str(raised.value) == f"{path}, row 1 (from 0): column {column!r}: {problem}."
    assert len(list(Dataset.from_parquet(path, schema=fc.schema(COLUMNS), ignore_errors=True).batch(9))) == 1
    predict(export, path, tmp_path / "out")
    assert lines(tmp_path / "out", "errors_stats") == [{"file": str(path), "row": 1, "reason": reason}]
    assert len(lines(tmp_path / "out")) == 1


def test_uuids_for_a_number_are_an_error_of_training_and_rejected_rows(export: ExportedModel, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", x=extension(pa.uuid(), [one.bytes for one in UUIDS]))
    with pytest.raises(DataError, match=rf"row 0 \(from 0\): column 'x': '{UUIDS[0]}' is not a number \(float\)\.$"):
        read(path)
    predict(export, path, tmp_path / "out")
    reasons = [row["reason"] for row in lines(tmp_path / "out", "errors_stats")]
    assert reasons == [f"Input x takes numbers, but has '{one}'." for one in UUIDS]


def test_lists_of_lists_for_a_list_are_refused(export: ExportedModel, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", tags=pa.array([[["a"]], [["b"]]]))
    with pytest.raises(DataError, match=r"column 'tags' holds list<.*, but the input takes lists of strings\.$"):
        predict(export, path, tmp_path / "out")


def test_an_integer_with_a_plus_sign_is_read_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,word,id\n1,a,+1\n2,b, 2\n")
    (features,) = Dataset.from_csv(path, schema=fc.schema(COLUMNS[:3])).batch(10)
    assert features["id"].tolist() == [1, 2]
    simple = model_of(COLUMNS[:3], [])
    predict(simple.export(tmp_path / "export"), path, tmp_path / "out")
    logits = [row["logits"] for row in lines(tmp_path / "out")]
    np.testing.assert_allclose(logits, simple.predict(dict(features))["logits"], rtol=1e-5)


def test_uuids_without_a_schema_are_text(tmp_path: Path) -> None:
    column = extension(pa.uuid(), [one.bytes for one in UUIDS])
    pq.write_table(pa.table({"id": column[1:]}), tmp_path / "rows.parquet")
    (features,) = Dataset.from_parquet(tmp_path / "rows.parquet").batch(2)
    assert list(features["id"]) == [str(UUIDS[1])]
