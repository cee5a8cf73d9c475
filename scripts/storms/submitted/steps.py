"""A program that trains a small model, notes each step of each role, and prints numbered lines meanwhile."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

import torch_estimator as te
from torch_estimator import feature_column as fc

from .numbered import Numbered, me

_draw = np.random.default_rng(0)
_SIZES = _draw.uniform(0.5, 2.0, 1000)
_PRICES = 3 * _SIZES + _draw.normal(scale=0.1, size=1000)
_COLUMNS = [fc.numeric_column("size")]


class Notes(te.Hook):
    """Notes each step with its time in a file of this process, waits for a moment, and ends once a file is there."""

    def __init__(self, folder: Path, pace: float) -> None:
        self._file = os.open(folder / f"{me()}.{os.getpid()}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._enough = folder / "enough"
        self._pace = pace

    def after_step(self, context: te.hooks.RunContext) -> None:
        """Note a step."""
        os.write(self._file, f"{context.global_step} {time.time():.3f}\n".encode())
        time.sleep(self._pace)
        if self._enough.exists():
            context.request_stop()


def _input(mode: str, input_context: te.InputContext) -> te.data.Dataset:
    rows = te.data.Dataset.from_arrays({"size": _SIZES}, labels=_PRICES)
    rows = rows.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if mode == te.ModeKeys.TRAIN:
        rows = rows.shuffle(1000, seed=1).repeat()
    return rows.batch(20)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--job-dir", required=True)
    add("--notes", type=Path, required=True, help="folder for what the storm reads")
    add("--steps", type=int, default=1_000_000)
    add("--every", type=int, default=10, help="steps between checkpoints")
    add("--pace", type=float, default=0.01, help="seconds that each step waits")
    options = parser.parse_args()
    Numbered(options.notes).print_always(0.005)
    config = te.RunConfig(
        options.job_dir,
        random_seed=1,
        save_checkpoints_steps=options.every,
        experimental_max_worker_delay_secs=0,
        compile=False,
    )
    hooks = [Notes(options.notes, options.pace)] if config.task_type in ("chief", "worker") else []
    estimator = te.LinearRegressor(_COLUMNS, optimizer="Adagrad", config=config)
    with te.errors.exit_on_user_error():
        te.train_and_evaluate(
            estimator,
            te.TrainSpec(_input, max_steps=options.steps, hooks=hooks),
            te.EvalSpec(_input, steps=2, start_delay_secs=0, throttle_secs=1),
        )


if __name__ == "__main__":
    main()
