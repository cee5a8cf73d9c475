"""A classifier over one large table, ours: in a cluster, or alone; says how steps went and what they waited for.

The process that saves ends with a line of JSON: steps per second while no checkpoint was being written and while one
was, the longest pause between two steps, and when each step ended.
With ``--after`` it evaluates or exports what is in ``--cluster`` instead, and says how long that took.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch_estimator as te
from benchmarks.peers import large_table
from benchmarks.peers.pace_hooks import COMPILE
from torch_estimator import feature_column as fc
from torch_estimator.files import TEMPORARY_PREFIX

_POLL_SECS = 0.005
_EVAL_STEPS = 20


class StepEnds(te.Hook):
    """Notes when each step ends, in seconds since 1970."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, float]] = []

    def after_step(self, context: te.RunContext) -> None:
        self.ends.append((context.global_step, time.time()))


class SavingClock(threading.Thread):
    """Notes from when to when a checkpoint was being written: that long its directory has a temporary name."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__(daemon=True)
        self.spans: list[tuple[float, float]] = []
        self._model_dir = model_dir
        self.start()

    def run(self) -> None:
        began: float | None = None
        while True:
            is_saving = saves(self._model_dir)
            if is_saving and began is None:
                began = time.time()
            elif not is_saving and began is not None:
                self.spans.append((began, time.time()))
                began = None
            time.sleep(_POLL_SECS)


def saves(model_dir: Path) -> bool:
    """Whether a checkpoint is being written there."""
    try:
        return any(name.startswith(f"{TEMPORARY_PREFIX}model.ckpt") for name in os.listdir(model_dir))
    except OSError:
        return False


def paces(
    ends: Sequence[tuple[int, float]], spans: Sequence[tuple[float, float]], warmup: int
) -> Mapping[str, float | None]:
    """Return steps per second within the spans and outside of them, and the longest pause between two steps.

    `ends` are steps and when they ended, `spans` when checkpoints were written. A step counts as one during which a
    checkpoint was written if it ended within a span.

    >>> paces([(1, 0.0), (2, 0.5), (3, 1.0), (4, 1.25), (5, 2.25)], [(1.0, 2.5)], 1)
    {'steps_per_s': 1.3333333333333333, 'saving_steps_per_s': 1.6, 'longest_pause_s': 1.0}
    """
    counts, secs, longest = {False: 0, True: 0}, {False: 0.0, True: 0.0}, None
    for (before, began), (step, ended) in pairwise(ends):
        # The global step goes back where a server was restored.
        if step <= max(before, warmup):
            continue
        is_saving = any(start < ended <= stop for start, stop in spans)
        counts[is_saving] += step - before
        secs[is_saving] += ended - began
        longest = max(longest or 0.0, ended - began)
    rates = {key: counts[key] / secs[key] if secs[key] else None for key in counts}
    return {"steps_per_s": rates[False], "saving_steps_per_s": rates[True], "longest_pause_s": longest}


def columns(args: argparse.Namespace) -> list[Any]:
    """One embedding, averaged over the ids of an example."""
    ids = fc.categorical_column_with_identity("ids", args.rows, multivalent=True)
    return [fc.embedding_column(ids, args.dim)]


def build_estimator(args: argparse.Namespace) -> te.Estimator:
    """The classifier."""
    config = te.RunConfig(
        str(args.cluster),
        random_seed=1,
        compile=COMPILE[args.compile],
        save_checkpoints_steps=args.save_every,
        keep_checkpoint_max=2,
        experimental_max_worker_delay_secs=0,
    )
    return te.DNNClassifier([large_table.HIDDEN], columns(args), optimizer=te.optim.Adagrad(lr=0.05), config=config)


def main() -> None:
    """Do the part of the process that TF_CONFIG names, or what ``--after`` says."""
    arguments = large_table.parser(__doc__)
    add = arguments.add_argument
    add("--compile", choices=COMPILE, default="yes", help="RunConfig.compile")
    add("--save-every", type=int, default=10**9, help="steps between checkpoints")
    add("--after", choices=("evaluate", "export"), help="train nothing")
    add("--job-dir", type=Path, dest="cluster", help="the same as --cluster, as the launcher gives it")
    args = arguments.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.INFO if args.after is None else logging.WARNING)

    def data() -> te.data.Dataset:
        ids, labels = large_table.batches(args.rows, args.batch)
        return te.data.Dataset.from_arrays({"ids": ids}, labels).batch(args.batch).repeat()

    estimator = build_estimator(args)
    serving_input = te.serving_input.raw_features(columns(args))
    result: dict[str, Any] = {"peer": "torch-estimator", "version": te.__version__}
    if args.after is not None:
        began = time.perf_counter()
        if args.after == "evaluate":
            result["metrics"] = estimator.evaluate(data, steps=_EVAL_STEPS)
        else:
            result["export"] = estimator.export_saved_model(str(args.cluster / "exports"), serving_input)
        print(json.dumps({**result, "secs": time.perf_counter() - began}, default=float))
        return
    hook, clock = StepEnds(), SavingClock(args.cluster)
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(data, max_steps=args.steps, hooks=[hook]),
        te.EvalSpec(data, steps=_EVAL_STEPS, start_delay_secs=0, throttle_secs=0),
    )
    if estimator.config.is_chief:
        measured = paces(hook.ends, clock.spans, args.warmup)
        print(json.dumps({**result, **measured, "ends": hook.ends, "saves": clock.spans}), flush=True)


if __name__ == "__main__":
    main()
