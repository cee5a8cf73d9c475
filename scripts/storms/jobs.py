"""Submits jobs and kills, cancels and floods them, and checks what is promised of jobs: `scripts/job-storm`.

Each row of the table that it prints is one promise: what was measured, what has to be measured at least or at most, and
whether that holds. Slurm is one of four nodes that scripts/slurm-cluster starts on this machine, Ray a cluster of one
node, and Kubernetes a server of ours, whose pods are processes of this machine. Times are medians of five. --quick does
everything once and judges no times; --rows runs some rows only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from examples.options import at_least
from scripts.storms.common import ROOT, StormError, add_census_files, emptied
from scripts.storms.job_rows import ONLY_ON, ROWS, Row, Storm
from scripts.storms.lanes import lanes
from scripts.storms.places import PLACES
from scripts.storms.submitting import Jobs
from torch_estimator.cli.tables import aligned

_ROWS = {**ROWS, "lanes": lanes}
_ONLY_ON = {**ONLY_ON, "lanes": ("local",)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/job-storm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--on", choices=sorted(PLACES), default="local", help="where the jobs run (default: local)")
    add("--rounds", type=at_least(1), default=20, help="of kills, and of cancellations (default: 20)")
    add("--quick", action="store_true", help="one round, short trainings, and no judgement of times")
    add("--rows", nargs="+", choices=list(_ROWS), default=list(_ROWS), metavar="ROW", help=f"of {', '.join(_ROWS)}")
    add("--lanes", dest="rows", action="store_const", const=["lanes"], help="only what roles record, against the truth")
    add("--seed", type=int, default=1, help="of the moments (default: 1)")
    add("--work-dir", type=Path, default=ROOT / "runs" / "job-storm", help="for all jobs; emptied first")
    add_census_files(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; return 0 where all hold, 1 where one does not."""
    options = parse(arguments)
    rows: list[Row] = []
    try:
        with PLACES[options.on]() as place, inside(emptied(options.work_dir), place.environ):
            Path("estimator.toml").write_text(place.table)
            storm = Storm(
                jobs=Jobs(Path.cwd()),
                target=options.on,
                place=place,
                rounds=1 if options.quick else options.rounds,
                is_quick=options.quick,
                rng=random.Random(options.seed),
                files=(options.train_file.resolve(), options.eval_file.resolve()),
            )
            for name in [one for one in options.rows if options.on in _ONLY_ON.get(one, [options.on])]:
                rows += run_rows(_ROWS[name](storm))
    except StormError as error:
        print(f"job-storm: {error}", file=sys.stderr)
        return 1
    return conclude_rows(f"On {options.on}, {storm.rounds} rounds", rows)


def run_rows(rows: Iterable[Row]) -> list[Row]:
    """Print each row as it comes; return them."""
    found = []
    for row in rows:
        print(f"{row.what}: {row.measured}, {row.verdict}", flush=True)
        found.append(row)
    return found


def conclude_rows(title: str, rows: Sequence[Row]) -> int:
    """Print the table; return 0 if all rows hold, 1 if one does not."""
    print(f"\n{title}, {os.cpu_count()} cores:\n")
    cells = [[row.what, row.measured, row.bar, row.verdict] for row in rows]
    print(aligned([["what", "measured", "at least or at most", ""], *cells]), flush=True)
    return int(any(row.holds is False for row in rows))


@contextlib.contextmanager
def inside(folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Make a folder the current one, and add variables to the environment, during the body."""
    before = dict(os.environ)
    os.environ.update({"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ})
    os.environ.pop("TORCH_ESTIMATOR_JOBS", None)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    sys.exit(main())
