"""Training the census sample, ours and other libraries' side by side: `scripts/bench census_train`.

Every side is a process of its own on the same file, the same model, the same batch and its own choice of threads
(`benchmarks/peers/*_census.py`); sides run in turn, and ratios are medians of ratios within a round. TensorFlow and
ours read CSV; the other peers get their rows encoded ahead of time and in memory, which flatters them.

Parts: `whole` (train_and_evaluate, 12,000 steps of 40, and the time to the first step), `steady40` and `steady512`
(steps per second), `quality` (AUC and loss after 12,000 steps of 512), `imports`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.census import imports, quality, steady_state, whole_command
from benchmarks.census.peers import PEERS, present
from benchmarks.census.setup import TEST_FILE, TRAIN_FILE, Part, Setup, check_data
from benchmarks.protocol import ROOT, conclude, show, show_machine

DATA = ROOT.parent / "shared" / "data" / "census"
PARTS: dict[str, Callable[[Setup], Part]] = {
    "whole": whole_command.measure,
    "steady40": partial(steady_state.measure, batch=40),
    "steady512": partial(steady_state.measure, batch=512),
    "quality": quality.measure,
    "imports": imports.measure,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench census_train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv and adult.test.csv")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; by default everything")
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="whom to compare with; by default all")
    add("--rounds", type=int, default=3, help="how often every side runs")
    add("--compile", choices=("auto", "yes", "no"), default="auto", help="RunConfig's compile on our side")
    add("--threads", type=int, help="of every side; by default each one's own choice")
    add("--quick", action="store_true", help="one round of few steps, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    check_data(parser, args.data, (TRAIN_FILE, TEST_FILE))
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    args = parse(arguments)
    setup = Setup(
        data=args.data,
        rounds=1 if args.quick else args.rounds,
        quick=args.quick,
        compile=args.compile,
        peers=present(args.peers, install=not args.quick),
        threads=args.threads,
    )
    parts = []
    for name in args.parts:
        part = PARTS[name](setup)
        show(name, part.title, part.table)
        parts.append(part)
    versions = {peer: version for part in parts for peer, version in part.measured.versions().items()}
    show_machine(versions)
    verdicts = [verdict for part in parts for verdict in part.verdicts]
    failed = [side for part in parts for side in part.measured.failures]
    return conclude(verdicts, failed=failed, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
