"""Real trainings in a cluster that the launcher starts, with one process killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.launched import Launched
from tests.line_jobs import checkpoint_steps

PROGRAM = """
import logging
import torch_estimator as te
from tests.line_jobs import WritingExporter, line, points

logging.basicConfig(level=logging.INFO, format="%(message)s")
start = nth_start()


class Dies(te.Hook):
    def after_step(self, context):
        if role == "worker" and start == 1 and context.global_step == 12:
            die()


with te.errors.exit_on_user_error():
    metrics, _ = te.train_and_evaluate(
        line(sys.argv[sys.argv.index("--job-dir") + 1], save_checkpoints_steps=5),
        te.TrainSpec(lambda: points().repeat(), max_steps=20, hooks=[Dies()]),
        te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0, exporters=WritingExporter(only_final=True)),
    )
    print(me, "reached", metrics and metrics["global_step"])
"""


def test_a_job_in_step_goes_on_with_a_new_worker_and_its_evaluator_exports_the_end(tmp_path: Path) -> None:
    options = ("--distributed", "--worker-count", "1", "--evaluator", "--job-dir", str(tmp_path / "job"))
    job = Launched(tmp_path, PROGRAM, *options, env={"OMP_NUM_THREADS": "1"})
    assert job.end() == 0, job.out + job.err
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [1, 2, 1]
    assert "[worker 0] This process is worker 0, according to TF_CONFIG.\n" in job.err
    assert "[chief 0] chief 0 has lost another process of the cluster (" in job.err
    assert "worker 0 was killed by SIGKILL; started worker 0 again, restart 1 of 3.\n" in job.err_without_pids
    assert "[worker 0] The others are at global step 12; going on with them.\n" in job.err
    assert "[evaluator 0] evaluator 0 reached 20\n" in job.out
    assert checkpoint_steps(tmp_path / "job")[-1] == 20
    assert (tmp_path / "job" / "export" / "writing" / "20").exists()


AGAIN = """
import logging
import torch_estimator as te
from tests.line_jobs import WritingExporter, line, points

logging.basicConfig(level=logging.INFO, format="%(message)s")
job_dir = sys.argv[sys.argv.index("--job-dir") + 1]
settings = {"save_checkpoints_steps": 1000, "experimental_max_worker_delay_secs": 0}
start = nth_start()


class Dies(te.Hook):
    def after_step(self, context):
        if folder == "b":
            time.sleep(0.005)
            if role == "chief" and start == 1 and context.global_step >= 100:
                die()


with te.errors.exit_on_user_error():
    for folder, max_steps in (("a", 300), ("a", 600), ("b", 900)):
        te.train_and_evaluate(
            line(f"{job_dir}/{folder}", **settings),
            te.TrainSpec(lambda: points().repeat(), max_steps=max_steps, hooks=[Dies()]),
            te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0),
        )
        print(me, "is through with", folder, max_steps)
"""


@pytest.mark.slow
def test_a_program_may_train_again_and_another_model_with_the_same_parameter_servers(tmp_path: Path) -> None:
    options = ("--distributed", "--worker-count", "1", "--parameter-server-count", "2", "--evaluator")
    job = Launched(tmp_path, AGAIN, *options, "--job-dir", str(tmp_path), env={"OMP_NUM_THREADS": "1"})
    assert job.end() == 0, job.out + job.err
    for role in ("chief", "worker", "evaluator"):
        for folder, max_steps in (("a", 300), ("a", 600), ("b", 900)):
            assert f"[{role} 0] {role} 0 is through with {folder} {max_steps}\n" in job.out
    assert [checkpoint_steps(tmp_path / folder)[-1] for folder in ("a", "b")] == [600, 900]
    assert job.err.count("ps 1 listens on") == 1
    assert job.err.count("ps 1 ends: training is over.") == 3
    # The chief, which begins with the trainings that are over, leaves the servers to the one that is not.
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [2, 1, 1]
    assert "[chief 0] Parameter servers are at global step " in job.err
