"""Serves a model under load for ten minutes, and checks that no request is lost: `scripts/storm soak`.

`estimator serve` runs with two processes. 64 clients ask it, a third of the requests over gRPC, with the
messages of Open Inference and TensorFlow Serving in turns. One request in a hundred is malformed. Every 20 s a new
version of the model is put into its directory, and every minute one of the processes is killed. No valid request may
fail but those in the hands of the killed process, every malformed one has to get a status from 400 to 499 or one of
gRPC's codes for that, the metrics of all processes have to add up to what the clients have counted, and the memory of
the processes must not grow by more than 5 % after the first minute.

Without --export, a small census model is trained first. With fewer than 300 seconds everything happens more often, and
the memory is not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.protocol import at_most, conclude, free_ports, table
from scripts.storms.common import ROOT, conclude_storm, emptied, existing
from scripts.storms.grpc_load import GrpcLoad
from scripts.storms.load import Load, Record
from scripts.storms.server import ServerProcess, is_alive, kill_node, resident_mb

_MODEL = "soak"
_WORKERS = 2
_CONNECTIONS = 64
_OVER_GRPC = _CONNECTIONS // 3
_MALFORMED = 0.01
_SWAPS_PER_KILL = 3
_KILL_SECS = 60.0
_LEAST_KILLS = 3
_JUDGED_SECS = 300.0
_MOST_GROWTH = 0.05

# Versions that stay in the directory. A process that is slow to notice the newest one may still load the one before.
_KEPT_VERSIONS = 3


@dataclass(slots=True)
class Period:
    """What happened between two kills; `ended` is in seconds since the start.

    `answered` counts valid requests answered, `refused` malformed ones refused, and `lost` requests lost in a killed
    process. `latencies` are the seconds that each valid request took. Memory is resident, in MB, once a second: that of
    the parent, and that of the nodes together while all of them were there.
    """

    ended: float = 0.0
    answered: int = 0
    refused: int = 0
    lost: int = 0
    failures: int = 0
    latencies: list[float] = field(default_factory=list)
    parent_mb: list[float] = field(default_factory=list)
    nodes_mb: list[float] = field(default_factory=list)


class Soak:
    """A server under load for `secs`, whose versions and processes are replaced.

    `instances` are predicted with the export in `export`. The directory `versions` is made anew. `sent_again` is as in
    `scripts.storms.load`, `over_grpc` counts the valid requests that were answered over gRPC, and `problems` has a
    sentence for everything that did not hold.
    """

    def __init__(self, export: Path, instances: Sequence[dict[str, Any]], versions: Path, secs: float) -> None:
        self._export = export
        self._instances = instances
        self._versions = versions
        self._secs = secs
        self._kill_secs = min(_KILL_SECS, secs / (_LEAST_KILLS + 1))
        self._version = 0
        self._period = Period()
        self.kills = 0
        self.swaps = 0
        self.sent_again = 0
        self.over_grpc = 0
        self.periods: list[Period] = []
        self.problems: list[str] = []

    async def run(self) -> None:
        """Run it from the start of the server to its end."""
        self._put_version()
        (rpc,) = free_ports(1)
        options = ["--workers", str(_WORKERS), "--grpc-port", str(rpc), "--tf-serving-grpc-port", str(rpc)]
        with ServerProcess("--model", f"{_MODEL}={self._versions}", *options) as server:
            record = Record()
            over_grpc = GrpcLoad(
                rpc,
                _MODEL,
                self._export,
                self._instances,
                connections=_OVER_GRPC,
                record=record,
                malformed=_MALFORMED,
            )
            load = Load(
                server.port,
                _MODEL,
                self._instances,
                connections=_CONNECTIONS - _OVER_GRPC,
                record=record,
                malformed=_MALFORMED,
                # A client of gRPC takes several times as long as one of REST.
                is_ahead=lambda: record.answered > 3 * over_grpc.answered + _CONNECTIONS,
            )
            began = time.monotonic()
            works = [self._swap(), self._kill(server, load, over_grpc), self._measure(server)]
            tasks = [asyncio.create_task(work) for work in works]
            done, _ = await asyncio.wait(tasks, timeout=self._secs, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                task.cancel()
            await asyncio.gather(load.stop(), over_grpc.stop())
            self.over_grpc = over_grpc.answered
            for task in done:
                # None of them ends by itself, except with an exception.
                task.result()
            self._end_period(load, time.monotonic() - began)
            await asyncio.to_thread(self._check_end, server, load)

    def _put_version(self) -> None:
        """Put the export into the directory under the next number. It appears there as a whole."""
        self._version += 1
        hidden = self._versions / f".{self._version}"
        shutil.copytree(self._export, hidden)
        hidden.rename(self._versions / str(self._version))
        old = self._versions / str(self._version - _KEPT_VERSIONS)
        shutil.rmtree(old, ignore_errors=True)

    async def _swap(self) -> None:
        for number in itertools.count(1):
            # Half a step away from the kills.
            await asyncio.sleep(self._kill_secs / _SWAPS_PER_KILL * (0.5 if number == 1 else 1.0))
            await asyncio.to_thread(self._put_version)
            self.swaps += 1

    async def _kill(self, server: ServerProcess, load: Load, over_grpc: GrpcLoad) -> None:
        while True:
            await asyncio.sleep(self._kill_secs)
            nodes = server.nodes()
            if len(nodes) != _WORKERS:
                self.problems.append(f"{len(nodes)} of {_WORKERS} processes were there when one was to be killed.")
                continue
            # Not in a thread: no client may open a connection between the look at those of the process and its end.
            kill_node(nodes[0], server.port, load.expect_loss)
            over_grpc.expect_loss()
            self.kills += 1
            self._end_period(load, self.kills * self._kill_secs)

    async def _measure(self, server: ServerProcess) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._kill_secs / 10))
            nodes = [resident_mb(node) for node in server.nodes()]
            self._period.parent_mb.append(resident_mb(server.process.pid))
            if len(nodes) == _WORKERS:
                self._period.nodes_mb.append(sum(nodes))

    def _end_period(self, load: Load, now: float) -> None:
        record, period = load.record, self._period
        period.ended = now
        period.latencies, record.latencies = record.latencies, []
        for name in ("answered", "refused", "lost"):
            setattr(period, name, getattr(record, name) - sum(getattr(one, name) for one in self.periods))
        period.failures = len(record.failures) - sum(one.failures for one in self.periods)
        self.periods.append(period)
        self._period = Period()
        print(
            f"{now:5.0f} s  {record.answered:9} answered, {len(record.failures)} failed, {self.kills} kills", flush=True
        )

    def _check_end(self, server: ServerProcess, load: Load) -> None:
        """Check what the clients and the server have counted, and that the server ends as it should."""
        record = load.record
        self.sent_again = record.sent_again
        self.problems += record.failures[:10]
        if len(record.failures) > 10:
            self.problems.append(f"{len(record.failures) - 10} more requests failed.")
        if not record.refused:
            self.problems.append("no malformed request was refused.")
        server.wait_for_line(r"Node \d+ \(process \d+\) is ready", _WORKERS + self.kills)
        # The last one may have been put in place a moment ago.
        server.wait_for_line(f"answers with version {self._version} by default", _WORKERS)
        counted = self._counted(server.port)
        known = record.answered + record.refused - record.uncounted
        # A process may be killed after it has sent an answer and before it has counted it, or the other way round.
        unsure = record.lost + self.kills * _CONNECTIONS
        if abs(counted - known) > unsure:
            self.problems.append(
                f"the metrics count {counted} requests, but the clients {known}, give or take {unsure}."
            )
        nodes = server.nodes()
        status = server.end()
        if status != 0:
            self.problems.append(f"the server has ended with status {status} on SIGTERM:\n{server.log}")
        if any(is_alive(node) for node in nodes):
            self.problems.append("a process has outlived the server.")

    def _counted(self, port: int) -> int:
        """Return the number of requests to models that the server has counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        return sum(round(float(line.split()[-1])) for line in lines if line.startswith("te_requests_total{"))

    def memory_growth(self) -> float | None:
        """Return the largest growth of the memory over that of the second period, as a part of it; None if unknown.

        A process that was just started is smaller, so medians of whole periods are compared: in each, one process is
        new, and the other one is a period old.
        """
        medians = [statistics.median(period.nodes_mb) for period in self.periods[1:] if period.nodes_mb]
        return max(medians[1:]) / medians[0] - 1 if len(medians) > 1 else None

    def table(self) -> str:
        """Return the periods as a table."""
        head = [
            "until s",
            "answered",
            "a second",
            "p50 ms",
            "p99 ms",
            "refused",
            "lost",
            "failed",
            "nodes MB",
            "parent MB",
        ]
        rows = []
        began = 0.0
        for period in self.periods:
            latencies = sorted(period.latencies) or [0.0]
            rows.append(
                [
                    f"{period.ended:.0f}",
                    f"{period.answered}",
                    f"{period.answered / max(1e-9, period.ended - began):.0f}",
                    f"{latencies[len(latencies) // 2] * 1000:.1f}",
                    f"{latencies[len(latencies) * 99 // 100] * 1000:.1f}",
                    f"{period.refused}",
                    f"{period.lost}",
                    f"{period.failures}",
                    f"{statistics.median(period.nodes_mb or [0.0]):.1f}",
                    f"{statistics.median(period.parent_mb or [0.0]):.1f}",
                ]
            )
            began = period.ended
        return table(head, rows)


