"""Programs whose processes are in Ray's actors: one is killed with its actor, mistakes end the job, nothing is left."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_jobs import ROOT
from tests.launch.launched import BEGINNING, processes_whose_environ_has, wait_until
from tests.line_jobs import checkpoint_steps

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is an extra: pip install -c constraints.txt -e '.[ray]'"
)

# Four programs import torch one after the other, and Ray starts; a busy machine takes minutes.
_SECS = 600

# Ends with its stdin, and so with the tests.
RAY = """
import sys, ray
print(ray.init(num_cpus=2, object_store_memory=80 * 2**20).address_info["address"], flush=True)
sys.stdin.read()
"""

TRAINS = """
import logging
import torch_estimator as te
from tests.line_jobs import WritingExporter, line, points

logging.basicConfig(level=logging.INFO, format="%(message)s")
start = nth_start()


class Meets(te.Hook):
    def after_step(self, context):
        if role == "worker" and start == 1:
            os.kill(os.getppid(), signal.SIGKILL)
            wait_for("never")
        if role == "worker":
            (here / "again").touch()
        if role == "chief" and context.global_step >= 20:
            wait_for("again")


with te.errors.exit_on_user_error():
    metrics, _ = te.train_and_evaluate(
        line(sys.argv[1], save_checkpoints_steps=20, experimental_max_worker_delay_secs=0, compile=False),
        te.TrainSpec(lambda: points().repeat(), max_steps=60, hooks=[Meets()]),
        te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0, exporters=WritingExporter(only_final=True)),
    )
    print(me, "reached", metrics and metrics["global_step"])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of those who use a Ray cluster of this machine."""
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with subprocess.Popen(
            [sys.executable, "-c", RAY], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address
            yield {**environ, "RAY_ADDRESS": address}


class Launched:
    """The launcher at work on a program, ``trainer.task`` in `folder`."""

    def __init__(self, folder: Path, environ: dict[str, str], program: str, *options: str) -> None:
        self.package = folder / "trainer"
        self.package.mkdir()
        (self.package / "task.py").write_text(BEGINNING + program)
        command = [sys.executable, "-m", "examples.cluster.ray_actors", "--module", "trainer.task", "--cpus", "0.5"]
        self._told = folder / "told"
        with self._told.open("wb") as told:
            self.process = subprocess.Popen(
                [*command, *options], cwd=folder, env=environ, stdout=told, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self._told.read_text()

    def end(self) -> int:
        """Waits for its end, after which nothing of the program may be left; returns the exit status."""
        try:
            self.process.wait(_SECS)
        finally:
            self.process.kill()
            self.process.wait()
        # Not by the files in which they write their numbers, which may still be empty. Imports begin in the folder, and
        # that is in the environment of each of them from its start on.
        wait_until(lambda: not self.left())
        return self.process.returncode

    def left(self) -> list[int]:
        """The processes of the program that run."""
        return processes_whose_environ_has(str(self.package.parent))

    def starts(self, task: str) -> int:
        return len((self.package / f"{task}.starts").read_text())


@pytest.mark.slow
def test_a_worker_whose_actor_is_killed_is_made_again_and_all_four_roles_end(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    roles = ("--workers", "1", "--ps", "1", "--evaluator", "--strategy", "PACK")
    job = Launched(tmp_path, cluster, TRAINS, *roles, "--", str(tmp_path / "job"))
    assert job.end() == 0, job.output
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [1, 2, 1], job.output
    assert "[launcher] started chief 0, worker 0, ps 0, evaluator 0.\n" in job.output
    assert "Training ended at global step 60" in job.output
    assert "ps 0 ends: training is over." in job.output
    assert checkpoint_steps(tmp_path / "job")[-1] == 60
    assert (tmp_path / "job" / "export" / "writing" / "60").exists()


def test_a_program_that_dies_is_started_again_in_its_actor_until_its_user_has_to_act(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    program = """
if role == "worker":
    (here / f"actor {nth_start()}").write_text(str(os.getppid()))
    wait_for("chief 0.pid")
    die() if not (here / "actor 2").exists() else sys.exit(2)
signal.signal(signal.SIGTERM, lambda *_: ((here / "asked").touch(), sys.exit(143)))
wait_for("never")
"""
    job = Launched(tmp_path, cluster, program)
    assert job.end() == 2, job.output
    assert "[launcher] worker 0 was killed by SIGKILL; started worker 0 again, restart 1 of 3.\n" in job.output
    reason = "ended with status 2, an error of the user that a restart would repeat"
    assert f"[launcher] worker 0 {reason}; ending the job.\n" in job.output
    assert (job.package / "asked").exists()
    assert (job.package / "actor 1").read_text() == (job.package / "actor 2").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_where_the_launcher_is_stopped_or_killed(
    cluster: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    job = Launched(tmp_path, cluster, "wait_for('never')")
    wait_until(lambda: len(list(job.package.glob("*.pid"))) == 2 or job.process.poll() is not None)
    assert len(job.left()) == 2
    job.process.send_signal(number)
    assert job.end() == (143 if number == signal.SIGTERM else -number), job.output


def test_a_cluster_without_room_is_told_what_is_asked_for(cluster: dict[str, str], tmp_path: Path) -> None:
    job = Launched(tmp_path, cluster, "sys.exit()", "--ps", "1", "--cpus", "100", "--start-secs", "0.1")
    assert job.end() == 2
    assert job.output.endswith(
        "error: the Ray cluster has had no room for 3 actors (SPREAD) within 0.1 s: they need 100 CPU each and 0 GPU "
        "for those that train, and it has 2 CPU and 0 GPU in all; add nodes, or ask for less with --cpus, --gpus or "
        "another --strategy.\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--module", "trainer.task"], "there is no module trainer.task in "),
        (["--finish-secs", "-1"], "finish_secs must be 0 or more, but got -1.0."),
        ([], "no Ray cluster can be reached at RAY_ADDRESS='localhost:9': Connection refused; see whether it runs"),
    ],
)
def test_a_misuse_is_one_sentence(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.cluster.ray_actors import main

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("RAY_ADDRESS", "localhost:9")
    with pytest.raises(SystemExit) as stopped:
        main(options)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_who_is_asked_for_at_an_address_that_is_gone_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.cluster.ray_actors import Role
    from torch_estimator.cluster.task import Task
    from torch_estimator.launch.layout import Program

    program = Program(module_name="examples.mnist.task", package_path=str(ROOT / "examples"))
    cluster = {"chief": ("203.0.113.1:10",), "ps": ("203.0.113.1:11",)}
    assert Role("ps 0").run(program, str(tmp_path), Task(type="ps", cluster=cluster)) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: the node of ps 0 is gone, and Ray has placed it at ")
    assert "look for it at 203.0.113.1:11; start the job again, which goes on from its last checkpoint." in told
    assert Role("chief 0").run(program, str(tmp_path / "none"), Task(type="chief", cluster=cluster)) == 2
    assert f", which has no folder {tmp_path / 'none'}; all nodes have to see" in capsys.readouterr().err
