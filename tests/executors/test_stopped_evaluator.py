"""Training beside an evaluator that stands still: no step waits for it, and it does its part once it goes on."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.cluster_jobs import Cluster, Ended, ended, wait_until
from tests.line_jobs import checkpoint_steps
from torch_estimator.summary.scalar_reader import read_scalars

# Those who train wait after some steps until they are let go on; the evaluator, where it is said, does so once.
PROGRAM = """
import logging, pathlib, sys, time
import torch_estimator as te
from tests.line_jobs import WritingExporter, points
from torch_estimator import feature_column as fc

model_dir, where = pathlib.Path(sys.argv[1]), sys.argv[2]
logging.basicConfig(level=logging.INFO, format="%(message)s")


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def stand_still(here):
    if here == where and not (model_dir / "evaluate").exists():
        (model_dir / "standing still").touch()
        wait_for(model_dir / "evaluate")


class Train(te.Hook):
    def after_step(self, context):
        if context.global_step >= 12:
            wait_for(model_dir / "train")


class Amid(te.Hook):
    def after_step(self, context):
        stand_still("amid an evaluation")


class Before(te.ContinuousEvalListener):
    def before_eval(self):
        stand_still("before an evaluation")
        return True


config = te.RunConfig(
    save_checkpoints_steps=10, keep_checkpoint_max=2, compile=False, experimental_max_worker_delay_secs=0
)
te.train_and_evaluate(
    te.LinearRegressor([fc.numeric_column("x", (2,))], model_dir=str(model_dir), config=config),
    te.TrainSpec(lambda: points().repeat(), max_steps=65, hooks=[Train()]),
    te.EvalSpec(
        points, steps=2, hooks=[Amid()], start_delay_secs=0, throttle_secs=0, exporters=WritingExporter(only_final=True)
    ),
    Before(),
)
"""


@pytest.mark.parametrize(("workers", "servers"), [(1, 0), (0, 1)], ids=["worker", "ps"])
def test_training_reaches_its_end_while_the_evaluator_is_stopped_amid_an_evaluation(
    tmp_path: Path, workers: int, servers: int
) -> None:
    evaluator = train_beside_a_stopped_evaluator(Cluster(PROGRAM, workers, servers), tmp_path, "amid an evaluation")

    first, last = read_scalars(tmp_path / "eval")["loss"].steps.tolist()
    assert last == 65
    # What it was evaluating was kept for it.
    assert checkpoint_steps(tmp_path) == [first, 60, 65]
    assert "was removed" not in evaluator.output


def test_an_evaluator_takes_the_newest_checkpoint_where_the_one_it_chose_was_removed_while_it_was_stopped(
    tmp_path: Path,
) -> None:
    evaluator = train_beside_a_stopped_evaluator(Cluster(PROGRAM, workers=0), tmp_path, "before an evaluation")

    assert read_scalars(tmp_path / "eval")["loss"].steps.tolist() == [65]
    assert checkpoint_steps(tmp_path) == [60, 65]
    gone = (
        rf"^Checkpoint {tmp_path}/model\.ckpt-\d+ was removed before it was evaluated .*; going on with the newest\.$"
    )
    assert len(re.findall(gone, evaluator.output, re.M)) == 1


def train_beside_a_stopped_evaluator(cluster: Cluster, model_dir: Path, where: str) -> Ended:
    """Stops the evaluator there until those who train have ended; says what it did afterwards."""
    trainers = [cluster.start(task, model_dir, where) for task in cluster.tasks]
    evaluator = cluster.start(("evaluator", 0), model_dir, where)
    try:
        wait_until(
            lambda: (model_dir / "standing still").exists() and (model_dir / "model.ckpt-10").exists(),
            *trainers,
            evaluator,
        )
        os.kill(evaluator.pid, signal.SIGSTOP)
        (model_dir / "train").touch()
        trained = ended(trainers)

        assert [one.status for one in trained] == [0] * len(trainers), trained
        assert re.findall(r"Saving checkpoints for (\d+)", trained[0].output) == [
            "0",
            *map(str, range(10, 65, 10)),
            "65",
        ]
        assert "Training ended at global step 65: the last step was reached." in trained[0].output
        assert not (model_dir / "eval").exists() or "loss" not in read_scalars(model_dir / "eval")

        (model_dir / "evaluate").touch()
        os.kill(evaluator.pid, signal.SIGCONT)
        (went_on,) = ended([evaluator])
    finally:
        for process in (*trainers, evaluator):
            process.kill()
    assert went_on.status == 0, went_on.output
    assert [file.name for file in (model_dir / "export" / "writing").iterdir()] == ["65"]
    assert not (model_dir / "evaluating").exists()
    return went_on
