"""Training the network of `examples/mnist`, ours and other libraries' side by side: `scripts/bench mnist_train`.

Every side is a process of its own on the same digits, the same convolutional network, momentum and one-cycle schedule,
the same batch and its own choice of threads (`benchmarks/peers/*_mnist.py`). Ours converts bytes batch by batch; the
peers get all images converted ahead of time and in memory, which flatters them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.census.setup import empty_cache
from benchmarks.peers.mnist_digits import IMAGES, LABELS
from benchmarks.protocol import ROOT, Measured, Side, Table, alternate, conclude, ready, show, show_machine, table

DATA = ROOT.parent / "shared" / "data" / "mnist"
OURS = {
    "ours": Side(name="torch-estimator", script="ours_mnist", arguments=("--compile", "yes")),
    "ours-eager": Side(name="torch-estimator, compile=False", script="ours_mnist", arguments=("--compile", "no")),
}
PEERS = {
    "eager": Side(name="eager loop, DataLoader", script="eager_mnist", environment="torch"),
    "lightning": Side(name="Lightning", script="lightning_mnist", environment="torch"),
    "keras": Side(name="Keras 3", script="keras_mnist", environment="keras", arguments=("--steps-per-call", "10")),
}
"""By the names that `--peers` takes. Keras runs several steps a call, as its users would."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench mnist_train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help=f"folder with {IMAGES} and {LABELS}")
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="whom to compare with; by default all")
    add("--ours", nargs="+", choices=OURS, default=list(OURS), help="which of our own ways to train")
    add("--batch", type=int, default=64, help="digits in a step")
    add("--rounds", type=int, default=3, help="how often every side runs")
    add("--threads", type=int, help="of every side; by default each one's own choice")
    add("--quick", action="store_true", help="one round of few steps, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    for file in (IMAGES, LABELS):
        if not (args.data / file).is_file():
            parser.error(f"{args.data} has no {file}; name the folder of the digits with --data")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; gives the exit status."""
    args = parse(arguments)
    sides = {name: OURS[name] for name in args.ours}
    sides |= ready({name: PEERS[name] for name in args.peers}, install=not args.quick)
    steps, warmup, rounds = (20, 10, 1) if args.quick else (1_000, 200, args.rounds)
    shared = ["--data", args.data, "--batch", args.batch, "--steps", steps, "--warmup", warmup]
    if args.threads:
        shared += ["--threads", args.threads]
    if not args.quick:
        shared.append("--evaluate")
    with empty_cache() as variables:
        runs = {name: partial(side.run, shared, variables=variables) for name, side in sides.items()}
        measured = alternate(runs, rounds, "mnist")
    show("mnist", f"MNIST, {steps:,} steps of {args.batch}", _table(sides, measured, args.ours[0]))
    show_machine(measured.versions())
    return conclude([], failed=list(measured.failures), quick=args.quick)


def _table(sides: dict[str, Side], measured: Measured, ours: str) -> Table:
    rows = [
        [
            side.name,
            measured.median(name, "steps_per_s"),
            measured.ratio("steps_per_s", over=ours, under=name),
            measured.median(name, "first_step_s"),
            measured.median(name, "accuracy"),
            measured.median(name, "peak_mb"),
        ]
        for name, side in sides.items()
        if name in measured.results
    ]
    return table(["", "steps/s", "ours over it", "first step s", "accuracy", "peak MB"], rows)


if __name__ == "__main__":
    sys.exit(main())
