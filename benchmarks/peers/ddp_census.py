"""The census sample under DistributedDataParallel in a loop written by hand; runs in `.bench/torch`.

Eager, gloo, sparse gradients for the wide table; each process takes its share of the rows, encoded ahead of time, from
memory. `--cluster` is there for what starts all sides; who this process is says `TF_CONFIG`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import wide_deep
from benchmarks.peers.report import Pace, Report


def join() -> tuple[int, int]:
    """Joins the others; gives this process's rank and how many they are."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses = [*config["cluster"]["chief"], *config["cluster"].get("worker", [])]
    rank = config["task"]["index"] + (config["task"]["type"] == "worker")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses))
    return rank, len(addresses)


def main() -> None:
    """Measures what was asked for."""
    arguments = wide_deep.parser(__doc__)
    arguments.add_argument("--cluster", type=Path, help="not needed here")
    args = arguments.parse_args()
    rows = wide_deep.prepare(args)
    rank, size = join()
    own = [tensor[rank::size] for tensor in rows.tensors]
    plain, pace = wide_deep.WideDeep(), Pace(args.warmup)
    model = DistributedDataParallel(plain)
    optimizers = wide_deep.two_optimizers(plain)
    while pace.steps < args.steps:
        for chosen in torch.randperm(len(own[0])).split(args.batch):
            wide_deep.train_on(model, optimizers, tuple(tensor[chosen] for tensor in own))
            pace.step()
            if pace.steps == args.steps:
                break
    pace.end()
    report = Report(peer="DistributedDataParallel", version=torch.__version__)
    report.take(pace, args.batch)
    report.print()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
