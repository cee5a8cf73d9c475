"""What an evaluator costs those who train beside it: `scripts/bench evaluator`.

A chief and one parameter server on this machine train the census sample, batches of 40, with a dozen checkpoints:
without an evaluator; beside one that is stopped with SIGSTOP in the middle of an evaluation, so that it takes no
processor from them, but would keep waiting whoever waits for it; and beside one that evaluates each checkpoint that it
comes to on the whole test file, which takes its share of the processors. The promise is about the one that is stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.census.setup import check_data, empty_cache
from benchmarks.parameter_servers import DATA
from benchmarks.protocol import Side, alternate, at_least, conclude, run_cluster, show, show_machine, table
from examples import options

SIDES = {
    "none": "no evaluator",
    "stopped": "evaluator, stopped while it evaluates",
    "evaluating": "evaluator at work",
}

LEAST = 0.97
"""Steps per second beside an evaluator that is stopped, over those without one."""

_SIDE = Side(name="torch-estimator", script="ours_evaluated")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and the verdict; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench evaluator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv and adult.test.csv")
    add("--rounds", type=int, default=5, help="how often every side runs")
    add(
        "--steps",
        type=options.at_least(36),
        default=12_000,
        help="of every run, of which a third warms up (default: 12000)",
    )
    add("--quick", action="store_true", help="one round of few steps, to see that it runs")
    args = parser.parse_args(arguments)
    check_data(parser, args.data)

    def run(key: str, variables: Mapping[str, str]) -> dict[str, Any]:
        steps = 72 if args.quick else args.steps
        given = ["--data", args.data, "--steps", steps, "--warmup", steps // 3, "--save-every", steps // 12]
        own = ["--compile", "no" if args.quick else "yes", "--evaluator", key]
        return run_cluster(_SIDE, [*given, *own], evaluator=key != "none", variables=variables)

    with empty_cache() as variables:
        runs = {key: partial(run, key, variables) for key in SIDES}
        measured = alternate(runs, 1 if args.quick else args.rounds, "beside an evaluator")
    rows = [
        [
            name,
            measured.median(key, "steps_per_s"),
            measured.ratio("steps_per_s", over=key, under="none"),
            measured.median(key, "longest_ms"),
            measured.median(key, "longest_saving_ms"),
            measured.median(key, "evaluations"),
        ]
        for key, name in SIDES.items()
        if key in measured.results
    ]
    header = ["", "steps/s", "over no evaluator", "longest step ms", "after a checkpoint ms", "evaluations"]
    show("evaluator", "A chief and a parameter server beside an evaluator, batches of 40", table(header, rows))
    show_machine(measured.versions())
    ratio = measured.ratio("steps_per_s", over="stopped", under="none")
    verdict = at_least("steps/s beside a stopped evaluator over those without one", LEAST, ratio)
    return conclude([verdict], failed=list(measured.failures), quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
