"""What encryption costs: `scripts/bench encryption`.

Two real parameter servers, one with a key and one without, each in a process of its own, get gradients and reply with
parameters, as many bytes each way, as in one training step. They take turns, A B A B; nothing is computed.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import zmq

from benchmarks.protocol import show, show_machine, table
from torch_estimator.launch.layout import free_ports
from torch_estimator.parameter_server.client import ServerClient
from torch_estimator.parameter_server.encryption import KEY_FILE, Key, key_from_environment, make_key_file
from torch_estimator.parameter_server.plan import DensePlan, GroupPlan, ServerPlan
from torch_estimator.parameter_server.protocol import PULLS, PUSHES, Kind, Push, pack_exchange
from torch_estimator.parameter_server.server import ParameterServer

KILOBYTES = (8, 80, 800)


def measure(kilobytes: int, rounds: int, exchanges: int) -> dict[str, list[float]]:
    """Return the seconds that an exchange takes, the median of each round, without a key and with one."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        make_key_file(path := str(Path(folder) / "key"))
        keys = {"plain": None, "encrypted": key_from_environment({KEY_FILE: path})}
        clients = {name: stack.enter_context(_served(key, kilobytes)) for name, key in keys.items()}
        seconds: dict[str, list[float]] = {name: [] for name in keys}
        for _ in range(rounds):
            for name, one in clients.items():
                seconds[name].append(statistics.median(_exchange(one, kilobytes) for _ in range(exchanges)))
    return seconds


@contextmanager
def _served(key: Key | None, kilobytes: int) -> Iterator[ServerClient]:
    (port,) = free_ports(1, None)
    address = f"localhost:{port}"
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(address, key), daemon=True)
    process.start()
    with closing(ServerClient("chief 0", 0, [address], wait_secs=60, key=key)) as client:
        dense = np.zeros(kilobytes * 1000 // 4, np.float32)
        group = GroupPlan("GradientDescent", {"lr": 1.0}, ("lr",))
        plan = ServerPlan(dtype="float32", groups=(group,), dense=(DensePlan("all", dense.shape, 0),), tables=())
        about = {
            "about": {},
            "step": 0,
            "last_step": None,
            "names": ["chief 0"],
            "silence_secs": None,
            "max_staleness": None,
            "cursors": {},
        }
        client.start({0: ({"plan": plan.as_json(), **about}, {"dense/0/value": dense})})
        yield client
        client.request_all(Kind.END)
    process.join()


def _serve(address: str, key: Key | None) -> None:
    logging.disable()
    with closing(ParameterServer("ps 0", address, key)) as server:
        server.serve()


def _exchange(client: ServerClient, kilobytes: int) -> float:
    gradients = np.zeros(kilobytes * 1000 // 4, np.float32)
    push = Push(np.array([0.1]), np.ones(1, np.uint8), gradients, [])
    started = time.perf_counter()
    client.request({0: [pack_exchange(client.header(Kind.EXCHANGE, PUSHES | PULLS), push, [])]})
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench encryption", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kb", nargs="+", type=int, default=KILOBYTES, help="kilobytes each way (default: 8 80 800)")
    parser.add_argument("--quick", action="store_true", help="few exchanges, to see that it runs")
    args = parser.parse_args(arguments)
    rows = []
    for kilobytes in args.kb:
        seconds = measure(kilobytes, *((2, 5) if args.quick else (11, 200)))
        plain, encrypted = (statistics.median(seconds[name]) for name in ("plain", "encrypted"))
        pairs = zip(seconds["encrypted"], seconds["plain"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        rows.append([str(kilobytes), plain * 1e6, encrypted * 1e6, (encrypted - plain) * 1e6, ratio])
    header = ["kB each way", "us plain", "us encrypted", "us more", "encrypted over plain"]
    show("answers", "A parameter server's answer, plain and encrypted", table(header, rows))
    show_machine({"libzmq": zmq.zmq_version()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
