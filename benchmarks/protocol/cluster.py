"""A side as a cluster: the chief and others beside it, all on this machine, each with its TF_CONFIG."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.protocol.side import Side
from torch_estimator.errors import RESTART_ME


def run_cluster(
    side: Side,
    arguments: Sequence[object],
    *,
    workers: int = 0,
    servers: int = 1,
    evaluator: bool = False,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a side's script, which takes ``--cluster``, once for each task; return what the chief's last line says.

    The arguments are those of every process, and `variables` their environment. `workers` does not count the chief.
    """
    tasks = [("chief", 0), *(("worker", n) for n in range(workers)), *(("ps", n) for n in range(servers))]
    cluster: dict[str, list[str]] = {}
    for (kind, _), port in zip(tasks, free_ports(len(tasks)), strict=True):
        cluster.setdefault(kind, []).append(f"localhost:{port}")
    beside = [*tasks[1:], *([("evaluator", 0)] if evaluator else [])]

    def of(kind: str, index: int) -> dict[str, str]:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        return {**(variables or {}), "TF_CONFIG": json.dumps(config)}

    # So that the processes below are ended where this one is.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(RESTART_ME))
    with TemporaryDirectory() as folder:
        given = [*arguments, "--cluster", folder]
        others = [
            subprocess.Popen(
                side.command(given),
                cwd=side.root,
                env={**os.environ, "PYTHONPATH": str(side.root), **of(*task)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for task in beside
        ]
        try:
            return side.run(given, variables=of("chief", 0))
        finally:
            for process in others:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_ports(count: int) -> list[int]:
    """Different ones on which nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [int(one.getsockname()[1]) for one in sockets]
