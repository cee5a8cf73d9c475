"""A chief that is killed after its last checkpoint is started again only to finish the job; its workers end with it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster_jobs import Cluster, ended

PROGRAM = """
import logging, os, signal, sys, time
from pathlib import Path
import torch
import torch_estimator as te

logging.basicConfig(level=logging.INFO, format="%(message)s")
model_dir, strategy = Path(sys.argv[1]), sys.argv[2]
config = te.RunConfig(
    model_dir=str(model_dir),
    compile=False,
    session_creation_timeout_secs=120,
    train_distribute=eval(strategy, vars(te.distribute)),
)


class Kill(te.Hook):
    after_saving = True

    def end(self, context):
        while not (model_dir / "model.ckpt-20").exists():
            time.sleep(0.01)
        # `model.ckpt-20` is complete when it has this name, and is the newest one when `checkpoint` names it.
        while "model.ckpt-20" not in (model_dir / "checkpoint").read_text():
            time.sleep(0.01)
        if not (model_dir / "killed").exists():
            (model_dir / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def input_fn():
    return te.data.Dataset.from_arrays([[1.0], [2.0]], [[2.0], [4.0]]).repeat().batch(2)


estimator = te.Estimator.from_module(
    torch.nn.Linear(1, 1), loss=torch.nn.MSELoss(), optimizer=te.optim.SGD(lr=1e-3), config=config
)
train_spec = te.TrainSpec(input_fn, max_steps=20, hooks=[Kill()] if config.is_chief else None)
te.train_and_evaluate(estimator, train_spec, te.EvalSpec(input_fn, steps=1))
"""


@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy()", "MultiWorkerMirroredStrategy(elastic=True)"])
def test_workers_end_with_a_chief_that_was_killed_after_the_last_checkpoint(tmp_path: Path, strategy: str) -> None:
    cluster = Cluster(PROGRAM, workers=2)
    running = [cluster.start(task, tmp_path, strategy) for task in cluster.tasks]
    running[0].wait()
    assert running[0].status == -signal.SIGKILL
    running[0] = cluster.start(cluster.tasks[0], tmp_path, strategy)
    results = ended(running)
    assert [one.status for one in results] == [0, 0, 0], results
    assert "Skipping training: max_steps=20 is reached" in results[0].output
    for worker in results[1:]:
        assert "The others have ended the training." in worker.output or "Training ended" in worker.output