def train(work: Path) -> Path:
    """Train a small census model; return the directory of its export."""
    print("Training a census model to serve.", flush=True)
    command = [sys.executable, "-m", "examples.census.trainer.task", "--job-dir", str(work / "job")]
    subprocess.run(
        [*command, "--train-steps", "300", "--eval-steps", "10", "--verbosity", "ERROR"], check=True, cwd=ROOT
    )
    (export,) = (work / "job" / "export" / "census").iterdir()
    return export


def soak(args: argparse.Namespace) -> Iterator[str]:
    """Run it; yield a sentence for everything that does not hold."""
    work = emptied(args.work_dir)
    (work / "versions").mkdir()
    export: Path = args.export or train(work)
    instances = [json.loads(line) for line in args.instances.read_text().splitlines() if line]
    one = Soak(export, instances, work / "versions", args.secs)
    print(f"{_CONNECTIONS} clients of {_WORKERS} processes for {args.secs:g} s.", flush=True)
    asyncio.run(one.run())
    print(f"\n{one.table()}\n\n{one.kills} processes were killed, and {one.swaps} versions were put in place.")
    answered = sum(period.answered for period in one.periods)
    print(f"{one.over_grpc} of {answered} answers came over gRPC.")
    print(f"{one.sent_again} requests were sent again, because a connection was closed before anything came back.\n")
    growth = at_most("growth of the memory after the first minute", _MOST_GROWTH, one.memory_growth(), digits=3)
    if conclude([growth], quick=args.secs < _JUDGED_SECS):
        yield "the memory of the processes has grown, as said above."
    yield from one.problems


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="scripts/storm soak", description=__doc__.partition("\n\n")[2])
    add = parser.add_argument
    add("--secs", type=float, default=600.0, help="how long (default: 600)")
    add("--export", type=existing, metavar="DIR", help="an export to serve instead of a model trained for this")
    instances = str(ROOT / "examples/census/test.json")
    add("--instances", type=existing, default=instances, help="JSON lines, one instance each")
    add("--work-dir", type=Path, default=ROOT / "runs" / "soak", help="for the model's versions; emptied first")
    args = parser.parse_args(arguments)
    if not args.secs > 0:
        parser.error(f"--secs must be positive, but got {args.secs}")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 0 if all holds, else 1."""
    return conclude_storm(partial(soak, parse(arguments)), "All holds: no request was lost.")


if __name__ == "__main__":
    sys.exit(main())
