"""What every peer's script shares: its arguments, its clock, and the JSON line that it ends with.

Standard library only, since it is imported in every peer's environment.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every peer takes; a script may add its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the data files")
    add("--batch", type=int, default=40, help="rows in a step")
    add("--steps", type=int, default=1000, help="training steps, the warm-up included")
    add("--warmup", type=int, default=100, help="steps before the steady state is measured")
    add("--threads", type=int, help="threads of the peer's engine; by default its own choice")
    add("--evaluate", action="store_true", help="evaluate on the test file after training")
    return parser


def since_process_start() -> float:
    """Seconds since the kernel started this process, so that imports count."""
    # The 22nd field; the second one, the command in parentheses, may hold spaces.
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def peak_mb() -> float:
    """The most memory that this process had resident, in MB of 2**20 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Pace:
    """Steps per second after a warm-up of `warmup` steps, and when the first step ended.

    `synchronise` is called before the clock is read, for engines that return before a step has ended.
    """

    def __init__(self, warmup: int, synchronise: Callable[[], object] = lambda: None) -> None:
        self._warmup = max(1, warmup)
        self._synchronise = synchronise
        self._started: float | None = None
        self._started_at = 0
        self.steps = 0
        self.first_step_s: float | None = None
        self.steps_per_s: float | None = None

    def step(self, count: int = 1) -> None:
        """To be called after every step, or after every `count` steps that ran in one call."""
        self.steps += count
        self.first()
        if self._started is None and self.steps >= self._warmup:
            self._synchronise()
            self._started, self._started_at = time.perf_counter(), self.steps

    def first(self) -> None:
        """To be called after the first step, where `step` is called later than that."""
        if self.first_step_s is None:
            self._synchronise()
            self.first_step_s = since_process_start()

    def end(self) -> None:
        """To be called after the last step, before anything else is done."""
        self._synchronise()
        if self._started is not None and self.steps > self._started_at:
            self.steps_per_s = (self.steps - self._started_at) / (time.perf_counter() - self._started)


@dataclass(kw_only=True)
class Report:
    """What a peer measured; None where it was not asked for.

    `steps_per_s` and `examples_per_s` are those of training in the steady state; the rates of evaluation and prediction
    are of these alone. `first_step_s` is from the start of the process to the end of the first optimizer step, and
    `total_s` until everything was done. `peak_mb` is the most memory resident. Metrics are of the test file, and
    `average_loss` is the mean over rows.
    """

    peer: str
    version: str
    steps_per_s: float | None = None
    examples_per_s: float | None = None
    first_step_s: float | None = None
    total_s: float | None = None
    peak_mb: float | None = None
    auc: float | None = None
    average_loss: float | None = None
    accuracy: float | None = None
    eval_examples_per_s: float | None = None
    predict_examples_per_s: float | None = None

    def take(self, pace: Pace, batch: int) -> None:
        """Takes over what `pace` measured in steps of `batch` rows."""
        self.first_step_s, self.steps_per_s = pace.first_step_s, pace.steps_per_s
        self.examples_per_s = pace.steps_per_s and pace.steps_per_s * batch

    def print(self) -> None:
        """Ends the script: prints the JSON line, with the time and the memory up to now."""
        self.total_s, self.peak_mb = since_process_start(), peak_mb()
        print(json.dumps(dataclasses.asdict(self)), flush=True)
