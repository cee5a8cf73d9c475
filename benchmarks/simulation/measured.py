"""Costs for the simulation, measured in a cluster whose processes say what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.protocol import ROOT, Side, SideError, free_ports
from benchmarks.simulation.costs import Exchange, Worker

COSTS = Side(name="torch-estimator, timed", script="ours_costs")

_FAREWELL_SECS = 60.0


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
