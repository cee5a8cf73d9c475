"""What our training loop adds to the step itself: `scripts/bench overhead`.

The census example trains with `Estimator.train` from CSV: parsing, shuffling, hashing, batches, hooks, summaries,
logging and checkpoints at their defaults. From time to time a hook stops the clock, takes as many steps with the very
same compiled step, fed with batches from memory and nothing around it, and lets the loop go on: A B A B in one process.
What the training records of itself (`torch_estimator.activity`) takes a thread, whose processor time is counted, too.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

import torch_estimator as te
from benchmarks.census.setup import check_data
from benchmarks.engine.bare_steps import BareSteps, recording
from benchmarks.protocol import ROOT, at_most, conclude, show, show_machine, table
from examples.census.trainer import input, model
from torch_estimator.activity.timeline import read_runs

DATA = ROOT.parent / "shared" / "data" / "census"
MUST_REACH = 1.10
MOST_RECORDING = 0.005
_ROWS_IN_MEMORY = 32_000


class Seconds(NamedTuple):
    """What a step took: on the clock, of the training thread's CPU, of all threads' CPU."""

    wall: float
    thread: float
    process: float

    @classmethod
    def now(cls) -> Seconds:
        """All three clocks."""
        return cls(time.perf_counter(), time.thread_time(), time.process_time())

    def over(self, before: Seconds, steps: int) -> Seconds:
        """For each of the steps taken since then."""
        return Seconds(*((now - then) / steps for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a step, round by round, of the loop and of the bare step; and the recorder's part of the CPU time."""

    loop: list[Seconds]
    bare: list[Seconds]
    recording: float = 0.0

    @property
    def ratio(self) -> float:
        """The median over rounds of what the loop takes over what the step takes."""
        return statistics.median(loop.wall / bare.wall for loop, bare in zip(self.loop, self.bare, strict=True))

    def microseconds(self, side: str, clock: str) -> float:
        """The median over rounds."""
        return statistics.median(getattr(one, clock) for one in getattr(self, side)) * 1e6


class Alternation(te.Hook):
    """Takes bare steps after so many of the loop, and times both."""

    def __init__(self, bare: BareSteps, *, warmup: int, steps: int) -> None:
        self.times = Times([], [])
        self.first_step = warmup
        self.every_n_steps = steps
        self._bare = bare
        self._steps = steps
        self._started: Seconds | None = None

    def after_step(self, context: te.RunContext) -> None:
        ended = Seconds.now()
        self._bare(self._steps)
        if self._started is not None:
            self.times.loop.append(ended.over(self._started, self._steps))
            self.times.bare.append(Seconds.now().over(ended, self._steps))
        self._started = Seconds.now()


def measure(file: Path, *, batch: int, rounds: int, steps: int, warmup: int, compiled: bool = True) -> Times:
    """Trains for `warmup` steps and `rounds` times `steps`, with as many bare steps in between."""
    bare = BareSteps(min(_ROWS_IN_MEMORY // batch, warmup))
    hook = Alternation(bare, warmup=warmup, steps=steps)
    with tempfile.TemporaryDirectory() as model_dir, recording(bare, compiled=compiled):
        config = te.RunConfig(model_dir=model_dir, compile=compiled, random_seed=1)
        estimator = model.build_estimator(config, embedding_size=8, units=model.hidden_units(100, 4, 0.7))
        estimator.train(
            lambda: input.read_csv([str(file)], batch_size=batch, num_epochs=None, shuffle_seed=1),
            hooks=[hook],
            max_steps=warmup + rounds * steps,
        )
        spent = read_runs(model_dir)[-1].spent[-1]
    return replace(hook.times, recording=spent.recording / spent.cpu)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv")
    add("--batches", type=int, nargs="+", default=[40, 512], help="rows in a step")
    add("--rounds", type=int, default=15, help="how often the loop and the step alternate")
    add("--compile", choices=("yes", "no"), default="yes", help="RunConfig's compile, True or False")
    add("--threads", type=int, help="by default PyTorch's own choice")
    add("--quick", action="store_true", help="two rounds of few steps, to see that it runs")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)
    return args


def measured(args: argparse.Namespace) -> dict[int, Times]:
    """The times by rows in a step."""
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    if args.threads:
        torch.set_num_threads(args.threads)
    found = {}
    for batch in args.batches:
        steps, warmup = (20, 20) if args.quick else (max(400, 120_000 // batch), max(400, 120_000 // batch))
        rounds = 2 if args.quick else args.rounds
        file = args.data / "adult.data.csv"
        found[batch] = measure(
            file, batch=batch, rounds=rounds, steps=steps, warmup=warmup, compiled=args.compile == "yes"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and the verdicts; gives the exit status."""
    args = parse(arguments)
    found = measured(args)
    rows = [
        [
            str(batch),
            times.ratio,
            *(times.microseconds("loop", clock) for clock in Seconds._fields),
            *(times.microseconds("bare", clock) for clock in ("wall", "thread")),
        ]
        for batch, times in found.items()
    ]
    header = [
        "rows in a step",
        "ratio",
        "loop us",
        "its thread's CPU",
        "all threads' CPU",
        "bare step us",
        "its CPU",
    ]
    show("loop", f"The loop over the bare step, census model, compile={args.compile}", table(header, rows))
    show_machine()
    verdicts = [
        at_most(f"our step at {batch} over the bare compiled step", MUST_REACH, times.ratio)
        for batch, times in found.items()
    ] + [
        at_most(f"recording at {batch}, of the training's CPU time", MOST_RECORDING, times.recording, digits=4)
        for batch, times in found.items()
    ]
    return conclude(verdicts, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
