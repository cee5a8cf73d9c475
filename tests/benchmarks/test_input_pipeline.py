"""The input benchmark runs, and says of each promise whether it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import input_pipeline
from benchmarks.protocol import Measured
from examples.census.trainer import sample


@pytest.mark.slow
def test_a_quick_run_prints_tables_and_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sample.write(str(tmp_path), train_rows=3000, eval_rows=100)

    status = input_pipeline.main(["--quick", "--peers", "loader", "--file", files.train_file])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    for name in ("ours, CSV ", "ours, Parquet ", "ours, Parquet, in order ", "DataLoader "):
        assert sum(line.startswith(name) for line in lines) == 2
    assert any(line.startswith("batches/s of 40 from CSV: at least 4500: ") for line in lines)
    assert not any("not measured" in line for line in lines)


def test_a_side_that_fails_makes_the_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sample.write(str(tmp_path), train_rows=50, eval_rows=50)
    monkeypatch.setattr(input_pipeline, "measure", lambda *_: Measured(failures={"ours": "no memory"}))

    assert input_pipeline.main(["--quick", "--peers", "--file", files.train_file]) == 1

    assert "rows/s from Parquet in order: at least 600000: not measured" in capsys.readouterr().out


def test_without_the_file_one_line_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        input_pipeline.main(["--file", str(tmp_path / "none.csv")])

    assert "name a census file with --file" in capsys.readouterr().err
