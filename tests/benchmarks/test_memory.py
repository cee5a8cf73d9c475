"""The memory benchmark runs, and says whether the promise holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import memory
from benchmarks.protocol import Measured
from examples.census.trainer import sample


@pytest.mark.slow
def test_a_quick_run_prints_the_table_and_the_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sample.write(str(tmp_path), train_rows=2000, eval_rows=50)

    status = memory.main(["--quick", "--compile", "no", "--file", files.train_file])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    for name in ("shuffled, small ", "shuffled, large ", "in order, small ", "in order, large "):
        assert sum(line.startswith(name) for line in lines) == 1
    assert sum(line.startswith("MB more at the peak with the large file, ") for line in lines) == 2
    assert not any("not measured" in line for line in lines)


@pytest.mark.parametrize(("more", "status"), [(299.0, 0), (301.0, 1)])
def test_the_status_says_whether_it_holds(
    more: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: Any) -> Any:
        peaks = {
            "shuffled, small": 400.0,
            "shuffled, large": 400.0 + more,
            "in order, small": 1.0,
            "in order, large": 1,
        }
        return Measured({name: [{"peak_mb": peak}] for name, peak in peaks.items()}), {"small": 1, "large": 2}

    monkeypatch.setattr(memory, "measure", measured)
    (tmp_path / "rows.csv").touch()

    assert memory.main(["--file", str(tmp_path / "rows.csv")]) == status

    assert (
        f"shuffled: at most 300: {more:.0f}, {'holds' if status == 0 else 'DOES NOT HOLD'}" in capsys.readouterr().out
    )
