"""Names that the model does not read: `predict` and `predict-batch` refuse them in rows of JSON, or leave them out."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.batch_prediction.test_batch_prediction import assert_same, expected, lines, predict
from tests.export.models import Built, model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.cli.main import main
from torch_estimator.export.exported_model import ExportedModel

COLUMNS = [fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")]
ROWS = [{"word": "a", "x": 1.0, "label": 1}, {"word": "b", "x": 2.5, "label": 0, "id": {"a": [7]}}]
REASON = "Unexpected tensor name: label; the inputs are word, x."


@pytest.fixture(scope="module")
def built() -> Built:
    return model_of(COLUMNS, [])


@pytest.fixture(scope="module")
def export(built: Built, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    return built.export(tmp_path_factory.mktemp("export"))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_predict_and_predict_batch_refuse_them(
    export: ExportedModel, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = predict(export, rows, tmp_path / "out")
    assert (summary.predicted, summary.rejected, summary.ignored) == (0, 2, 0)
    reason = f"{REASON} With --ignore-unknown such names are left out."
    assert [one["reason"] for one in lines(tmp_path / "out", "errors_stats")] == [reason] * 2
    assert main(["predict", "--model-dir", export.directory, "--json-instances", str(rows)]) == 2
    assert f"rows.jsonl, line 1: {REASON}\n" in capsys.readouterr().err


def test_both_leave_them_out_where_asked_to_and_say_it_once(
    export: ExportedModel,
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = ["predict-batch", "--model", export.directory, "--input", str(rows), "--output", str(tmp_path / "out")]
    for _ in range(2):
        assert main([*command, "--ignore-unknown"]) == 0
        assert "2 rows predicted, 0 rejected, 3 values of names that the model does not read left out" in (
            capsys.readouterr().out
        )
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"The model does not read {name}, which is left out from here on." for name in ("'label'", "'id'")]
    wanted = expected(export, {"word": ["a", "b"], "x": [1.0, 2.5]})
    assert_same(lines(tmp_path / "out"), wanted)
    assert main(command) == 2
    assert "has the output of another command: its ignore_unknown is true, not null" in capsys.readouterr().err
    given = ["--model-dir", export.directory, "--json-instances", str(rows), "--ignore-unknown", "--format", "json"]
    assert main(["predict", *given]) == 0
    assert_same(json.loads(capsys.readouterr().out)["predictions"], wanted)


def test_an_export_may_ask_for_it(built: Built, rows: Path, tmp_path: Path) -> None:
    export = built.export(tmp_path / "export", serving_input.json(COLUMNS, ignore_unknown=True))
    assert ExportedModel.load(export.directory).manifest.ignore_unknown
    summary = predict(export, rows, tmp_path / "out")
    assert (summary.predicted, summary.ignored) == (2, 3)
    assert export.predict({"word": ["a"], "x": [1.0], "label": [1]})["logits"].shape == (1, 1)
    assert export.unknown.count == 1


def test_keys_are_no_unknown_names(export: ExportedModel, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"word": "a", "x": 1, "id": 7}\n')
    summary = predict(export, path, tmp_path / "out", keys=("id",))
    assert (summary.predicted, summary.ignored) == (1, 0)


def test_other_columns_of_tables_are_not_read_and_said_once(
    export: ExportedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    (tmp_path / "rows.csv").write_text("word,label,x\na,1,1\n")
    pq.write_table(pa.table({"word": ["a"], "label": [1], "x": [1.0]}), tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.parquet"):
        summary = predict(export, tmp_path / name, tmp_path / f"out-{name}")
        assert (summary.predicted, summary.ignored) == (1, 0)
        assert caplog.messages[-1] == f"{tmp_path / name}: the model does not read 'label'."
    (tmp_path / "b.csv").write_text("word,label,x\na,1,1\n")
    caplog.clear()
    predict(export, [tmp_path / "rows.csv", tmp_path / "b.csv"], tmp_path / "out")
    assert len(caplog.messages) == 1
