from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torch_estimator.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main(["predict-batch", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def results(output: Path, kind: str = "results") -> list[dict[str, object]]:
    paths = sorted(output.glob(f"prediction.{kind}-*"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_rows_keys_and_a_summary(exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text(f"name,word,x\nn{number},a,{number}\n")
    (tmp_path / "1.csv").write_text("name,word,x\nn1,a,old\nn2,a,2\n")
    arguments = ["--model", exports / "raw", "--input", tmp_path / "*.csv", "--output", tmp_path / "out"]

    status, out, err = run(capsys, *arguments, "--key", "name")

    assert (status, err) == (0, "")
    assert out.startswith("2 rows predicted, 1 rejected, in ")
    assert "rows/s)." in out
    assert f"Places and reasons of the rejected rows: {tmp_path / 'out'}/prediction.errors_stats-*." in out
    assert [next(iter(row)) for row in results(tmp_path / "out")] == ["name", "name"]
    assert [row["name"] for row in results(tmp_path / "out")] == ["n0", "n2"]
    assert results(tmp_path / "out", "errors_stats") == [
        {"file": str(tmp_path / "1.csv"), "line": 2, "reason": "Input x takes numbers, but has 'old'."}
    ]
    status, out, _ = run(capsys, *arguments, "--key", "name")
    assert (status, out) == (0, f"{tmp_path / 'out'} is complete already: 2 rows predicted, 1 rejected.\n")


def test_files_without_a_header_and_a_format_that_is_named(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.data").write_text("a,1\nb,2\n")
    arguments = ["--model-dir", exports / "raw", "--input", tmp_path / "rows.data", "--output", tmp_path / "out"]
    status, _, err = run(capsys, *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert "does not tell its format; give --format csv, jsonl, parquet or tfrecord." in err
    status, out, _ = run(
        capsys, *arguments, "--format", "csv", "--signature-name", "predict", "--columns", "word", "x", "--shards", "2"
    )
    assert status == 0
    assert out.startswith("2 rows predicted, 0 rejected")
    assert len(list((tmp_path / "out").glob("prediction.results-*-of-00002"))) == 2


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--batch", "0"], "--batch must be from 1 to 1048576, but got 0."),
        (["--workers", "0"], "--workers must be from 1 to 1024, but got 0."),
        (["--shards", "100000"], "--shards must be from 1 to 99999, but got 100000."),
        (["--key", "word", "--key", "word"], "--key names 'word' twice."),
        (["--signature-name", "none"], "the signature 'none' is not in"),
        (["--columns", "word"], "has no column 'x', which the model needs; its columns are word."),
        (["--format", "parquet"], "rows.csv cannot be read as Parquet: "),
        (["--output", "/proc/out"], "/proc/out cannot be written: "),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], problem: str
) -> None:
    (tmp_path / "rows.csv").write_text("word,x\na,1\n")
    arguments = ["--model", exports / "raw", "--input", tmp_path / "rows.csv", "--output", tmp_path / "out"]
    status, out, err = run(capsys, *arguments, *more)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("estimator: error: ")
    assert problem in err


def test_two_processes_from_the_command_line(exports: Path, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text('{"word": "a", "x": 1}\n' * 10)
    command = [sys.executable, "-m", "torch_estimator.cli", "predict-batch", "--model", str(exports / "raw")]
    command += ["--input", str(tmp_path / "*.jsonl"), "--output", str(tmp_path / "out"), "--workers", "2"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout.startswith("40 rows predicted, 0 rejected, in ")
    assert finished.stderr == ""
    assert len(results(tmp_path / "out")) == 40
