"""Generated data for benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.census.trainer import sample


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with generated files under the names of the real census files."""
    files = sample.write(str(tmp_path), train_rows=2000, eval_rows=500)
    Path(files.train_file).rename(tmp_path / "adult.data.csv")
    Path(files.eval_file).rename(tmp_path / "adult.test.csv")
    return tmp_path
