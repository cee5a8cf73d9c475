"""What a step of the census example costs the process that trains, in a cluster: CPU seconds by what they go into.

Takes what `ours_census` takes; ends with a line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import torch

import torch_estimator as te
from benchmarks.engine.cpu_clock import MAIN, OTHERS, TRANSPORT, StageClock, cpu_by_thread, quantiles
from benchmarks.floor import seconds_of
from benchmarks.peers import ours_census
from benchmarks.peers.report import Pace
from torch_estimator.distributed.group import Group
from torch_estimator.parameter_server.push_pull import PushPullSteps
from torch_estimator.parameter_server.spin_wait import SpinWait
from torch_estimator.strategies.data_parallel_steps import DataParallelSteps

SERVED = {"_look_up": "look up", "_compute": "compute", "_send": "pack", "_collect": "unpack", "_write": "unpack"}
"""Stages of a step with parameter servers, by method of `PushPullSteps`."""

TOGETHER = {"_compute": "compute", "_exchange": "exchange", "_update": "update"}
"""Stages of a synchronous step, by method; within the exchange the collective is one of its own."""

_MANY = 32


class CostHook(te.Hook):
    """Notes what steps cost between the end of the warm-up and the last tenth."""

    def __init__(self, stages: StageClock, warmup: int, last: int) -> None:
        self.report: dict[str, Any] = {}
        self.first_step = warmup
        self.every_n_steps = max(1, last - warmup)
        self._stages = stages
        self._began: tuple[float, int, dict[str, float]] | None = None

    def after_step(self, context: te.RunContext) -> None:
        cpu, now = cpu_by_thread(), time.perf_counter()
        if self._began is None:
            self._began = now, context.global_step, cpu
            self._stages.reset()
            return
        if self.report:
            return
        then, _, before = self._began
        spent = {kind: cpu[kind] - before[kind] for kind in cpu}
        self.report = costs_of(self._stages, spent, now - then)


def costs_of(stages: StageClock, spent: dict[str, float], wall: float) -> dict[str, Any]:
    """Means over the steps of this process, and of the computation its quantiles, too; seconds."""
    computed = stages.cpu["compute"]
    steps = len(computed)
    by_stage = {stage: sum(secs) / steps for stage, secs in stages.cpu.items()}
    return {
        "steps": steps,
        "stages": by_stage,
        "computes": quantiles(computed),
        "around": spent[MAIN] / steps - sum(by_stage.values()),
        "beside": spent[OTHERS] / steps,
        "io": spent[TRANSPORT] / steps,
        "walls": {stage: secs / steps for stage, secs in stages.wall.items()},
        "wall": wall / steps,
    }


def received_by(replica: DataParallelSteps) -> dict[str, float]:
    """Of a synchronous step: the bytes of a message, and the seconds that reading each further one takes."""
    assert replica._sending is not None
    packing, message = replica._sending.packing, replica._sending.message

    # As the update itself has it.
    torch.set_num_threads(1)

    def secs(replicas: int) -> float:
        messages = message.repeat(replicas, 1)
        return seconds_of(lambda: packing.unpack(messages, 1.0))

    with torch.no_grad():
        return {"bytes": message.nbytes, "each": (secs(_MANY) - secs(2)) / (_MANY - 2)}


def main() -> None:
    """Measures the part of the process that TF_CONFIG names."""
    args = ours_census.arguments().parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    stages = StageClock()
    hook = CostHook(stages, args.warmup, args.steps * 9 // 10)
    with (
        stages.timing(PushPullSteps, SERVED),
        stages.timing(SpinWait, {"wait": "wait"}),
        stages.timing(DataParallelSteps, TOGETHER),
        stages.timing(Group, {"all_gather": "gather"}),
    ):
        estimator = ours_census.build_estimator(args, str(args.cluster))
        ours_census.train_in_cluster(args, estimator, Pace(args.warmup), [hook])
    together = stages.owners.get("exchange")
    if together is not None:
        hook.report["message"] = received_by(together)
    if not hook.report:
        sys.exit("There were too few steps to measure any.")
    print(json.dumps({"peer": "torch-estimator", "version": te.__version__, **hook.report}))


if __name__ == "__main__":
    main()
