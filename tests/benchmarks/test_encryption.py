"""The encryption benchmark runs."""

from __future__ import annotations

import pytest

from benchmarks import encryption


@pytest.mark.slow
def test_a_quick_run_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert encryption.main(["--quick", "--kb", "8"]) == 0
    (row,) = [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines() if line.startswith("8 ")]
    assert len(row) == 5
    assert min(float(row[1]), float(row[2]), float(row[4])) > 0
