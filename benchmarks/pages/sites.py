"""The console and its peers as processes that serve pages over one corpus."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.peers import environment
from benchmarks.protocol import SideError, free_ports

_START_SECS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A program that shows a list of runs.

    `command` returns its command line for a port. `page` is the path of the list, in which each element that `rows`
    selects, in CSS, shows a run. `ask` sends the request for the list's content, as the page does.
    """

    name: str
    command: Callable[[int], list[str]]
    page: str
    rows: str
    ask: Callable[[httpx.Client], httpx.Response]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A site that answers.

    Attributes:
        url: Its address, without a slash at the end.
        started_at: When its command was started, in seconds since 1970.
        process: Its process, the leader of a process group of its own.
    """

    url: str
    started_at: float
    process: subprocess.Popen[bytes]

    def memory_mb(self) -> float:
        """The memory that its processes have resident, the shared part counted once for each."""
        return sum(map(_resident_mb, _of_group(self.process.pid)))

    def cpu_secs(self) -> float:
        """The CPU time that its processes have used."""
        return sum(map(_cpu_secs, _of_group(self.process.pid)))


@contextlib.contextmanager
def running(site: Site, log: Path) -> Iterator[Running]:
    """Start a site, whose output goes into a file, wait until its port is open, and end it after the block."""
    (port,) = free_ports(1)
    with open(log, "wb") as output:
        started_at = time.time()
        process = subprocess.Popen(
            site.command(port),
            env={**os.environ, **site.variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(port, process, site.name, log)
        yield Running(f"http://127.0.0.1:{port}", started_at, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def console(jobs: Path, logdir: Path) -> Site:
    """Our console."""
    options = ["--jobs", str(jobs), "--logdir", str(logdir)]
    return Site(
        name="estimator console",
        command=lambda port: [sys.executable, "-m", "torch_estimator.cli", "console", *options, "--port", str(port)],
        page="/",
        rows="#list tbody tr",
        ask=lambda client: client.get("/"),
    )


def tensorboard(logdir: Path) -> Site:
    """TensorBoard with its fast data server, over the same runs."""
    program = str(environment.python_of("tensorboard").with_name("tensorboard"))
    return Site(
        name="TensorBoard",
        command=lambda port: [program, "--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(port)],
        page="/",
        rows="tb-data-table-content-cell",
        ask=lambda client: client.get("/data/runs"),
    )


def mlflow(folder: Path, runs: int) -> Site:
    """MLflow over a database with the same runs, which is written where it is missing."""
    python = environment.python_of("mlflow")
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    database, mark = folder / "mlflow.db", folder / "mlflow.complete"
    if not mark.exists():
        database.unlink(missing_ok=True)
        variables = {**os.environ, **quiet, "PYTHONPATH": str(environment.ROOT)}
        command = [str(python), "-m", "benchmarks.peers.mlflow_runs", str(database), str(runs)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SideError(f"MLflow's runs could not be written:\n{done.stderr[-2000:]}")
        mark.write_text(done.stdout)
    wanted: dict[str, Any] = {"experiment_ids": ["1"], "max_results": 100, "order_by": ["attributes.start_time DESC"]}
    # One process instead of four, which take longer to start on two cores, and three times its memory.
    options = ["server", "--workers", "1", "--backend-store-uri", f"sqlite:///{database}", "--host", "127.0.0.1"]
    return Site(
        name="MLflow",
        command=lambda port: [str(python.with_name("mlflow")), *options, "--port", str(port)],
        page="/#/experiments/1/runs",
        rows=".ag-row",
        ask=lambda client: client.post("/ajax-api/2.0/mlflow/runs/search", json=wanted),
        variables=quiet,
    )


def _wait_for(port: int, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise SideError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _of_group(group: int) -> list[Path]:
    """Return the folders in /proc of the processes of a group."""
    return [one for one in Path("/proc").glob("[0-9]*") if _stat(one)[2:3] == [str(group)]]


def _stat(process: Path) -> list[str]:
    """Return the fields of a process from its state on; none if it has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _resident_mb(process: Path) -> float:
    with contextlib.suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _cpu_secs(process: Path) -> float:
    return sum(map(int, _stat(process)[11:13])) / os.sysconf("SC_CLK_TCK")
