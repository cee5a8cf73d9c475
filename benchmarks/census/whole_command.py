"""`train_and_evaluate` from the start of the process to its end: training, evaluation of 100 batches, export."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.census.setup import OURS, Part, Setup, cache_variables
from benchmarks.protocol import Side, alternate, at_least, at_most, table

BATCH, STEPS = 40, 12_000
_MOST_SECONDS = 300.0
_STEPS = "steps"  # As in `cache_variables`.
TENSORFLOW, FIRST, LATER = "tensorflow", "ours, very first run", "ours, a later run"
ANOTHER = "ours, after another model"
PYTHON = "ours, compile=no"


def measure(setup: Setup) -> Part:
    """Runs TensorFlow, and ours: with no compiled code, with what another model's run has left, and this model's; and
    in Python."""
    steps = 60 if setup.quick else STEPS
    with TemporaryDirectory() as folder:
        caches = _Caches(Path(folder))
        ours = partial(_run, setup, OURS, steps, "--compile")
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            FIRST: lambda: ours(setup.compile, variables=caches.new()),
            ANOTHER: lambda: ours(setup.compile, variables=caches.without_steps()),
            LATER: lambda: ours(setup.compile, variables=caches.kept()),
        }
        if setup.compile != "no":
            sides[PYTHON] = lambda: ours("no", variables=caches.kept())
        if TENSORFLOW in setup.peers:
            sides = {TENSORFLOW: partial(_run, setup, setup.peers[TENSORFLOW], steps), **sides}
        measured = alternate(sides, setup.rounds, "whole command")
    rows = [
        [
            setup.peers[side].name if side in setup.peers else side,
            measured.median(side, "wall_s"),
            measured.ratio("wall_s", over=TENSORFLOW, under=side),
            measured.ratio("wall_s", over=PYTHON, under=side),
            measured.median(side, "first_step_s"),
            measured.median(side, "peak_mb"),
        ]
        for side in measured.results
    ]
    verdicts = [
        at_least(
            "TF 2.15's time over ours, whole command, compiled code kept from an earlier run",
            6,
            measured.ratio("wall_s", over=TENSORFLOW, under=LATER),
        ),
        at_most("seconds to the first step, no compiled code yet", 6, measured.median(FIRST, "first_step_s")),
        at_most("seconds to the first step, compiled code kept", 6, measured.median(LATER, "first_step_s")),
    ]
    return Part(
        title=f"Whole command: train_and_evaluate, {steps:,} steps of {BATCH}, compile={setup.compile} on our side",
        table=table(["", "seconds", "TF's over it", "compile=no's over it", "first step s", "peak MB"], rows),
        verdicts=verdicts,
        measured=measured,
    )


def _run(setup: Setup, side: Side, steps: int, *more: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
    arguments = [*setup.arguments(batch=BATCH, steps=steps), "--whole-command", *more]
    return side.run(arguments, variables=variables)


class _Caches:
    """A folder for compiled code in every round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def new(self) -> dict[str, str]:
        """An empty one."""
        self._wait()
        self._count += 1
        return self.kept()

    def kept(self) -> dict[str, str]:
        """That of this round, as the last run has left it."""
        self._wait()
        return cache_variables(self._folder / str(self._count))

    def without_steps(self) -> dict[str, str]:
        """That of this round with all that is kept for any model, and no compiled step."""
        variables = self.kept()
        shutil.rmtree(self._folder / str(self._count) / _STEPS / "steps", ignore_errors=True)
        return variables

    def _wait(self) -> None:
        """Waits until no compiler runs, which may outlive a short run."""
        until = time.monotonic() + _MOST_SECONDS
        while any(self._folder.glob(f"*/{_STEPS}/*/.building-*")) and time.monotonic() < until:
            time.sleep(0.1)
