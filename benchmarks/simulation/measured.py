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

from benchmarks.census.setup import OURS
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
    """What a step costs, and how many are taken, in turn."""
    sides: dict[str, Any] = {}
    for way in WAYS:
        given = steps_of(plan, way, 1)
        sides[f"{way}, costs"] = partial(run_timed, given, servers=1, skipped=given[-1], variables=variables)
        for workers in (1, 2):
            given = steps_of(plan, way, workers)
            sides[f"{way}, {workers}"] = partial(run_cluster, OURS, given, workers=workers - 1, variables=variables)
    given = steps_of(plan, TOGETHER, 2)
    for name, side in (("costs", COSTS), ("2", OURS)):
        sides[f"{TOGETHER}, {name}"] = partial(run_cluster, side, given, workers=1, servers=0, variables=variables)
    return alternate(sides, plan.rounds, "costs and steps")


def measure_servers(plan: Plan, variables: Mapping[str, str]) -> Measured:
    """What a step costs with more servers than one."""
    given = steps_of(plan, "unbound", 1)
    sides = {
        str(count): partial(run_timed, given, servers=count, skipped=given[-1], variables=variables)
        for count in plan.servers
    }
    return alternate(sides, 1, "costs with more servers")


def run_timed(
    arguments: Sequence[object], *, servers: int, skipped: int, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Runs a chief and a process that is all parameter servers; gives what both say in their last lines.

    Args:
        arguments: Of the chief, as `ours_census` takes them.
        servers: How many.
        skipped: Exchanges of each that are not counted.
        variables: Of the environment.

    Raises:
        SideError: One of them failed.
    """
    own, *addresses = [f"localhost:{port}" for port in free_ports(servers + 1)]
    cluster = {"chief": [own], "ps": addresses}
    config = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    command = [sys.executable, "-m", "benchmarks.engine.server_farm", *addresses, "--skipped", str(skipped)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as folder:
        farm = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            found = COSTS.run([*arguments, "--cluster", folder], variables={**(variables or {}), "TF_CONFIG": config})
            said, _ = farm.communicate(timeout=_FAREWELL_SECS)
            return {**found, "farm": json.loads(said)}
        except (subprocess.TimeoutExpired, ValueError) as error:
            raise SideError(f"The parameter servers did not end with a line of JSON: {error}") from None
        finally:
            if farm.poll() is None:
                os.killpg(farm.pid, signal.SIGKILL)
                farm.wait()


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
            **server,
        )
        for server in servers
    ]
