"""How fast TFRecord files become batches, ours and tf.data's side by side: `scripts/bench tfrecord`.

The census rows as tf.Examples -> checksums, parsed, shuffled, labels as numbers, batches of raw columns. Nothing else
runs: no model, no ids, no training. The file holds the census rows many times over, so that it takes several windows
and nothing of it is kept.

CPU seconds are those of all threads of the process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyarrow import csv

import torch_estimator as te
from benchmarks.protocol import (
    ROOT,
    Measured,
    Side,
    Table,
    Verdict,
    alternate,
    at_least,
    conclude,
    ready,
    show,
    show_machine,
    table,
)
from examples.census.trainer import columns

DATA = ROOT.parent / "shared" / "data" / "census" / "adult.data.csv"
BATCHES = (40, 512)
_COPIES = 10
_QUICK_ROWS = 1000
# Parsing one by one takes long.
_SINGLE_ROWS = 50_000
_NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")

SIDES = {
    "ours": Side(name="ours", script="ours_tfrecord"),
    "ours-in-order": Side(name="ours, in order", script="ours_tfrecord", arguments=("--in-order",)),
    "tensorflow": Side(name="tf.data, parse_single_example", script="tensorflow_tfrecord", environment="tensorflow"),
    "tensorflow-batched": Side(
        name="tf.data, parse_example by the batch",
        script="tensorflow_tfrecord",
        environment="tensorflow",
        arguments=("--parse", "batch"),
    ),
}
PEERS = [key for key in SIDES if not key.startswith("ours")]


def write_file(source: Path, folder: Path, *, quick: bool) -> Path:
    """Writes the census rows as tf.Examples, ten times over."""
    options = csv.ReadOptions(column_names=list(columns.CSV_COLUMNS))
    types = csv.ConvertOptions(column_types=dict.fromkeys(_NUMBERS, "float32"))
    rows = csv.read_csv(source, read_options=options, convert_options=types)
    path = folder / "rows.tfrecord"
    te.data.write_tfrecord(path, rows[:_QUICK_ROWS] if quick else rows)
    if not quick:
        path.write_bytes(path.read_bytes() * _COPIES)
    return path


def measure(batch: int, args: argparse.Namespace, file: Path) -> Measured:
    """Runs all sides in turn."""
    runs = {}
    for key in ("ours", "ours-in-order", *args.peers):
        arguments: list[object] = ["--file", file, "--batch", batch]
        if key == "tensorflow" and not args.quick:
            arguments += ["--rows", _SINGLE_ROWS]
        runs[key] = partial(SIDES[key].run, arguments)
    return alternate(runs, 1 if args.quick else args.rounds, f"batches of {batch}")


def shown(measured: Measured) -> Table:
    """The table of one batch size."""
    header = ["", "examples/s", "examples per CPU-second", "ours over it, per CPU-second"]
    rows: list[list[Any]] = [
        [
            SIDES[key].name,
            *(measured.median(key, value) for value in ("rows_per_s", "rows_per_cpu_s")),
            measured.ratio("rows_per_cpu_s", over="ours", under=key),
        ]
        for key in measured.results
    ]
    return table(header, rows)


def verdicts(measured: Mapping[int, Measured]) -> list[Verdict]:
    """What is promised of ours."""
    return [
        at_least(
            f"examples per CPU-second, batches of {batch}, over {name}",
            wanted,
            one.ratio("rows_per_cpu_s", "ours", key),
        )
        for batch, one in measured.items()
        for key, name, wanted in (
            ("tensorflow", "parse_single_example", 5),
            ("tensorflow-batched", "parse_example", 1.5),
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench tfrecord", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--file", type=Path, default=DATA, help="census CSV file without a header")
    add("--peers", nargs="*", choices=PEERS, default=PEERS, help="whom to compare with; by default all")
    add("--rounds", type=int, default=5, help="how often every side runs")
    add("--quick", action="store_true", help="one round of few rows, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    if not args.file.is_file():
        parser.error(f"there is no {args.file}; name a census file with --file")
    args.peers = list(ready({name: SIDES[name] for name in args.peers}, install=not args.quick))
    measured = {}
    with TemporaryDirectory() as folder:
        file = write_file(args.file, Path(folder), quick=args.quick)
        for batch in BATCHES:
            measured[batch] = measure(batch, args, file)
            show(f"at{batch}", f"Census rows from TFRecord, batches of {batch}", shown(measured[batch]))
    versions = {one[0]["peer"]: one[0]["version"] for one in measured[BATCHES[0]].results.values()}
    show_machine(versions)
    failed = [side for one in measured.values() for side in one.failures]
    return conclude(verdicts(measured), failed=failed, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
