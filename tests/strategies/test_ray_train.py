"""The mnist example in processes whose launcher has initialized torch.distributed already, as Ray Train does."""

from __future__ import annotations

from pathlib import Path

from tests.cluster_jobs import Process, ended, free_port
from tests.line_jobs import checkpoint_steps

# As in a worker of a TorchTrainer, torch.distributed is initialized before the program begins.
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
    assert "This process is chief 0, according to RANK and WORLD_SIZE." in told
    assert "This process is worker 0, according to RANK and WORLD_SIZE." in told
    last = checkpoint_steps(job_dir)[-1]
    assert f"Training ended at global step {last}: the input ended." in told
    assert len(list((job_dir / "export" / "digits").iterdir())) == 1


def test_training_uses_the_process_group_that_the_launcher_has_made(tmp_path: Path) -> None:
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = ended(
        [Process(BEGUN, ["--job-dir", str(tmp_path), *OPTIONS], {**told, "RANK": str(rank)}) for rank in range(2)]
    )
    text = "".join(one.output for one in processes)
    assert [one.status for one in processes] == [0, 0], text
    check_trained(tmp_path, text)
