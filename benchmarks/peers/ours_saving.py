"""A training of ours with a large state that is saved now and then; says how long each save held it up.

A regression over one embedding table with Adagrad: the steps are short, the state is as large as asked for. The ways:
``asynchronous`` is what an Estimator does by itself; ``synchronous`` is the same with a listener, whom the loop waits
for the checkpoint for; ``torch.save`` is a hook that calls it, as loops written by hand do.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import torch_estimator as te
from benchmarks.peers.report import peak_mb

WAYS = ("asynchronous", "synchronous", "torch.save")

_WIDTH = 64
_BATCH = 128
_BATCHES = 64


class Clock(te.Hook):
    """Notes when hooks begin, when the first step begins, and when each step ends, before it is saved."""

    def __init__(self) -> None:
        self.began = 0.0
        self.first_step_began: float | None = None
        self.ends: list[float] = []

    def begin(self, context: te.RunContext) -> None:
        self.began = time.perf_counter()

    def before_step(self, context: te.RunContext) -> None:
        if self.first_step_began is None:
            self.first_step_began = time.perf_counter()

    def after_step(self, context: te.RunContext) -> None:
        self.ends.append(time.perf_counter())


class TorchSave(te.Hook):
    """Saves both state dicts where the loop stands, at the start and every so many steps."""

    def __init__(self, path: str, every_n_steps: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.first_step = self.every_n_steps = every_n_steps
        self._path = path
        self._optimizers = optimizers

    def begin(self, context: te.RunContext) -> None:
        self.after_step(context)

    def after_step(self, context: te.RunContext) -> None:
        assert context.module is not None
        state = {"model": context.module.state_dict(), "optimizers": [one.state_dict() for one in self._optimizers]}
        torch.save(state, f"{self._path}.new")
        os.replace(f"{self._path}.new", self._path)


def train(way: str, folder: str, *, mb: float, every: int, saves: int) -> Clock:
    """Trains with `mb` MB of state in `folder`, with a save at the start and `saves` more, `every` steps apart."""
    rows = max(1, round(mb * 2**20 / (2 * 4 * _WIDTH)))
    optimizers: list[torch.optim.Optimizer] = []

    def adagrad(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(te.optim.Adagrad(parameters, lr=0.01))
        return optimizers[-1]

    column = te.feature_column.embedding_column(
        te.feature_column.categorical_column_with_identity("id", rows), _WIDTH, initializer=nn.init.uniform_
    )
    ours = way != "torch.save"
    estimator = te.DNNRegressor(
        hidden_units=[32],
        feature_columns=[column],
        optimizer=adagrad,
        model_dir=os.path.join(folder, "model"),
        config=te.RunConfig(
            save_checkpoints_steps=every if ours else None,
            save_checkpoints_secs=None,
            keep_checkpoint_max=1,
            save_summary_steps=None,
            log_step_count_steps=None,
            random_seed=1,
        ),
    )
    clock = Clock()
    hooks = [clock] if ours else [clock, TorchSave(os.path.join(folder, "state.pt"), every, optimizers)]
    listeners = [te.CheckpointSaverListener()] if way == "synchronous" else []
    ids = np.random.default_rng(1).integers(rows, size=_BATCH * _BATCHES)
    data = te.data.Dataset.from_arrays({"id": ids}, np.ones(len(ids), np.float32)).repeat().batch(_BATCH)
    estimator.train(lambda: data, hooks=hooks, steps=every * (saves + 1), saving_listeners=listeners)
    return clock


def held_up(ends: Sequence[float], every: int) -> dict[str, Any]:
    """How long saves held up a training whose steps ended at these seconds, with a save after each `every` of them.

    ``stall_s`` is how much longer than its neighbours the step after a save took, for it began only after that.
    ``lost_s`` is how much longer than the second half of the steps up to the next save the first half took: it holds
    the stall and the steps that were slower while the checkpoint was being written. ``slower`` compares the medians of
    these halves. All are medians over the saves.
    """
    steps = np.diff(ends)
    stalls, losses, slower = [], [], []
    for start in range(every - 1, len(ends) - every, every):
        writing, quiet = steps[start : start + every // 2], steps[start + every // 2 : start + every // 2 * 2]
        stalls.append(float(writing[0] - np.median(quiet)))
        losses.append(float(writing.sum() - quiet.sum()))
        slower.append(float(np.median(writing) / np.median(quiet)))
    return {
        "stall_s": statistics.median(stalls),
        "lost_s": statistics.median(losses),
        "slower": statistics.median(slower),
        "stalls_s": stalls,
        "step_ms": float(np.median(steps)) * 1e3,
    }


def main() -> None:
    """Prints a line of JSON: `held_up`, ``first_s`` of the save before the first step, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--mb", type=float, required=True, help="parameters and optimizer state together")
    parser.add_argument("--every", type=int, required=True, help="steps between saves")
    parser.add_argument("--saves", type=int, required=True, help="saves after that of the start")
    parser.add_argument("--dir", required=True, help="where to make a temporary folder")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        clock = train(args.way, folder, mb=args.mb, every=args.every, saves=args.saves)
    assert clock.first_step_began is not None
    first = clock.first_step_began - clock.began
    report = {"peer": args.way, "version": te.__version__, "first_s": first, "peak_mb": peak_mb()}
    print(json.dumps({**report, **held_up(clock.ends, args.every)}))


if __name__ == "__main__":
    main()
