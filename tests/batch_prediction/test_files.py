"""Batch prediction finds the format of compressed files by their names, and refuses what is no file of rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.batch_prediction.test_batch_prediction import assert_same, expected, lines, predict
from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.data import Dataset, write_tfrecord
from torch_estimator.errors import DataError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.instances import to_rows

COLUMNS = [fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")]
ROWS = [{"word": "a", "x": 1.0}, {"word": "b", "x": 2.5}]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    return model_of(COLUMNS, []).export(tmp_path_factory.mktemp("export"))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.JSONL.gz", "a.csv"])
def test_text_files_compressed_with_gzip_are_read(export: ExportedModel, tmp_path: Path, name: str) -> None:
    is_csv = "csv" in name
    text = "word,x\na,1\nb,2.5\n" if is_csv else "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    predict(export, tmp_path / name, tmp_path / "out")
    assert_same(lines(tmp_path / "out"), expected(export, {"word": ["a", "b"], "x": [1.0, 2.5]}))


@pytest.mark.parametrize("name", ["a.tfrecord.gz", "part-00000-c000.tfrecords.gz", "a.tfrecord"])
def test_tfrecord_files_are_read_compressed_or_not(tmp_path: Path, name: str) -> None:
    examples = serving_input.examples(fc.make_parse_example_spec(COLUMNS))
    write_tfrecord(tmp_path / name, ROWS)
    built = model_of(COLUMNS, [])
    predict(built.export(tmp_path / "export", examples), tmp_path / name, tmp_path / "out", signature="predict")
    by_column = built.export(tmp_path / "raw").predict({"word": ["a", "b"], "x": [1.0, 2.5]})
    assert_same(lines(tmp_path / "out"), to_rows(by_column))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
        "\ufeff[" + ",\r\n".join(map(json.dumps, ROWS)) + "]",
        json.dumps(ROWS, indent=2),
        "[\n1,\n2\n]",
        "[1,\n2]",
    ],
)
def test_a_json_array_is_refused_by_batch_prediction_and_by_training(
    export: ExportedModel, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    message = rf"^{path} is one JSON array, but must have one JSON object per line; convert it, as jq -c '\.\[\]' "
    with pytest.raises(DataError, match=message):
        predict(export, path, tmp_path / "out")
    with pytest.raises(DataError, match=message):
        list(Dataset.from_json(path, ignore_errors=True).batch(2))


def test_lists_that_are_instances_are_no_array(tmp_path: Path) -> None:
    export = model_of([fc.categorical_column_with_hash_bucket("word", 10, multivalent=True)], []).export(tmp_path)
    (tmp_path / "rows.jsonl").write_text('["a", "b"]\n[]\n[{"b64": "YQ=="}]\n')
    predict(export, tmp_path / "rows.jsonl", tmp_path / "out")
    assert_same(lines(tmp_path / "out"), expected(export, {"inputs": [["a", "b"], [], ["a"]]}))


def test_a_table_with_none_of_the_columns_is_refused(tmp_path: Path) -> None:
    columns = [fc.numeric_column("x", default_value=0.5), fc.categorical_column_with_hash_bucket("word", 10)]
    export = model_of(columns, []).export(tmp_path / "export")
    (tmp_path / "rows.csv").write_text("X,WORD\n1,a\n")
    pq.write_table(pa.table({"X": [1.0], "WORD": ["a"]}), tmp_path / "rows.parquet")
    problem = r" has none of the columns that the model reads \((x, word|word, x)\); its columns are X, WORD"
    for name in ("rows.csv", "rows.parquet"):
        with pytest.raises(DataError, match=problem):
            predict(export, tmp_path / name, tmp_path / "out")


def test_true_and_false_in_json_are_numbers_as_in_training(tmp_path: Path) -> None:
    export = model_of([fc.numeric_column("x"), fc.categorical_column_with_identity("n", 5)], []).export(tmp_path / "e")
    (tmp_path / "rows.jsonl").write_text('{"x": true, "n": 2}\n{"x": 0.5, "n": true}\n{"x": "a", "n": 1}\n')
    predict(export, tmp_path / "rows.jsonl", tmp_path / "out")
    assert_same(lines(tmp_path / "out"), expected(export, {"x": [1.0, 0.5], "n": [2, 1]}))
    (rejected,) = lines(tmp_path / "out", "errors_stats")
    assert rejected["line"] == 3
