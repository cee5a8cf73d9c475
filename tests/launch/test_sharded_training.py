"""Fully sharded training in a cluster that the launcher starts, with one process killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.launched import Launched
from tests.line_jobs import checkpoint_steps
from tests.strategies.test_synchronous_training import assert_same

PROGRAM = """
import logging
import numpy as np
import torch
from torch import nn
import torch_estimator as te

logging.basicConfig(level=logging.INFO, format="%(message)s")
model_dir = sys.argv[sys.argv.index("--job-dir") + 1]
start = nth_start()


class Dies(te.Hook):
    def after_step(self, context):
        if role in sys.argv and start == 1 and context.global_step == 8:
            die()


def input_fn(input_context):
    rows = np.random.default_rng(0).normal(size=(96, 3)).astype(np.float32)
    part = (input_context.num_input_pipelines, input_context.input_pipeline_id)
    return te.data.Dataset.from_arrays(rows, rows.sum(1)).shard(*part).shuffle(20).repeat().batch(4)


torch.manual_seed(1)
config = te.RunConfig(
    random_seed=1, save_checkpoints_steps=5, train_distribute=te.distribute.FullyShardedStrategy()
)
module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.2), nn.Linear(3, 1), nn.Flatten(0))
estimator = te.Estimator.from_module(
    module, loss=nn.functional.mse_loss, optimizer=te.optim.Adam(lr=0.01), model_dir=model_dir, config=config
)
with te.errors.exit_on_user_error():
    estimator.train(input_fn, max_steps=12, hooks=[Dies()])
"""


def launched(folder: Path, dies: str) -> Launched:
    folder.mkdir()
    options = ("--distributed", "--worker-count", "1", "--job-dir", str(folder / "job"), "--", dies)
    job = Launched(folder, PROGRAM, *options, env={"OMP_NUM_THREADS": "1"})
    assert job.end() == 0, job.out + job.err
    return job


@pytest.mark.slow
def test_after_a_kill_all_processes_restart_and_reach_the_same_end(tmp_path: Path) -> None:
    killed, whole = launched(tmp_path / "killed", "worker"), launched(tmp_path / "whole", "nobody")
    assert [killed.starts(task) for task in ("chief 0", "worker 0")] == [2, 2]
    assert [whole.starts(task) for task in ("chief 0", "worker 0")] == [1, 1]
    assert "see its log, and start all of them again: training goes on from the last checkpoint.\n" in killed.err
    assert "chief 0 was preempted (status 143); started chief 0 again, restart 1 of 3.\n" in killed.err_without_pids
    assert checkpoint_steps(tmp_path / "killed" / "job") == [0, 5, 10, 12]
    assert_same(tmp_path / "killed" / "job", tmp_path / "whole" / "job")
