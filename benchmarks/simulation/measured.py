"""Costs for the simulation, measured in a cluster whose processes say what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.protocol import ROOT, Measured, Side, SideError, alternate, free_ports, run_cluster
from benchmarks.simulation.costs import Exchange, Worker

COSTS = Side(name="torch-estimator, timed", script="ours_costs")

SLEEP_MS = 10
WAYS: dict[str, tuple[object, ...]] = {
    "unbound": (),
    "pipelined": ("--pipeline",),
    "waiting for input": ("--sleep-ms", SLEEP_MS),
}
"""How workers train with servers, and what `ours_census` is told of it."""

TOGETHER = "synchronous"

_FAREWELL_SECS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure.

    Attributes:
        data: Folder with adult.data.csv.
        batch: Rows in a step.
        rounds: How often.
        servers: How many of them steps are measured with.
        quick: Whether so little is run that the numbers mean nothing.
    """

    data: Path
    batch: int
    rounds: int
    servers: Sequence[int]
    quick: bool


def steps_of(plan: Plan, way: str, workers: int) -> list[object]:
    """The arguments of a run, the warm-up last: as many steps as take some seconds."""
    steps, warmup = (500, 150) if SLEEP_MS in WAYS.get(way, ()) else (6_000, 2_000)
    if plan.quick:
        steps, warmup = 200, 50
    if way != TOGETHER:
        steps, warmup = steps * workers, warmup * workers
    compiled = "no" if plan.quick else "yes"
    given = ["--data", plan.data, "--batch", plan.batch, "--compile", compiled, *WAYS.get(way, ())]
    return [*given, "--steps", steps, "--warmup", warmup]


def measure(plan: Plan, variables: Mapping[str, str]) -> Measured:
    """What a step costs with one and two workers, and how long it takes, in turn."""
    sides: dict[str, Any] = {}
    for way in WAYS:
        for workers in (1, 2):
            given = steps_of(plan, way, workers)
            timed = partial(run_timed, given, servers=1, workers=workers, skipped=given[-1], variables=variables)
            sides[side_of(way, workers)] = timed
    given = steps_of(plan, TOGETHER, 2)
    sides[side_of(TOGETHER, 2)] = partial(run_cluster, COSTS, given, workers=1, servers=0, variables=variables)
    return alternate(sides, plan.rounds, "costs and steps")


def measure_servers(plan: Plan, variables: Mapping[str, str]) -> Measured:
    """What a step costs with more servers than one."""
    given = steps_of(plan, "unbound", 1)
    sides = {
        str(count): partial(run_timed, given, servers=count, skipped=given[-1], variables=variables)
        for count in plan.servers
    }
    return alternate(sides, 1, "costs with more servers")


def side_of(way: str, workers: int) -> str:
    """What `measure` calls that so many train in some way."""
    return f"{way}, {workers}"


def run_timed(
    arguments: Sequence[object],
    *,
    servers: int,
    workers: int = 1,
    skipped: int,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs workers and a process that is all parameter servers; gives what this and the chief say in their last lines.

    Args:
        arguments: Of all workers, as `ours_census` takes them.
        servers: How many.
        workers: How many, the chief among them.
        skipped: Exchanges of each that are not counted.
        variables: Of the environment.

    Raises:
        SideError: One of them failed.
    """
    own = [f"localhost:{port}" for port in free_ports(servers + workers)]
    addresses = own[workers:]
    cluster = {"chief": own[:1], **({"worker": own[1:workers]} if workers > 1 else {}), "ps": addresses}

    def of(kind: str, index: int) -> dict[str, str]:
        return {
            **(variables or {}),
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}),
        }

    command = [sys.executable, "-m", "benchmarks.engine.server_farm", *addresses, "--skipped", str(skipped)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as folder:
        given = [*arguments, "--cluster", folder]
        farm = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        others = [
            subprocess.Popen(
                COSTS.command(given),
                cwd=ROOT,
                env={**environment, **of("worker", index)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for index in range(workers - 1)
        ]
        try:
            found = COSTS.run(given, variables=of("chief", 0))
            said, _ = farm.communicate(timeout=_FAREWELL_SECS)
            return {**found, "farm": json.loads(said)}
        except (subprocess.TimeoutExpired, ValueError) as error:
            raise SideError(f"The parameter servers did not end with a line of JSON: {error}") from None
        finally:
            for process in (farm, *others):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def worker_of(report: Mapping[str, Any], *, pause: float = 0.0) -> Worker:
    """What a report of `run_timed`, or of a synchronous `COSTS`, says of who trains."""
    besides = report["around"] + report["stages"].get("look up", 0.0)
    return Worker(compute=[secs + besides for secs in report["computes"]], beside=report["beside"], pause=pause)


def exchanges_of(report: Mapping[str, Any]) -> list[Exchange]:
    """What a report of `run_timed` says of messages, by server."""
    servers, stages = report["farm"]["servers"], report["stages"]
    return [
        Exchange(
            pack=stages["pack"] / len(servers),
            unpack=stages["unpack"] / len(servers),
            worker_io=report["io"] / len(servers),
            server_io=report["farm"]["io"],
            handle=server["handles"],
            up=server["up"],
            down=server["down"],
        )
        for server in servers
    ]
