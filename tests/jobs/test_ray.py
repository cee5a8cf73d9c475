"""Jobs on Ray: one role is started again, lines arrive once, mistakes end a job, and nothing is left of it."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.storms.places import actors, ray_cluster
from tests.jobs.conftest import WORKER_HANGS
from tests.launch.launched import processes_whose_environ_has, wait_until
from torch_estimator.checkpoint.checkpoint import checkpoint_paths
from torch_estimator.cli.main import main
from torch_estimator.cluster.task import Task
from torch_estimator.jobs.directory import FINAL, JobDirectory, names
from torch_estimator.launch.layout import Program

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is an extra: pip install -c constraints.txt -e '.[ray]'"
)

TABLE = """
[machines.small]
memory = "64Mi"

[machines.huge]
memory = "900Ti"

[targets.ray]
kind = "ray"
cpus = 0.5

[targets.large]
kind = "ray"
cpus = 100
start_secs = 0.1
"""

BEGINNING = """
import json, os, pathlib, signal, sys, time

task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task['type']}-{task['index']}"
here = pathlib.Path.cwd()
(here / f"{me}.pid").write_text(str(os.getpid()))


def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.005)


"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of those who use a Ray cluster of this machine."""
    with ray_cluster(cpus=2) as environ:
        yield environ


class Jobs:
    """Jobs that a test submits to Ray in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def submit(self, name: str, program: str, *options: str, target: str = "ray", status: int = 0) -> JobDirectory:
        (self._folder / "trainer").mkdir(exist_ok=True)
        (self._folder / "trainer" / "task.py").write_text(BEGINNING + program)
        own = ["jobs", "submit", "training", name, "--on", target, "--module-name", "trainer.task"]
        assert main([*own, "--scale-tier", "CUSTOM", "--worker-count", "1", *options]) == status
        return JobDirectory(str(self._folder / "jobs"), name)

    def lines(self, job: JobDirectory, role: str) -> list[str]:
        log = Path(job.logs) / f"{role}.log"
        return [line.partition(" ")[2] for line in log.read_text().splitlines()]

    def left(self) -> list[int]:
        """The processes of roles, which import from a job's directory."""
        return processes_whose_environ_has(str(self._folder / "jobs"))


def end(job: JobDirectory) -> tuple[str, str]:
    """Wait for the end of a job; return its state and the reason."""
    wait_until(lambda: job.status().state in FINAL)
    return job.status().state, job.status().reason


@pytest.fixture
def jobs(cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.chdir(tmp_path)
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "estimator.toml").write_text(TABLE)
    yield Jobs(tmp_path)
    for name in names("jobs"):
        job = JobDirectory("jobs", name)
        launched = job.launched()
        if job.status().state not in FINAL and launched is not None and launched.pid is not None:
            os.kill(launched.pid, signal.SIGKILL)


@needs_ray
def test_a_killed_worker_alone_is_started_again_and_no_line_is_lost(jobs: Jobs, tmp_path: Path) -> None:
    program = """
is_first = not (here / f"{me}.first").exists()
(here / f"{me}.first").touch()
for number in range(500):
    print("line", number)
    # Ray would show such lines once.
    print("a line like others", file=sys.stderr)
if me == "worker-0" and is_first:
    os.kill(os.getpid(), signal.SIGKILL)
(here / f"{me}.ready").touch()
for other in ("chief-0", "worker-0", "evaluator-0"):
    wait_for(f"{other}.ready")
print(sys.argv[1:])
"""
    options = ("--parameter-server-count", "1", "--evaluator-count", "1", "--worker-machine-type", "small")
    arguments = ["an argument", "it's $HOME\n😀"]
    job = jobs.submit("killed", program, *options, "--", *arguments)
    assert end(job) == ("SUCCEEDED", "")
    once = [*(f"line {number}" for number in range(500)), str(arguments)]
    for role in ("chief-0", "worker-0", "evaluator-0"):
        starts = 2 if role == "worker-0" else 1
        lines = jobs.lines(job, role)
        assert lines.count("a line like others") == 500 * starts
        assert [line for line in lines if line != "a line like others"] == once[:500] * (starts - 1) + once
    events = [(event.kind, event.role, event.status) for event in job.events() if event.role]
    started = [("started", role, None) for role in ("chief-0", "worker-0", "ps-0", "evaluator-0")]
    assert events[:4] == started
    assert events[4:6] == [("exited", "worker-0", -signal.SIGKILL), ("restarted", "worker-0", None)]
    assert {role: status for kind, role, status in events[6:]} == {
        **dict.fromkeys(("chief-0", "worker-0", "evaluator-0"), 0),
        "ps-0": 143,
    }
    assert Path(job.key).exists()
    assert not jobs.left()


