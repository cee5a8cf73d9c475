"""The TFRecord benchmark runs, and says of each promise whether it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tfrecord
from examples.census.trainer import sample


@pytest.mark.slow
def test_a_quick_run_prints_tables_and_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sample.write(str(tmp_path), train_rows=300, eval_rows=100)

    status = tfrecord.main(["--quick", "--peers", "--file", files.train_file])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    for name in ("ours ", "ours, in order "):
        assert sum(line.startswith(name) for line in lines) == 2
    assert sum("over parse_single_example: at least 5: not measured" in line for line in lines) == 2
