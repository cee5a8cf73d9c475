"""How long saving a large state holds up a training: `scripts/bench checkpoint_stall`.

A training through the public API whose parameters and optimizer state take 1 GB, saved every so many steps. In turn, in
processes of their own: as an Estimator saves by itself, in the background; the same saving, with the loop waiting for
each checkpoint; and `torch.save` in the loop, which does not even wait for the disk. `benchmarks/peers/ours_saving.py`
says how the columns are measured. The promise is about the stall.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.ours_saving import WAYS
from benchmarks.protocol import Measured, Side, alternate, at_most, conclude, show, show_machine, table

MOST = 0.25
OURS, WAITING, _ = WAYS

# The checkpoint before, the one being written, and the one that is being removed.
_FILES_AT_ONCE = 3


def disk_lacks(folder: str, mb: float) -> str | None:
    """Why `folder` is not the place for checkpoints of `mb` MB, or None."""
    needed, free = _FILES_AT_ONCE * mb, shutil.disk_usage(folder).free / 2**20
    if free < needed:
        return f"{folder} has {free:,.0f} MB left, but {needed:,.0f} MB are needed; name another folder with --dir."
    if _is_in_memory(folder):
        return f"{folder} lies in memory, not on a disk; name another folder with --dir."
    return None


def report(measured: Measured, mb: float, versions: dict[str, str]) -> None:
    """Prints the table and the machine."""
    header = [
        "saving",
        "stall s",
        "ratio",
        "with slower steps s",
        "ratio",
        "before step 1 s",
        "ratio",
        "steps meanwhile",
        "step ms",
        "peak MB",
    ]
    rows = [
        [
            way,
            *(
                cell
                for key in ("stall_s", "lost_s", "first_s")
                for cell in (measured.median(way, key), measured.ratio(key, over=way, under=WAITING))
            ),
            measured.median(way, "slower"),
            measured.median(way, "step_ms"),
            measured.median(way, "peak_mb"),
        ]
        for way in measured.results
    ]
    show("stall", f"Saving {mb:g} MB while training", table(header, rows))
    show_machine(versions)


def main() -> int:
    """Prints the table and the verdict; gives the exit status, 1 where it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--mb", type=float, help="parameters and optimizer state together; default 1024")
    add("--every", type=int, help="steps between saves, enough for one to be written; default 8000")
    add("--saves", type=int, help="saves in a run after that of the start; default 5")
    add("--rounds", type=int, help="runs of each way; default 3")
    add("--dir", default=tempfile.gettempdir(), help="folder on the disk to write to; default %(default)s")
    add("--quick", action="store_true", help="one round with 16 MB, which proves nothing but that it runs")
    args = parser.parse_args()
    mb, every, saves, rounds = (
        fallback if given is None else given
        for given, fallback in zip(
            (args.mb, args.every, args.saves, args.rounds),
            (16, 40, 2, 1) if args.quick else (1024, 8000, 5, 3),
            strict=True,
        )
    )
    lacking = disk_lacks(args.dir, mb)
    if lacking and not args.quick:
        parser.error(lacking)
    arguments = ["--mb", mb, "--every", every, "--saves", saves, "--dir", args.dir]
    sides: dict[str, Callable[[], dict[str, Any]]] = {
        way: partial(Side(name=way, script="ours_saving").run, [way, *arguments]) for way in WAYS
    }
    measured = alternate(sides, rounds, progress=f"saving {mb:g} MB")
    report(measured, mb, {"torch_estimator": next(iter(measured.versions().values()), "?")})
    verdict = at_most(
        f"loop stalled by saving {mb:g} MB, asynchronous over synchronous",
        MOST,
        measured.ratio("stall_s", over=OURS, under=WAITING),
    )
    return conclude([verdict], failed=list(measured.failures), quick=args.quick)


def _is_in_memory(folder: str) -> bool:
    """Whether the file system of `folder` is a tmpfs."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    resolved = Path(folder).resolve()
    above = [(len(point), kind) for _, point, kind, *_ in mounts if resolved.is_relative_to(point)]
    return max(above)[1] == "tmpfs"


if __name__ == "__main__":
    sys.exit(main())