@needs_ray
def test_a_role_that_hangs_is_started_again_alone(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit("hung", WORKER_HANGS, "--evaluator-count", "0", "--hang-secs", "4")
    wait_until(lambda: any(event.kind == "restarted" for event in job.events()))
    (tmp_path / "go").touch()
    assert end(job) == ("SUCCEEDED", "")
    hung, *_ = [event for event in job.events() if event.kind == "exited"]
    assert hung.reason.startswith("worker-0 made no step for ")
    assert [event.role for event in job.events() if event.kind == "restarted"] == ["worker-0"]


@needs_ray
def test_a_user_error_of_a_role_ends_the_job_with_its_sentence(jobs: Jobs) -> None:
    program = """
if me == "worker-0":
    wait_for("chief-0.ready")
    print("error: there is no such column.", file=sys.stderr)
    sys.exit(2)
signal.signal(signal.SIGTERM, lambda *_: ((here / "asked").touch(), sys.exit(143)))
(here / "chief-0.ready").touch()
wait_for("never")
"""
    state, reason = end(jobs.submit("mistaken", program))
    assert state == "FAILED"
    assert reason.startswith("Worker 0 ended with status 2, an error of the user that a restart would repeat")
    assert reason.endswith("worker-0 said: error: there is no such column.")
    assert Path("asked").exists()


@needs_ray
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_nothing_is_left_of_a_job_that_is_cancelled_or_whose_launcher_is_killed(jobs: Jobs, is_cancelled: bool) -> None:
    job = jobs.submit("ended", "wait_for('never')", "--evaluator-count", "0")
    wait_until(lambda: (Path("chief-0.pid").exists() and Path("worker-0.pid").exists()) or job.status().state in FINAL)
    launched = job.launched()
    assert len(jobs.left()) == 2 and launched is not None and launched.pid is not None
    if is_cancelled:
        main(["jobs", "cancel", "ended"])
        assert end(job)[0] == "CANCELLED"
    else:
        os.kill(launched.pid, signal.SIGKILL)
        state, reason = end(job)
        assert state == "FAILED"
        assert reason.endswith("was killed; jobs resume ended goes on.")
    wait_until(lambda: not jobs.left() and not actors())


TRAINS = """
import torch_estimator as te
from torch_estimator import feature_column as fc

columns = [fc.numeric_column("x")]


def input_fn(mode):
    rows = te.data.Dataset.from_arrays({"x": [0.5, 1.0, 1.5, 2.0]}, labels=[1.0, 2.0, 3.0, 4.0])
    return (rows.repeat() if mode == te.ModeKeys.TRAIN else rows).batch(2)


class KillsActor(te.Hook):
    def after_step(self, context):
        if me == "worker-0" and not (here / "killed").exists():
            (here / "killed").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            wait_for("never")
        if me == "worker-0":
            (here / "again").touch()
        if me == "chief-0" and context.global_step >= 20:
            wait_for("again")


config = te.RunConfig(
    sys.argv[-1], random_seed=1, save_checkpoints_steps=20, experimental_max_worker_delay_secs=0, compile=False
)
exporter = te.FinalExporter("line", te.serving_input.raw_features(columns))
with te.errors.exit_on_user_error():
    te.train_and_evaluate(
        te.LinearRegressor(columns, config=config),
        te.TrainSpec(input_fn, max_steps=60, hooks=[KillsActor()]),
        te.EvalSpec(input_fn, steps=2, start_delay_secs=0, throttle_secs=0, exporters=exporter),
    )
"""


@needs_ray
@pytest.mark.slow
def test_a_training_whose_worker_loses_its_actor_ends_with_its_export(jobs: Jobs) -> None:
    job = jobs.submit("trained", TRAINS, "--parameter-server-count", "1", "--job-dir", "out")
    assert end(job) == ("SUCCEEDED", ""), jobs.lines(job, "chief-0")
    assert [event.role for event in job.events() if event.kind == "restarted"] == ["worker-0"]
    assert "Ray has ended its actor: The actor is dead because its worker process has died." in jobs.lines(
        job, "worker-0"
    )
    assert checkpoint_paths("out")[-1].endswith("-60")
    assert list(Path("out/export/line").iterdir())


@needs_ray
def test_a_cluster_without_room_is_told_what_is_asked_for(jobs: Jobs) -> None:
    state, reason = end(jobs.submit("large", "", "--evaluator-count", "0", target="large"))
    assert (state, reason) == (
        "FAILED",
        "the Ray cluster has had no room for 2 roles within 0.1 s: they need 200 CPU of 2 and 0 GPU of 0 in all; add "
        "nodes, or ask for less with cpus of target large or with other machine types.",
    )
    options = ("--evaluator-count", "0", "--worker-machine-type", "huge")
    _, reason = end(jobs.submit("huge", "", *options, target="large"))
    assert re.search(r"they need 200 CPU of 2 and 0 GPU of 0 and 921600 GiB memory of \d+\.\d in all; add", reason)


@needs_ray
@pytest.mark.parametrize(
    ("address", "setting", "said"),
    [
        (
            "localhost:9",
            "cpus = 1",
            "no Ray cluster can be used at localhost:9: Connection refused; see whether it runs",
        ),
        (
            "ray://head:10001",
            "cpus = 1",
            "the address of a Ray cluster must be auto or HOST:PORT, but got 'ray://head:",
        ),
        ("", "cpus = -1", "target ray: 'cpus': expected more than 0, but got -1; mend estimator.toml."),
        ("", "cpus = 'two'", "target ray: 'cpus': expected float, but got 'two'; mend estimator.toml."),
        ("", "[machines.gpu]\nmemory = '14 GB'", "type must be such as 14Gi, but got '14 GB'."),
    ],
)
def test_a_misuse_is_refused_before_anything_is_made(
    address: str,
    setting: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", address)
    (tmp_path / "estimator.toml").write_text(f'[targets.ray]\nkind = "ray"\n{setting}\n')
    Jobs(tmp_path).submit("refused", "", "--worker-machine-type", "gpu", status=2)
    assert said in capsys.readouterr().err
    assert not Path("jobs").exists()


@needs_ray
def test_a_role_that_ray_has_placed_where_it_cannot_run_says_why(tmp_path: Path) -> None:
    from torch_estimator.jobs.ray import Role

    def run(folder: Path, task: Task) -> str:
        lines, status = Role().run(str(tmp_path), "job", program, str(folder), {}, task)
        assert status == 2 and isinstance(lines, list)
        return lines[0][0].decode()

    program = Program(module_name="jobs.test_ray", package_path=str(Path(__file__).parent), interpreter="/no/python")
    cluster = {"chief": ("203.0.113.1:10",), "ps": ("203.0.113.1:11",)}
    said = run(tmp_path, Task(type="ps", cluster=cluster))
    assert said.startswith("error: the node of ps-0 is gone, and Ray has placed it at ")
    assert "look for it at 203.0.113.1:11; jobs resume job goes on from the last checkpoint." in said
    said = run(tmp_path / "none", Task(type="chief", cluster=cluster))
    assert f", which has no folder {tmp_path / 'none'}; all nodes of the Ray cluster have to see" in said
    said = run(tmp_path, Task(type="chief", cluster=cluster))
    assert f", which has no folder {tmp_path / 'job' / 'package'}; all nodes" in said
    (tmp_path / "job" / "package").mkdir(parents=True)
    said = run(tmp_path, Task(type="chief", cluster=cluster))
    assert ", which has no Python /no/python; name one that all nodes have as interpreter of the target" in said


@needs_ray
def test_without_a_cluster_a_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Other clusters of this machine are none of this test.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(set))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "none"))
    Jobs(tmp_path).submit("lost", "", status=2)
    assert capsys.readouterr().err.startswith(
        "estimator: error: no Ray cluster can be used at auto: Could not find any"
    )
    assert not Path("jobs").exists()
