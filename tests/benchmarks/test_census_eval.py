"""The evaluation benchmark runs, and says whether its promise holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest

from benchmarks import census_eval
from benchmarks.census.parquet import write_parquet
from examples.census.trainer import columns


@pytest.mark.slow
def test_a_quick_run_without_peers_prints_tables_and_verdicts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = census_eval.main(["--quick", "--peers", "--batches", "40", "--data", str(data)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert "Evaluation and prediction, batches of 40" in lines
    for side in ("torch-estimator, Parquet", "torch-estimator, CSV"):
        (line,) = [line for line in lines if line.startswith(side)]
        assert len(line.removeprefix(side).split()) == 4
        assert "-" not in line.removeprefix(side).split()
    assert "A quick run, too short to judge by:" in lines
    assert any(line.startswith("evaluation, examples/s at 40 over TF 2.15 tf.estimator") for line in lines)


def test_the_promise_is_that_of_the_issue(data: Path) -> None:
    assert (census_eval.PROMISE, census_eval.parse(["--data", str(data)]).rows) == (20, 1_000_000)


def test_the_file_has_as_many_rows_as_asked_for(data: Path) -> None:
    write_parquet(data / "adult.test.csv", data / "rows.parquet", 150_000)

    file = pyarrow.parquet.ParquetFile(data / "rows.parquet")
    assert file.metadata.num_rows == 150_000
    assert file.metadata.num_row_groups == 2
    assert file.schema_arrow.names == list(columns.CSV_COLUMNS)


def test_without_the_census_files_one_line_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        census_eval.parse(["--data", str(tmp_path)])

    assert "name the folder of the census files with --data" in capsys.readouterr().err
