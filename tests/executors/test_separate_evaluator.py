"""A chief and an evaluator as processes of their own, told apart by TF_CONFIG, one of them killed."""

from __future__ import annotations

from pathlib import Path

from tests.cluster_jobs import Cluster, ended, wait_until
from tests.line_jobs import line
from torch_estimator.summary.scalar_reader import read_scalars

PROGRAM = """
import logging, pathlib, sys, time
import torch_estimator as te
from tests.line_jobs import WritingExporter, line, points

model_dir, stop_in_export = pathlib.Path(sys.argv[1]), "stop" in sys.argv
logging.basicConfig(level=logging.INFO)


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


class Wait(te.Hook):
    def after_step(self, context):
        if context.global_step == 12:
            wait_for(model_dir / "go")


class Stop(te.Hook):
    def after_step(self, context):
        if context.global_step == 12:
            context.request_stop()


class Exporter(WritingExporter):
    def export(self, **arguments):
        if stop_in_export:
            (model_dir / "exporting").touch()
            wait_for(model_dir / "never")
        return super().export(**arguments)


result = te.train_and_evaluate(
    line(model_dir, save_checkpoints_steps=10, train_distribute=te.distribute.MultiWorkerMirroredStrategy()),
    te.TrainSpec(lambda: points().repeat(), max_steps=35, hooks=[Stop() if "early" in sys.argv else Wait()]),
    te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0, exporters=Exporter()),
)
print("result", result)
"""


def test_an_evaluator_that_was_killed_is_replaced_and_nothing_is_evaluated_twice_or_lost(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0)
    chief = cluster.start(("chief", 0), tmp_path)
    killed = cluster.start(("evaluator", 0), tmp_path, "stop")
    evaluator = None
    try:
        wait_until((tmp_path / "exporting").exists, chief, killed)
        killed.kill()
        killed.wait()
        evaluator = cluster.start(("evaluator", 0), tmp_path)
        exported = tmp_path / "export" / "writing"
        wait_until(lambda: exported.exists() and any(exported.iterdir()), chief, evaluator)
        (tmp_path / "go").touch()
        told = {"chief": chief.wait(), "evaluator": evaluator.wait()}
    finally:
        for process in (chief, killed, evaluator):
            if process is not None:
                process.kill()
    assert (chief.status, evaluator.status) == (0, 0), told
    assert "result (None, None)" in told["chief"]
    assert "This process is chief 0, according to TF_CONFIG." in told["chief"]
    assert "This process is evaluator 0, according to TF_CONFIG." in told["evaluator"]
    assert "'global_step': 35" in told["evaluator"].rpartition("result ")[2]
    steps = read_scalars(tmp_path / "eval")["loss"].steps.tolist()
    assert len(set(steps)) == len(steps), steps
    assert steps[-1] == 35
    # What was evaluated before the kill was exported after it.
    assert {int(file.name) for file in exported.iterdir()} == set(steps)
    assert line(tmp_path).get_variable_value("global_step") == 35


def test_a_worker_alone_evaluates_and_an_evaluator_that_it_does_not_know_of_leaves_that_to_it(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, chief=False)
    worker, evaluator = ended([cluster.start((name, 0), tmp_path, "early") for name in ("worker", "evaluator")])
    assert (worker.status, evaluator.status) == (0, 0), worker.output + evaluator.output
    assert "Worker 0 evaluates and exports, since " in evaluator.output
    assert "result (None, None)" in evaluator.output
    assert "'global_step': 12" in worker.output.rpartition("result ")[2]
    assert read_scalars(tmp_path / "eval")["loss"].steps.tolist() == [10, 12]
