"""What each side of the tuning benchmark takes and reports."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

_SET_CHILD_SUBREAPER = 36


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every side."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data", type=Path, required=True, help="folder of the census files")
    made.add_argument("--folder", type=Path, required=True, help="for all that is written")
    made.add_argument("--trials", type=int, required=True)
    made.add_argument("--parallel", type=int, required=True, help="trials at a time")
    made.add_argument("--steps", type=int, required=True, help="of a trial that runs to its end")
    made.add_argument("--first-rung", type=int, required=True, help="steps before the first decision; 0 for none")
    made.add_argument("--seed", type=int, default=0)
    return made


def adopt_children() -> None:
    """Become the parent of all descendants whose own parents have ended, so that their CPU time is counted here."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_cpu() -> float:
    """Wait for all children; return the CPU seconds of all that there were."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime


class Progress:
    """A file to which trials add what they reached."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "progress"

    def add(self, step: int, auc: float) -> None:
        """Add a line; it is short enough to be written at once."""
        with open(self._path, "a") as file:
            file.write(json.dumps([time.time(), step, auc]) + "\n")

    def since(self, began: float) -> list[list[float]]:
        """Return seconds, steps and AUCs, in their order."""
        return [[at - began, step, auc] for at, step, auc in map(json.loads, self._path.read_text().splitlines())]


def report(peer: str, version: str, began: float, reached: list[list[float]], **more: Any) -> None:
    """Print what the benchmark reads: how long it took, and what was reached when."""
    print(json.dumps({"peer": peer, "version": version, "secs": time.time() - began, "reached": reached, **more}))
