"""The unchanged mnist example, started by torchrun with examples/cluster/torchrun.sh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster_jobs import ROOT, free_port
from tests.line_jobs import checkpoint_steps


def test_torchrun_starts_processes_that_train_together_and_evaluate(tmp_path: Path) -> None:
    options = ["--job-dir", str(tmp_path), "--num-epochs", "1", "--save-checkpoints-steps", "10"]
    ended = subprocess.run(
        [ROOT / "examples" / "cluster" / "torchrun.sh", *options],
        env={**os.environ, "PYTHON": sys.executable, "PORT": str(free_port()), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    told = ended.stdout + ended.stderr
    assert ended.returncode == 0, told
    assert "This process is chief 0, according to RANK and WORLD_SIZE." in told
    assert "This process is worker 0, according to RANK and WORLD_SIZE." in told
    # Each process reads half of the digits; the chief evaluates and exports.
    last = checkpoint_steps(tmp_path)[-1]
    assert f"Training ended at global step {last}: the input ended." in told
    assert len(list((tmp_path / "export" / "digits").iterdir())) == 1
