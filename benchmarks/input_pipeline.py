"""How fast rows become batches, ours and other libraries' side by side: `scripts/bench input_pipeline`.

Census rows -> parsed, shuffled, the ids and numbers of all of the sample's columns, labels, batches as tensors, the
thread that works ahead included. Nothing else runs: no model, no training. The files hold the census rows many times
over, so that they take several windows and nothing of them is kept. tf.data leaves strings as they are, for the
training step to turn into ids; the DataLoader gets its rows encoded ahead of time and in memory. Both are spared work
that ours does here.

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

import pyarrow
from pyarrow import csv, parquet

from benchmarks.census.memory import write_repeated
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
_LARGE = 70 * 10**6
_PARQUET_ROWS = 1_000_000
_QUICK_ROWS = 1000

SIDES = {
    "ours": Side(name="ours, CSV", script="ours_input"),
    "ours-parquet": Side(name="ours, Parquet", script="ours_input"),
    "ours-in-order": Side(name="ours, Parquet, in order", script="ours_input", arguments=("--in-order",)),
    "tensorflow": Side(name="tf.data, line by line", script="tensorflow_input", environment="tensorflow"),
    "tensorflow-batched": Side(
        name="tf.data, lines by the batch",
        script="tensorflow_input",
        environment="tensorflow",
        arguments=("--decode", "batch"),
    ),
    "loader": Side(name="DataLoader", script="loader_input"),
    "loader-worker": Side(name="DataLoader, one worker", script="loader_input", arguments=("--workers", "1")),
}
PEERS = [key for key in SIDES if not key.startswith("ours")]
_PEER_ROWS = 30_000


def write_files(source: Path, folder: Path, *, quick: bool) -> tuple[Path, Path]:
    """Repeats the census rows: a CSV file of about 70 MB, and a Parquet file of a million rows, or little of both."""
    text, columnar = folder / "rows.csv", folder / "rows.parquet"
    write_repeated(source, text, 1 if quick else _LARGE)
    names = csv.ReadOptions(column_names=list(columns.CSV_COLUMNS))
    rows = csv.read_csv(text, read_options=names)
    times = 1 if quick else -(-_PARQUET_ROWS // len(rows))
    parquet.write_table(pyarrow.concat_tables([rows] * times)[:_PARQUET_ROWS], columnar, row_group_size=100_000)
    return text, columnar


def measure(batch: int, args: argparse.Namespace, text: Path, columnar: Path) -> Measured:
    """Runs all sides in turn."""
    files = {"ours": text, "ours-parquet": columnar, "ours-in-order": columnar}
    runs = {}
    for key in (*files, *args.peers):
        arguments: list[object] = ["--file", files.get(key, args.file), "--batch", batch]
        if args.quick or key not in files:
            arguments += ["--rows", _QUICK_ROWS if args.quick else _PEER_ROWS]
        runs[key] = partial(SIDES[key].run, arguments)
    return alternate(runs, 1 if args.quick else args.rounds, f"batches of {batch}")


def shown(measured: Measured) -> Table:
    """The table of one batch size."""
    header = ["", "batches/s", "rows/s", "rows per CPU-second", "ours, CSV, over it"]
    rows: list[list[Any]] = [
        [
            SIDES[key].name,
            *(measured.median(key, value) for value in ("batches_per_s", "rows_per_s", "rows_per_cpu_s")),
            measured.ratio("rows_per_s", over="ours", under=key),
        ]
        for key in measured.results
    ]
    return table(header, rows)


def verdicts(measured: Mapping[int, Measured]) -> list[Verdict]:
    """What is promised of ours."""
    small, large = (measured[batch] for batch in BATCHES)
    per_cpu = "rows_per_cpu_s"
    return [
        at_least("batches/s of 40 from CSV", 4500, small.median("ours", "batches_per_s")),
        at_least("rows per CPU-second from CSV, 40, over a DataLoader", 4, small.ratio(per_cpu, "ours", "loader")),
        at_least("rows per CPU-second from CSV, 512, over a DataLoader", 4, large.ratio(per_cpu, "ours", "loader")),
        at_least("rows/s from Parquet in order", 600_000, large.median("ours-in-order", "rows_per_s")),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench input_pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        text, columnar = write_files(args.file, Path(folder), quick=args.quick)
        for batch in BATCHES:
            measured[batch] = measure(batch, args, text, columnar)
            show(f"at{batch}", f"Input from census CSV or Parquet, batches of {batch}", shown(measured[batch]))
    versions = {one[0]["peer"]: one[0]["version"] for one in measured[BATCHES[0]].results.values()}
    show_machine({**versions, "pyarrow": pyarrow.__version__})
    failed = [side for one in measured.values() for side in one.failures]
    return conclude(verdicts(measured), failed=failed, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
