"""Processes with different IP addresses train across a network while its links are cut and mended."""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster_jobs import Process, ended
from tests.line_jobs import checkpoint_steps
from tests.strategies.network import ENTER, Network, why_not

# Trains until the file "enough" exists.
PROGRAM = (
    ENTER
    + """
import logging, pathlib, sys, time
import torch_estimator as te
from tests.line_jobs import points
from torch_estimator import feature_column as fc

model_dir, max_steps, wait = sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(message)s")
servers = '"ps"' in os.environ["TF_CONFIG"]


class Acts(te.Hook):
    def after_step(self, context):
        time.sleep(0.005)
        if pathlib.Path(model_dir, "enough").exists():
            context.request_stop()


config = te.RunConfig(
    save_checkpoints_steps=50,
    compile=False,
    session_creation_timeout_secs=float(wait),
    experimental_max_worker_delay_secs=0,
    train_distribute=(
        te.distribute.ParameterServerStrategy if servers else te.distribute.MultiWorkerMirroredStrategy
    )(silence_secs=1),
)
with te.errors.exit_on_user_error():
    te.train_and_evaluate(
        te.LinearRegressor([fc.numeric_column("x", (2,))], model_dir=model_dir, config=config),
        te.TrainSpec(lambda: points().repeat(), max_steps=int(max_steps), hooks=[Acts()]),
        te.EvalSpec(points, steps=1),
    )
"""
)

Start = Callable[..., dict[str, Process]]


@pytest.fixture
def network() -> Iterator[Network]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Network(["chief", "ps", "worker"]) as made:
        yield made


@pytest.fixture
def start(network: Network) -> Iterator[Start]:
    """Return a function that starts one process of each kind, each with its own address."""
    started: dict[str, Process] = {}

    def begin(kinds: tuple[str, ...], *arguments: object) -> dict[str, Process]:
        cluster = {kind: [f"{network.addresses[kind]}:2222"] for kind in kinds}
        for kind in kinds:
            config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})}
            started[kind] = Process(PROGRAM, [str(one) for one in arguments], {**config, **network.environ(kind)})
        return started

    yield begin
    for process in started.values():
        process.kill()


def test_a_job_across_a_network_goes_on_when_links_are_cut_and_mended(
    tmp_path: Path, network: Network, start: Start
) -> None:
    job = start(("chief", "ps", "worker"), tmp_path, 100_000, 60)
    read_until(job["chief"], "Saving checkpoints for 1")
    network.cut("worker")
    read_until(job["ps"], "worker 0 has sent nothing for 1 s")
    at = max(checkpoint_steps(tmp_path))
    # The chief goes on without the worker.
    read_until(job["chief"], lambda line: saved_step(line) > at)
    network.mend("worker")
    read_until(job["ps"], "worker 0 is back.")

    network.cut("ps")
    at = drain(job["chief"])
    network.mend("ps")
    read_until(job["chief"], lambda line: saved_step(line) > at)
    (tmp_path / "enough").touch()
    for result in ended(list(job.values())):
        assert result.status == 0, result.output


def test_a_process_that_stays_cut_off_names_what_it_waited_for(tmp_path: Path, network: Network, start: Start) -> None:
    job = start(("ps", "chief", "worker"), tmp_path, 100_000, 2)
    read_until(job["chief"], "Saving checkpoints for 5")
    network.cut("worker")
    (cut_off,) = ended([job["worker"]])
    (tmp_path / "enough").touch()
    server, chief = ended([job["ps"], job["chief"]])
    assert (server.status, chief.status, cut_off.status) == (0, 0, 143), server.output + chief.output + cut_off.output
    waited = "error: worker 0 waited 2 s (session_creation_timeout_secs of RunConfig) for ps 0 at "
    assert f"{waited}{network.addresses['ps']}:2222; see whether it runs and can be reached." in cut_off.output


def test_synchronous_processes_find_each_other_across_a_network(tmp_path: Path, start: Start) -> None:
    for result in ended(list(start(("chief", "worker"), tmp_path, 50, 120).values())):
        assert result.status == 0, result.output
    assert checkpoint_steps(tmp_path) == [0, 50]


def test_synchronous_processes_wait_for_a_cut_link_and_lose_no_step(
    tmp_path: Path, network: Network, start: Start
) -> None:
    job = start(("chief", "worker"), tmp_path, 100_000, 60)
    read_until(job["chief"], "Saving checkpoints for 1")
    network.cut("worker")
    # The worker cannot reach the store, so it names the chief, which serves the store.
    for mine, other in (("chief", "worker"), ("worker", "chief")):
        read_until(job[mine], f"{mine} 0 has been waiting for {other} 0 for ")
    at = drain(job["chief"])
    network.mend("worker")
    read_until(job["chief"], lambda line: saved_step(line) > at)
    (tmp_path / "enough").touch()
    for result in ended(list(job.values())):
        assert result.status == 0, result.output
        assert "has lost another process" not in result.output


def saved_step(line: str) -> int:
    """Return the step of the checkpoint that a log line announces; -1 where it announces none."""
    words = line.split()
    return int(words[3]) if words[:3] == ["Saving", "checkpoints", "for"] else -1


def read_until(process: Process, wanted: str | Callable[[str], bool]) -> None:
    lines = []
    while line := process.stdout.readline():
        lines.append(line)
        if wanted in line if isinstance(wanted, str) else wanted(line):
            return
    pytest.fail("The process has ended after this output:\n" + "".join(lines))


def drain(process: Process) -> int:
    """Read until no line comes for a second; return the step of the last checkpoint."""
    step = -1
    while select.select([process.stdout], [], [], 1.0)[0]:
        step = max(step, saved_step(process.stdout.readline()))
    return step
