"""What the scripts of the input benchmark share: their arguments, their clock, the JSON line that they end with.

Standard library only, since it is imported in every peer's environment.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every script takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--file", type=Path, required=True, help="census rows as CSV without a header, or as Parquet")
    add("--batch", type=int, default=40, help="rows in a batch")
    add("--rows", type=int, help="end after so many rows; by default at the end of the file")
    add("--in-order", action="store_true", help="do not shuffle")
    return parser


def report(peer: str, version: str, batches: Iterable[int], rows: int | None) -> None:
    """Go through batches and print how fast they came; the clock starts with the first one asked for.

    `batches` yields the number of rows of each batch, and `rows` is where to end.
    """
    taken = seen = 0
    wall, cpu = time.perf_counter(), time.process_time()
    for size in batches:
        taken += 1
        seen += size
        if rows is not None and seen >= rows:
            break
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    speeds = {"batches_per_s": taken / wall, "rows_per_s": seen / wall, "rows_per_cpu_s": seen / cpu}
    print(json.dumps({"peer": peer, "version": version, **speeds}), flush=True)
