"""A process of a cluster whose steps wait instead of computing, so that two cores have room for any number of them.

The chief ends the training after `--secs`. Its last line has the batches per second of all processes, and what
`estimator jobs advise` says of the training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import torch_estimator as te
from torch_estimator import activity
from torch_estimator.activity.timeline import read_runs
from torch_estimator.jobs.advice import advise

# Parameters of one size, so that they are divided evenly among 1, 2, 3 or 4 servers.
_PARAMETERS, _NUMBERS = 12, 8
_SAVE_EVERY_STEPS = 20


class Sums(nn.Module):
    """A model of many small parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(_NUMBERS) for _ in range(_PARAMETERS))

    def forward(self, features: Any) -> torch.Tensor:
        x: torch.Tensor = features["x"]
        return x * torch.stack([part.sum() for part in self.parts]).sum()


def model_fn(mode: te.ModeKeys) -> te.EstimatorSpec:
    return te.EstimatorSpec(
        mode=mode, module=Sums(), head=te.RegressionHead(), optimizer=te.optim.GradientDescent(lr=1e-4)
    )


def read(args: argparse.Namespace) -> te.data.Dataset:
    """Batches that take their time, in the training's own thread or in one that reads ahead."""

    def batches() -> Iterator[Any]:
        batch = {"x": np.ones((4, 1), np.float32)}, np.ones((4, 1), np.float32)
        while True:
            time.sleep(args.input_ms / 1000)
            yield batch

    return te.data.Dataset.from_iterable(batches).prefetch(2 if args.ahead else 0)


class WaitHook(te.Hook):
    """Waits in each step. On the chief, ends the training, and measures the pace of the second half of the time.

    The time begins when all `workers` have taken a step, for which each leaves a file in `folder`.
    """

    def __init__(self, secs: float, ends_after_secs: float, folder: Path, rank: int, workers: int) -> None:
        self._secs = secs
        self._ends_after_secs = ends_after_secs
        self._folder = folder
        self._rank = rank
        self._workers = workers
        self._began: float | None = None
        self._half: tuple[float, int] | None = None
        self.steps_per_s = 0.0

    def before_step(self, context: te.RunContext) -> None:
        time.sleep(self._secs)

    def after_step(self, context: te.RunContext) -> None:
        now = time.perf_counter()
        if self._began is None:
            (self._folder / f"stepped-{self._rank}").touch()
            if len(list(self._folder.glob("stepped-*"))) < self._workers:
                return
            self._began = now
        if self._half is None and now > self._began + self._ends_after_secs / 2:
            self._half = now, context.global_step
        if self._half is not None and now > self._began + self._ends_after_secs and not context.stop_requested:
            self.steps_per_s = (context.global_step - self._half[1]) / (now - self._half[0])
            context.request_stop()


def wait_in_parts(args: argparse.Namespace) -> None:
    """Have servers, messages and checkpoints wait, too, where that many milliseconds were asked for."""
    from torch_estimator.checkpoint.writer import CheckpointWriter
    from torch_estimator.distributed.mesh import AllGatherMesh
    from torch_estimator.parameter_server.client import ServerClient
    from torch_estimator.parameter_server.run import Run

    def then_wait(cls: type, name: str, secs: Callable[[Any], float]) -> None:
        method = getattr(cls, name)

        def wrapped(self: Any, *arguments: Any, **others: Any) -> Any:
            result = method(self, *arguments, **others)
            time.sleep(secs(self))
            return result

        setattr(cls, name, wrapped)

    # A server works as long as it holds a part of the numbers, and each process receives a message of each other one.
    share = args.service_ms / 1000 / (_PARAMETERS * _NUMBERS)
    then_wait(Run, "exchange", lambda run: share * sum(one.size for one in run.plan.dense))
    then_wait(AllGatherMesh, "all_gather", lambda mesh: args.network_ms / 1000 * len(mesh._peers))
    then_wait(CheckpointWriter, "save", lambda writer: args.saving_ms / 1000 * _SAVE_EVERY_STEPS)
    wait_for_reply = ServerClient.collect

    def collect(self: ServerClient, requests: Any) -> Any:
        replies = wait_for_reply(self, requests)
        with activity.SERVERS:
            time.sleep(args.network_ms / 1000 if requests else 0.0)
        return replies

    ServerClient.collect = collect  # type: ignore[method-assign]


def main() -> None:
    """Be the process that TF_CONFIG names."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--cluster", type=Path, required=True, help="model directory")
    add("--secs", type=float, default=25.0, help="how long to train")
    for name in ("computing", "slowest", "input", "service", "network", "saving"):
        add(f"--{name}-ms", type=float, default=0.0)
    add("--ahead", action="store_true", help="read ahead in a thread")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    wait_in_parts(args)
    config = te.RunConfig(
        str(args.cluster),
        compile=False,
        save_checkpoints_steps=_SAVE_EVERY_STEPS if args.saving_ms else 1_000_000,
        experimental_max_worker_delay_secs=0,
    )
    task = config.task
    is_slowest = task.num_workers > 1 and task.rank == task.num_workers - 1
    wait_ms = args.computing_ms + (args.slowest_ms if is_slowest else 0.0)
    hook = WaitHook(wait_ms / 1000, args.secs if task.is_chief else 1e6, args.cluster, task.rank, task.num_workers)
    estimator = te.Estimator(model_fn, config=config)
    rows = te.data.Dataset.from_arrays({"x": np.ones((4, 1), np.float32)}, np.ones((4, 1), np.float32)).batch(4)
    te.train_and_evaluate(
        estimator, te.TrainSpec(lambda: read(args), max_steps=1_000_000, hooks=[hook]), te.EvalSpec(lambda: rows)
    )
    if task.is_chief:
        steps_per_s = hook.steps_per_s * (1 if task.num_ps else task.num_workers)
        said = dataclasses.asdict(advise(read_runs(args.cluster)))
        print(json.dumps({"peer": "torch-estimator", "version": te.__version__, "steps_per_s": steps_per_s, **said}))


if __name__ == "__main__":
    main()
