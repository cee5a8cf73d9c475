"""Evaluating and predicting the census sample, ours and TensorFlow's side by side: `scripts/bench census_eval`.

Ours reads 1,000,000 rows from Parquet (drawn from the test file with replacement), and the time is that of the whole
call of `evaluate` or `predict`. TensorFlow reads the test file again and again, as CSV, line by line as Google's sample
does or by the batch, and the time is that of its steady state: what it needs to begin is left out. Both predict whole
batches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.census.parquet import write_parquet
from benchmarks.census.peers import PEERS, present
from benchmarks.census.setup import TEST_FILE, TRAIN_FILE, check_data
from benchmarks.protocol import ROOT, Measured, Side, Verdict, alternate, at_least, conclude, show, show_machine, table

DATA = ROOT.parent / "shared" / "data" / "census"
OURS = Side(name="torch-estimator, Parquet", script="ours_evaluation")
FROM_CSV = Side(name="torch-estimator, CSV", script="ours_evaluation")
TENSORFLOW = "tensorflow"
COMPARED = (TENSORFLOW, "tensorflow-batched")
PROMISE = 20.0
BATCHES = (40, 512)
SPEEDS = ("eval_examples_per_s", "predict_examples_per_s")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench census_eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv and adult.test.csv")
    add("--rows", type=int, default=1_000_000, help="rows that we evaluate")
    add("--peer-rows", type=int, default=100_000, help="rows that TensorFlow evaluates")
    add("--batches", type=int, nargs="+", default=list(BATCHES), help="rows in a batch")
    add("--peers", nargs="*", choices=COMPARED, default=list(COMPARED), help="whom to compare with; by default all")
    add("--rounds", type=int, default=3, help="how often every side runs")
    add("--threads", type=int, help="of every side; by default each one's own choice")
    add("--quick", action="store_true", help="one round of few rows, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    check_data(parser, args.data, (TRAIN_FILE, TEST_FILE))
    if args.quick:
        args.rows, args.peer_rows, args.rounds = 20_000, 4_000, 1
    return args


def measure(args: argparse.Namespace, peers: Mapping[str, Side], batch: int, parquet: Path) -> Measured:
    """Runs all sides with batches of one size."""
    threads = ["--threads", args.threads] if args.threads else []
    shared = ["--data", args.data, "--batch", 512, "--steps", 100, "--eval-batch", batch, *threads]
    test_file = args.data / "adult.test.csv"
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "ours": partial(OURS.run, [*shared, "--file", parquet]),
        "csv": partial(FROM_CSV.run, [*shared, "--file", test_file, "--repeat-to", args.rows]),
        **{key: partial(side.run, [*shared, "--evaluate-rows", args.peer_rows]) for key, side in peers.items()},
    }
    return alternate(sides, args.rounds, f"batches of {batch}")


def report(measured: Measured, peers: Mapping[str, Side], batch: int) -> Verdict:
    """Prints the table of one size; gives whether what is promised holds."""
    sides = {"ours": OURS, "csv": FROM_CSV, **peers}
    rows = [
        [
            side.name,
            *(
                value
                for speed in SPEEDS
                for value in (measured.median(key, speed), measured.ratio(speed, over="ours", under=key))
            ),
        ]
        for key, side in sides.items()
        if key in measured.results
    ]
    header = ["examples/s", "evaluate", "ours over it", "predict", "ours over it"]
    show(f"at{batch}", f"Evaluation and prediction, batches of {batch}", table(header, rows))
    return at_least(
        f"evaluation, examples/s at {batch} over {PEERS[TENSORFLOW].name}",
        PROMISE,
        measured.ratio(SPEEDS[0], over="ours", under=TENSORFLOW),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    args = parse(arguments)
    peers = present(args.peers, install=not args.quick)
    verdicts: list[Verdict] = []
    versions: dict[str, str] = {}
    failed: list[str] = []
    with TemporaryDirectory() as folder:
        parquet = Path(folder) / "rows.parquet"
        write_parquet(args.data / "adult.test.csv", parquet, args.rows)
        for batch in args.batches:
            measured = measure(args, peers, batch, parquet)
            verdicts.append(report(measured, peers, batch))
            versions |= measured.versions()
            failed += measured.failures
    show_machine(versions)
    return conclude(verdicts, failed=failed, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
