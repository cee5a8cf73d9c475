"""The program that `scripts/storm faults --large` kills: a table on parameter servers whose rows tell their history.

Each batch looks up rows once, and each of their numbers gets the gradient 1. So all numbers of a row are equal, and
both they and Adagrad's sums are functions of how often the row was updated: `replayed` computes them. A row whose value
and state are of two moments, or a torn update, shows at once.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

import torch_estimator as te
from scripts.storms.job import PACE, STEP
from torch_estimator import errors
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import checkpoint_paths, load_checkpoint
from torch_estimator.parameter_server.rules import adagrad

DIM = 16
NAME = "history"

_LOOKUPS = 32
_BATCH = 64
_BATCHES = 200
_RATE = 0.01
_FIRST_SUM = 0.1
_CHECKED_ROWS = 1 << 20


class Sums(nn.Module):
    """The sum of all numbers of the rows that an example looks up."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = fc.Table([fc.Piece(name=NAME, rows=rows)], dim=DIM)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the sums, ``[N]``."""
        total: torch.Tensor = self.table(features["ids"]).sum((1, 2)) + self.bias
        return total


class Tells(te.Hook):
    """Prints each step, and waits as long as the file `pace` says."""

    def __init__(self, pace: Path) -> None:
        self._pace = pace

    def after_step(self, context: te.RunContext) -> None:
        """Print a line."""
        sys.stdout.write(f"{STEP} {context.global_step}\n")
        sys.stdout.flush()
        time.sleep(float(self._pace.read_text()))


def data(rows: int) -> te.data.Dataset:
    """Return batches of different rows of the table."""
    count = _BATCHES * _BATCH * _LOOKUPS
    # An odd factor visits each row of a table of 2^n rows once before it comes back.
    ids = (np.arange(count, dtype=np.int64) * 7_368_787 % rows).reshape(-1, _LOOKUPS)
    return te.data.Dataset.from_arrays({"ids": ids}, np.zeros(len(ids), np.float32)).batch(_BATCH)


def replayed(updates: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the value and Adagrad's sum that a number has after 0, 1, … updates, float32 ``[updates + 1]`` each."""
    value, total, one = np.zeros(1, np.float32), np.full(1, _FIRST_SUM, np.float32), np.ones(1, np.float32)
    found = [(0.0, float(total[0]))]
    for _ in range(updates):
        adagrad(value, one, {"accumulator": total}, {"lr": _RATE})
        found.append((float(value[0]), float(total[0])))
    values, totals = zip(*found, strict=True)
    return np.array(values, np.float32), np.array(totals, np.float32)


def problems_of_rows(job_dir: Path) -> Iterator[str]:
    """Yield a sentence for each checkpoint with rows that no number of updates gives."""
    for path in checkpoint_paths(str(job_dir)):
        checkpoint = load_checkpoint(path)
        if not checkpoint.row_files:
            yield f"{path} was not written by servers, so the table was not on them alone."
        slot = next(name for name in checkpoint.slots if name.startswith(f"{NAME}/"))
        values, totals = checkpoint.variables[NAME].numpy(), checkpoint.slots[slot].numpy()
        updates, wrong = 0, 0
        for start in range(0, len(values), _CHECKED_ROWS):
            value, total = values[start : start + _CHECKED_ROWS], totals[start : start + _CHECKED_ROWS]
            counts = np.rint(total[:, 0] - _FIRST_SUM).astype(np.int64)
            expected = replayed(max(0, int(counts.max())))
            is_right = (counts >= 0) & (value == expected[0][counts][:, None]).all(1)
            is_right &= (total == expected[1][counts][:, None]).all(1)
            wrong += int((~is_right).sum())
            updates += int(counts.sum())
        print(f"{path}: {len(values)} rows, {updates} updates of rows in {checkpoint.step} steps, {wrong} rows wrong")
        if wrong:
            yield f"{wrong} rows of {path} are not what any number of pushes makes of them."
        if not updates and checkpoint.step:
            yield f"{path} has no row that was updated."


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    for name, kind in (("job-dir", Path), ("rows", int), ("steps", int), ("every", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel("INFO")
    config = te.RunConfig(
        model_dir=str(args.job_dir),
        random_seed=1,
        save_checkpoints_steps=args.every,
        keep_checkpoint_max=2,
        experimental_max_worker_delay_secs=0,
        compile=False,
    )
    hooks = [Tells(args.job_dir / PACE)] if config.task_type in ("chief", "worker") else []
    with errors.exit_on_user_error():
        estimator = te.Estimator(model_fn, config=config, params={"rows": args.rows})
        te.train_and_evaluate(
            estimator,
            te.TrainSpec(lambda: data(args.rows).repeat(), max_steps=args.steps, hooks=hooks),
            te.EvalSpec(lambda: data(args.rows), steps=5, name="storm", start_delay_secs=0, throttle_secs=1),
        )


def model_fn(mode: str, params: Mapping[str, int]) -> te.EstimatorSpec:
    """Return the model; a table that a program makes before would be in the memory of every process."""
    return te.EstimatorSpec(
        mode=mode,
        module=Sums(params["rows"]),
        loss=_total,
        optimizer=te.optim.Adagrad(lr=_RATE, initial_accumulator_value=_FIRST_SUM),
    )


def _total(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs - labels).sum()


if __name__ == "__main__":
    main()
