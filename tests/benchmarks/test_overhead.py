"""The overhead benchmark runs, and takes its bare steps from the very run it is about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_quick_run_prints_the_table(shared_data: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.overhead", "--quick", "--compile", "no", "--batches", "40"]
    done = subprocess.run(
        [*command, "--data", str(shared_data / "census")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("40 ")]
    assert all(float(number.replace(",", "")) > 0 for number in row[1:])
