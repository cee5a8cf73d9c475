"""The census example on a cluster with an evaluator or without: steps per second, and the longest step.

Takes what `ours_census` takes, ``--save-every`` always; ends with a line of JSON. Training goes on from its first step
once the evaluator is amid an evaluation, where it stops itself with SIGSTOP, or goes on evaluating.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import torch_estimator as te
from benchmarks.peers import ours_census
from benchmarks.peers.pace_hooks import PaceHook
from benchmarks.peers.report import Pace
from torch_estimator.summary.scalar_reader import read_scalars

WAYS = ("none", "stopped", "evaluating")

_EVAL_BATCH = 512
_WAIT_SECS = 120.0


class Begin(te.Hook):
    """Says in the middle of the first evaluation that the evaluator is there, and perhaps stops it for good."""

    def __init__(self, file: Path, *, stop: bool) -> None:
        self._file = file
        self._stop = stop

    def after_step(self, context: te.RunContext) -> None:
        if not self._file.exists():
            self._file.touch()
            if self._stop:
                os.kill(os.getpid(), signal.SIGSTOP)


class Await(te.Hook):
    """Waits for that after the first step."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def after_step(self, context: te.RunContext) -> None:
        deadline = time.monotonic() + _WAIT_SECS
        while context.global_step == 1 and not self._file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"The evaluator was not amid an evaluation within {_WAIT_SECS:.0f} s.")
            time.sleep(0.01)


class StepClock(te.Hook):
    """Notes when each step ends, before it is saved."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def after_step(self, context: te.RunContext) -> None:
        self.ends[context.global_step] = time.perf_counter()


def longest(ends: Mapping[int, float], every: int) -> dict[str, float | None]:
    """Return the longest step of those before which a checkpoint was saved, and of the others, in milliseconds.

    `ends` has the end of each step in seconds; a checkpoint was saved after every `every` steps.
    """
    took = {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}
    saving = [secs * 1e3 for step, secs in took.items() if (step - 1) % every == 0]
    others = [secs * 1e3 for step, secs in took.items() if (step - 1) % every != 0]
    return {"longest_ms": max(others, default=None), "longest_saving_ms": max(saving, default=None)}


def evaluations(folder: Path) -> int:
    """How many have been finished."""
    return len(read_scalars(folder).get("loss", ((),))[0]) if folder.is_dir() else 0


def main() -> None:
    """Does the part of the process that TF_CONFIG names."""
    arguments = ours_census.arguments()
    arguments.add_argument("--evaluator", choices=WAYS, required=True, help="what it does beside training")
    args = arguments.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    begun = args.cluster / "evaluator has begun"
    last = args.steps * 9 // 10
    pace, clock = Pace(args.warmup), StepClock()
    te.train_and_evaluate(
        ours_census.build_estimator(args, str(args.cluster)),
        te.TrainSpec(
            lambda: ours_census.read_csv(args),
            max_steps=args.steps,
            hooks=[
                *([] if args.evaluator == "none" else [Await(begun)]),
                PaceHook(pace, args.warmup, last),
                clock,
            ],
        ),
        te.EvalSpec(
            lambda: ours_census.test_rows(args, _EVAL_BATCH),
            steps=None,
            hooks=[Begin(begun, stop=args.evaluator == "stopped")],
            start_delay_secs=0,
            throttle_secs=0,
        ),
    )
    measured = {step: end for step, end in clock.ends.items() if args.warmup <= step <= last}
    report = {
        "peer": "torch-estimator",
        "version": te.__version__,
        "steps_per_s": pace.steps_per_s,
        "evaluations": evaluations(args.cluster / "eval"),
        **longest(measured, args.save_every),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
