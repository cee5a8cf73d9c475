"""What the peers with a large table share: their arguments, and batches that look up different rows.

Standard library and numpy only, since it is imported in every peer's environment.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

LOOKUPS = 20
"""Ids of an example, whose rows are averaged."""

HIDDEN = 32

_BATCHES = 40


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every peer takes; a script may add its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rows", type=int, required=True, help="rows of the table")
    add("--dim", type=int, required=True, help="numbers in a row")
    add("--batch", type=int, default=512, help="examples in a step, each with 20 ids")
    add("--steps", type=int, default=1000, help="training steps, the warm-up included")
    add("--warmup", type=int, default=100, help="steps before the steady state is measured")
    add("--cluster", type=Path, help="be the process that TF_CONFIG names; where the job has its directory")
    return parser


def batches(rows: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return examples for some batches: ids int64 ``[n, 20]``, labels float32 ``[n]``.

    No batch has an id twice, so that each looks up equally many different rows, however many the table has. A table
    with fewer rows than a batch has lookups, for a small twin, has ids drawn with replacement.
    """
    draw = np.random.default_rng(0)
    size = batch * LOOKUPS
    ids = np.concatenate([draw.choice(rows, size, replace=size > rows) for _ in range(_BATCHES)]).reshape(-1, LOOKUPS)
    return ids, (ids[:, 0] % 2).astype(np.float32)
