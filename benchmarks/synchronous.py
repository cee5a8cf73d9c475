"""Training the census sample in step, and under DistributedDataParallel: `scripts/bench synchronous`.

A chief and a worker on this machine, each a process of its own that takes batches of 512; what DistributedDataParallel
is given is an eager loop of the same model, with sparse gradients for the wide table. Both read from memory. What each
of ours tells the other in a step is counted, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.census.setup import OURS, check_data, empty_cache
from benchmarks.parameter_servers import DATA
from benchmarks.protocol import (
    Measured,
    Side,
    alternate,
    at_most,
    conclude,
    ready,
    run_cluster,
    show,
    show_machine,
    table,
)

SIDES = {"ours": OURS, "ddp": Side(name="DistributedDataParallel", script="ddp_census", environment="torch")}
STEPS = {"ours": (1_500, 500), "ddp": (400, 100)}
"""By side: steps, and those of the warm-up."""

MESSAGE = Side(name="torch-estimator, its messages counted", script="ours_message")

MOST = 0.4
"""Our time per step over that of DistributedDataParallel."""

MOST_BYTES = 200_000
"""Of the message that each of ours sends the other in a step."""

_BATCH = 512
_FEW_STEPS = (48, 24)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and the verdict; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench synchronous", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv and adult.test.csv")
    add("--rounds", type=int, default=3, help="how often every side runs")
    add("--quick", action="store_true", help="one round of few steps, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)
    sides = ready(SIDES, install=not args.quick)

    def run(key: str, variables: Mapping[str, str]) -> dict[str, Any]:
        steps, warmup = _FEW_STEPS if args.quick else STEPS[key]
        own = ("--cached", "--compile", "no" if args.quick else "yes") if key == "ours" else ()
        given = ["--data", args.data, "--batch", _BATCH, "--steps", steps, "--warmup", warmup, "--threads", 1]
        return run_cluster(sides[key], [*given, *own], workers=1, servers=0, variables=variables)

    def count(variables: Mapping[str, str]) -> dict[str, Any]:
        steps, warmup = _FEW_STEPS
        given = ["--data", args.data, "--batch", _BATCH, "--steps", steps, "--warmup", warmup, "--compile", "no"]
        return run_cluster(MESSAGE, given, workers=1, servers=0, variables=variables)

    with empty_cache() as variables:
        runs = {key: partial(run, key, variables) for key in sides}
        measured = alternate(runs, 1 if args.quick else args.rounds, "two in step")
        message = alternate({"ours": partial(count, variables)}, 1, "a message")
    rows = [
        [side.name, measured.median(key, "steps_per_s"), measured.ratio("steps_per_s", over="ddp", under=key)]
        for key, side in sides.items()
        if key in measured.results
    ]
    header = ["", "steps/s", "time per step over DDP"]
    show("in_step", f"Two processes in step, batches of {_BATCH} each", table(header, rows))
    size = bytes_of(message)
    if size is not None:
        print(f"\nEach of ours tells the other {size:,} bytes a step.")
    show_machine(measured.versions())
    ratio = measured.ratio("steps_per_s", over="ddp", under="ours")
    verdicts = [at_most("time per step over DDP", MOST, ratio), at_most("bytes of a message", MOST_BYTES, size)]
    return conclude(verdicts, failed=[*measured.failures, *message.failures], quick=args.quick)


def bytes_of(message: Measured) -> int | None:
    """What one of ours tells the other in a step; None where it was not counted."""
    return next((report["bytes"] for report in message.results.get("ours", [])), None)


if __name__ == "__main__":
    sys.exit(main())
