"""Submits studies and kills, pauses and floods them, and checks what is promised of them: `scripts/tune-storm`.

Each row of the table that it prints is one promise: what was measured, what has to be measured at least or at most, and
whether that holds. Studies are killed with SIGKILL: the controller, from which trials are forked, the process of a
trial, and both at the same moment; `estimator jobs resume` follows where the controller was killed. --quick makes few
kills, pauses and trials, and judges no times; --rows runs some rows only.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.options import at_least
from scripts.storms.common import ROOT, StormError, add_census_files, emptied
from scripts.storms.jobs import conclude_rows, inside, run_rows
from scripts.storms.submitting import Jobs
from scripts.storms.tune_rows import ROWS, TuneStorm
from torch_estimator.run_config import COMPILE


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/tune-storm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kills", type=at_least(1), default=20, help="of each kind of study (default: 20)")
    add("--quick", action="store_true", help="three kills, few trials, and no judgement of times")
    add("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=f"of {', '.join(ROWS)}")
    add("--seed", type=int, default=1, help="of the moments (default: 1)")
    add("--work-dir", type=Path, default=ROOT / "runs" / "tune-storm", help="for all studies; emptied first")
    add_census_files(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; return 0 where all hold, 1 where one does not."""
    options = parse(arguments)
    files = (options.train_file.resolve(), options.eval_file.resolve())
    kills = 3 if options.quick else options.kills
    rows = []
    # What is compiled depends on the time, which kills change.
    with inside(emptied(options.work_dir), {COMPILE: "false"}):
        storm = TuneStorm(Jobs(Path.cwd()), kills, options.quick, random.Random(options.seed), files)
        try:
            for name in options.rows:
                rows += run_rows(ROWS[name](storm))
        except StormError as error:
            print(f"tune-storm: {error}", file=sys.stderr)
            return 1
    return conclude_rows(f"{kills} kills", rows)


if __name__ == "__main__":
    sys.exit(main())
