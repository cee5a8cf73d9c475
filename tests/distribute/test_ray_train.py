"""The mnist example, without a changed line, in the workers of Ray Train; and what Ray Train does to a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_jobs import ROOT, Process, ended, free_port
from tests.jobs import checkpoint_steps

# As the worker of a TorchTrainer: the ranks are told, and torch.distributed is in use when the program begins.
BEGUN = """
import sys
import torch.distributed as dist
from examples.mnist import task

dist.init_process_group("gloo")
task.main(sys.argv[1:])
dist.barrier()
dist.destroy_process_group()
"""
OPTIONS = ("--num-epochs", "1", "--save-checkpoints-steps", "10")


def check_trained(job_dir: Path, told: str) -> None:
    assert "This process is chief 0, as told by RANK and WORLD_SIZE." in told
    assert "This process is worker 0, as told by RANK and WORLD_SIZE." in told
    last = checkpoint_steps(job_dir)[-1]
    assert f"Training ended at global step {last}: the input ended." in told
    assert len(list((job_dir / "export" / "digits").iterdir())) == 1


def test_processes_that_have_met_already_train_in_the_group_they_have(tmp_path: Path) -> None:
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = ended(
        [Process(BEGUN, ["--job-dir", str(tmp_path), *OPTIONS], {**told, "RANK": str(rank)}) for rank in range(2)]
    )
    text = "".join(one.told for one in processes)
    assert [one.status for one in processes] == [0, 0], text
    check_trained(tmp_path, text)


def test_ray_train_calls_the_program_in_its_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install -c constraints.txt -e '.[ray]'")
    done = subprocess.run(
        [sys.executable, "-m", "examples.cluster.ray_train", "--job-dir", str(tmp_path), *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    check_trained(tmp_path, text)
