"""The most memory resident while training from a small and from a large CSV file: `scripts/bench memory`.

Both hold the census rows many times over, and both are trained on for as many steps as it takes to read the large one
once, shuffled as the example does it and in the order of the file. Every run is a process of its own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.census.memory import write_repeated
from benchmarks.protocol import ROOT, Measured, Side, alternate, at_most, conclude, show, show_machine, table

DATA = ROOT.parent / "shared" / "data" / "census" / "adult.data.csv"
MB = 10**6
MOST_MORE = 300
BATCH = 512
SIZES = {"small": 10 * MB, "large": 1000 * MB}
_QUICK_SIZES = {"small": 4 * MB, "large": 12 * MB}
_QUICK_STEPS = 20
_ORDERS: dict[str, list[str]] = {"shuffled": [], "in order": ["--in-order"]}
_SIDE = Side(name="torch-estimator", script="ours_memory")


def measure(args: argparse.Namespace, folder: Path) -> tuple[Measured, dict[str, int]]:
    """Trains on each file in each order; gives what was measured and the rows of the files."""
    sizes = _QUICK_SIZES if args.quick else {"small": SIZES["small"], "large": args.megabytes * MB}
    files = {name: folder / f"{name}.csv" for name in sizes}
    rows = {name: write_repeated(args.file, files[name], sizes[name]) for name in sizes}
    steps = _QUICK_STEPS if args.quick else -(-max(rows.values()) // BATCH)
    shared: list[Any] = ["--steps", steps, "--batch", BATCH]
    shared += [] if args.compile is None else ["--compile", args.compile]
    runs = {
        f"{order}, {name}": partial(_SIDE.run, [*shared, "--file", files[name], *arguments], timeout=3600)
        for order, arguments in _ORDERS.items()
        for name in sizes
    }
    return alternate(runs, 1 if args.quick else args.rounds, "memory"), rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and the verdicts; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--file", type=Path, default=DATA, help="census CSV file without a header")
    add("--megabytes", type=int, default=SIZES["large"] // MB, help="size of the large file")
    add("--compile", choices=("auto", "yes", "no"), help="RunConfig's compile; by default its own")
    add("--rounds", type=int, default=1, help="how often every run is made")
    add("--quick", action="store_true", help="small files and few steps, to see that it runs")
    args = parser.parse_args(arguments)
    if not args.file.is_file():
        parser.error(f"there is no {args.file}; name a census file with --file")
    with TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if not args.quick and free < 2 * args.megabytes * MB:
            parser.error(f"{folder} has room for {free // MB} MB only; set TMPDIR to where there is more")
        measured, rows = measure(args, Path(folder))
    peaks = {name: measured.median(name, "peak_mb") for name in measured.results}
    lines = [[name, rows[name.split(", ")[1]], peaks[name]] for name in peaks]
    show("peak", "Training from CSV", table(["file", "rows", "peak MB"], lines))
    show_machine()
    verdicts = []
    for order in _ORDERS:
        small, large = peaks.get(f"{order}, small"), peaks.get(f"{order}, large")
        more = None if small is None or large is None else large - small
        verdicts.append(at_most(f"MB more at the peak with the large file, {order}", MOST_MORE, more))
    return conclude(verdicts, failed=list(measured.failures), quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
