"""The floor's pieces are those of the census model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import torch_estimator as te
from benchmarks import floor
from examples.census.trainer import model
from torch_estimator.networks import Dense

ROOT = Path(__file__).resolve().parents[2]


def test_the_layers_are_those_of_the_example(tmp_path: Path) -> None:
    estimator = model.build_estimator(
        te.RunConfig(model_dir=str(tmp_path)), embedding_size=8, units=model.hidden_units(100, 4, 0.7)
    )
    kernels = [
        tuple(one.kernel.shape)
        for one in estimator.job.builder.build("train", estimator.config).module.modules()
        if isinstance(one, Dense)
    ]
    assert kernels == floor._LAYERS


@pytest.mark.slow
def test_a_quick_run_prints_the_table(shared_data: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.floor", "--quick", "--batches", "40"]
    done = subprocess.run(
        [*command, "--data", str(shared_data / "census")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cells = {line.split("  ")[0]: line.split()[-1] for line in done.stdout.splitlines() if "  " in line}
    pieces = [float(cells[name]) for name in ("matrix products", "wide rows", "network's weights")]
    assert 0 < max(pieces) < sum(pieces)
    assert abs(float(cells["floor"]) - sum(pieces)) < 0.02 * sum(pieces)
    assert float(cells["compiled step"].replace(",", "")) > 0
