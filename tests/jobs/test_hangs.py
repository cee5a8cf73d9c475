"""A job whose roles hang: they are ended and started again, and the job says why."""

from __future__ import annotations

import os
import re
import signal

import pytest

from scripts.storms.submitting import wait_until
from tests.jobs.conftest import WORKER_HANGS, Jobs

CLUSTER = ("--scale-tier", "CUSTOM", "--worker-count", "1")


def test_a_role_that_hangs_is_started_again_alone_and_the_job_says_why(jobs: Jobs) -> None:
    jobs.program(WORKER_HANGS)
    jobs.submit("hung", *CLUSTER, "--hang-secs", "3")
    wait_until(lambda: jobs.describe("hung")["roles"].get("worker-0", {}).get("restarts") == 1)
    roles = jobs.describe("hung")["roles"]
    assert {role: one["restarts"] for role, one in roles.items()} == {"chief-0": 0, "worker-0": 1, "evaluator-0": 0}
    said = r"worker-0 made no step for \d+ s \(last: step 412, training\); it was ended\."
    assert re.fullmatch(said, roles["worker-0"]["reason"])
    assert [
        bool(re.fullmatch(said, one.reason)) for one in jobs.directory("hung").events() if one.kind == "exited"
    ] == [True]
    (jobs.folder / "go").touch()
    assert jobs.wait("hung") == "SUCCEEDED"


def test_a_role_that_always_hangs_fails_the_job_with_its_sentence(jobs: Jobs) -> None:
    jobs.program("""
    from torch_estimator.activity import doing

    with doing("saving"):
        time.sleep(1000)
    """)
    jobs.submit("hung", "--hang-secs", "0.5", "--max-restarts", "0")
    assert jobs.wait("hung") == "FAILED"
    said = r"made no progress for \d+ s \(last: saving\)"
    assert re.fullmatch(
        rf"The program {said} and was killed by SIGTERM and has no restart left \(max_restarts=0\); ending the job\. "
        rf"chief-0 {said}; it was ended\.",
        jobs.describe("hung")["reason"],
    )


PROGRAM = """
import logging
# A busy machine takes long for the imports at the start of a training.
import torch._dynamo, torch.distributed.tensor
import numpy as np
import torch_estimator as te


class Ends(te.Hook):
    def after_step(self, context):
        time.sleep(0.02)
        if (here / "go").exists():
            context.request_stop()


logging.basicConfig(level=logging.INFO, format="%(message)s")
x = np.arange(400.0)
rows = te.data.Dataset.from_arrays({"x": x}, labels=2 * x).batch(4)
config = te.RunConfig("model", save_checkpoints_steps=50, experimental_max_worker_delay_secs=0, compile=False)
te.train_and_evaluate(
    # A server imports torch for an optimizer of torch, which takes long on a busy machine.
    te.LinearRegressor([te.feature_column.numeric_column("x")], config=config),
    te.TrainSpec(lambda: rows.repeat(), hooks=[Ends()]),
    te.EvalSpec(lambda: rows, steps=2, start_delay_secs=0, throttle_secs=0),
)
"""


@pytest.mark.slow
def test_roles_that_were_stopped_are_started_again_and_no_other(jobs: Jobs) -> None:
    jobs.program(PROGRAM)
    jobs.submit("stopped", *CLUSTER, "--parameter-server-count", "1", "--hang-secs", "30")
    activity, stopped = jobs.folder / "jobs" / "stopped" / "activity", ("worker-0", "ps-0", "evaluator-0")
    wait_until(lambda: all((activity / f"{role}.json").exists() for role in (*stopped, "chief-0")))
    wait_until(lambda: '"training"' in (activity / "worker-0.json").read_text())
    for role in stopped:
        os.kill(jobs.pid("stopped", role), signal.SIGSTOP)
    wait_until(lambda: all(jobs.describe("stopped")["roles"][role]["restarts"] for role in stopped))
    (jobs.folder / "go").touch()
    assert jobs.wait("stopped") == "SUCCEEDED", jobs.log("stopped", "launcher")
    restarts = {role: one["restarts"] for role, one in jobs.describe("stopped")["roles"].items()}
    assert restarts == {**dict.fromkeys(stopped, 1), "chief-0": 0}
    reasons = [one.reason for one in jobs.directory("stopped").events() if one.reason.endswith("it was ended.")]
    said = r"(\S+) did not even write its record for \d+ s \(last: .*\); it was ended\."
    assert sorted(re.sub(said, r"\1", reason) for reason in reasons) == sorted(stopped)


def test_a_limit_below_zero_is_refused_at_submission(jobs: Jobs) -> None:
    jobs.program("")
    status, _, err = jobs.run("submit", "training", "x", "--module-name", "trainer.task", "--hang-secs", "-1")
    assert (status, err) == (2, "estimator: error: hang_secs must be 0 or more, but got -1.0.\n")
