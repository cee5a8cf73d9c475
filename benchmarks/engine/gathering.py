"""What it takes two processes that train in step to give each other a message, by its size."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time

import torch
from torch.distributed import TCPStore

from torch_estimator.distributed.mesh import AllGatherMesh

_SECS = 60.0

CALLS = 300


def gathers(sizes: list[int], calls: int = CALLS) -> dict[int, float]:
    """Seconds of one call by bytes that each of the two sends."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.engine.gathering", *map(str, (port, calls, *sizes)), "--rank"]
    with subprocess.Popen([*command, "1"]) as other:
        try:
            said = subprocess.run([*command, "0"], check=True, stdout=subprocess.PIPE, timeout=300, text=True).stdout
        except BaseException:
            other.kill()
            raise
    return dict(zip(sizes, json.loads(said), strict=True))


def line_through(secs: dict[int, float]) -> tuple[float, float]:
    """Seconds of an empty one, and seconds a byte, by least squares of the relative errors."""
    weighted = torch.tensor([[1 / took, size / took] for size, took in secs.items()], dtype=torch.float64)
    fixed, each = torch.linalg.lstsq(weighted, torch.ones(len(secs), 1, dtype=torch.float64)).solution[:, 0].tolist()
    return fixed, each


def _secs_of(mesh: AllGatherMesh, size: int, calls: int) -> float:
    sent, received = torch.zeros(size // 4), torch.zeros(2, size // 4)
    for _ in range(calls // 4):
        mesh.all_gather(sent, received, _SECS)
    started = time.perf_counter()
    for _ in range(calls):
        mesh.all_gather(sent, received, _SECS)
    return (time.perf_counter() - started) / calls


def main() -> None:
    """Is one of the two; the first prints the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("calls", type=int)
    parser.add_argument("sizes", type=int, nargs="+", help="bytes")
    parser.add_argument("--rank", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    place = ("127.0.0.1", args.port)
    store = TCPStore(*place, world_size=2, is_master=args.rank == 0)
    mesh = AllGatherMesh(store, args.rank, range(2), place, _SECS)
    found = [_secs_of(mesh, size, args.calls) for size in args.sizes]
    mesh.close()
    if args.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
