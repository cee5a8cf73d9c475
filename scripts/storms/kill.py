"""Kills the census job with SIGKILL again and again, and checks that nothing is lost: `scripts/storm kill`.

One job runs undisturbed. A second one with the same settings is killed at random instants (while it starts,
while it trains and writes checkpoints, while it evaluates and exports at the end) and started again each
time; a kill that comes too late is tried again, so that every one lands. After every kill the latest checkpoint
and every export under a final name must load. At the end both jobs must have the same weights, optimizer state,
saved state and evaluation, bit for bit.

With `--compile auto` each job has an empty cache of compiled steps at first, so that it changes from steps in Python to
compiled ones when its compiler, which outlives a kill, has ended. Then weights, optimizer state and evaluation are
compared up to rounding, and the saved state, which has the position in the input, exactly.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torch_estimator as te
from examples.census.trainer import task
from examples.options import at_least
from scripts.storms.common import (
    ROOT,
    SILENCE_SECS,
    Child,
    StormError,
    add_census_files,
    conclude_storm,
    emptied,
    words,
)
from torch_estimator import errors
from torch_estimator.checkpoint.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint
from torch_estimator.code_cache import DIRECTORY_VARIABLE

_ATTEMPTS = 10
# How far two jobs may be apart that change to a compiled step at another step, relative to the largest value of a
# tensor: measured were 2e-6 after 20,000 steps. One row less changes the accumulators of rare crosses by more.
_ROUNDING = 1e-5
# Metrics such as the accuracy count whole rows, of which one may fall on the other side of a threshold.
_ROUNDING_OF_METRICS = 1e-3
_SAVING = re.compile(r"Saving checkpoints for (\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Instant:
    """When to kill: `delay` seconds after the checkpoint of step `step` began, or after the start."""

    step: int | None
    delay: float

    def sooner(self) -> Instant:
        """An instant to try where this one came too late: the job had ended, or never began such a save."""
        if self.step is None:
            return Instant(None, self.delay / 4.0)
        return Instant(self.step, 0.0) if self.delay else Instant(None, 1.0)

    def __str__(self) -> str:
        since = "the start" if self.step is None else f"the save at step {self.step} or later began"
        return f"{self.delay:.3f} s after {since}"


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the undisturbed job: to its first save, from save to save, from the last one to its end."""

    start: float
    save: float
    end: float


def plan(kills: int, *, steps: int, every: int, timing: Timing, rng: random.Random) -> list[Instant]:
    """Draws the instants by training step: a fifth of them at the start, the last one at the end."""
    last_save = (steps - 1) // every * every
    training = sorted(rng.randrange(0, last_save + 1) for _ in range(kills - 1))
    instants = [
        Instant(None, rng.uniform(0.0, timing.start))
        if rng.random() < 0.2
        else Instant(step, rng.uniform(0.0, 2.0 * timing.save))
        for step in training
    ]
    return [*instants, Instant(steps, rng.uniform(0.0, timing.end))] if kills else []


def census_job(arguments: Sequence[str]) -> list[str]:
    """The command that runs the job."""
    return [sys.executable, "-m", "examples.census.trainer.task", *arguments]


class Job(Child):
    """A job in a process of its own."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.started = time.monotonic()
        # Where a job changes from Python to a compiled step depends on what it finds here.
        super().__init__(command, {DIRECTORY_VARIABLE: str(log.with_suffix(".cache"))}, log_file=log)

    def saves(self) -> Iterator[tuple[float, int]]:
        """Yields the time and the step of every save as it begins, until the process ends."""
        with contextlib.suppress(EOFError):
            while line := self.read(SILENCE_SECS):
                found = _SAVING.search(line[1])
                if found:
                    yield line[0], int(found.group(1))
            self.process.kill()
            raise StormError(f"the job said nothing for {SILENCE_SECS:.0f} s; it was killed.")

    def kill_at(self, instant: Instant) -> bool:
        """Kills the process at `instant`; False where it had ended before."""
        since = self.started
        if instant.step is not None:
            since = next((moment for moment, step in self.saves() if step >= instant.step), since)
        try:
            self.process.wait(max(0.0, since + instant.delay - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Waits for the end and gives the exit status; -9 where it was killed."""
        status = self.process.wait()
        self.close()
        if status not in (0, -signal.SIGKILL):
            raise StormError(f"the job ended with exit status {status}; its log is {self.log_file}.")
        return status


def run_undisturbed(command: Sequence[str], log: Path) -> Timing:
    """Runs the job to its end and measures it."""
    job = Job(command, log)
    saves = list(job.saves())
    job.wait()
    end = time.monotonic()
    if len(saves) < 2:
        raise StormError(f"the job saved {len(saves)} checkpoints, too few to kill it between them; see {log}.")
    first, last = saves[0][0], saves[-1][0]
    return Timing(start=first - job.started, save=(last - first) / (len(saves) - 1), end=end - last)


def run_killed(command: Sequence[str], job_dir: Path, instants: Sequence[Instant], log: Path) -> int:
    """Run the job, killed once at each of `instants`, and then to its end; return the number of kills.

    If the job ends before it is killed, its directory is put back and it is killed sooner. Raise a StormError if a kill
    came too late in all attempts, or if what it left cannot be read.
    """
    landed, step = 0, -1
    for number, planned in enumerate(instants, 1):
        instant = planned
        for _ in range(_ATTEMPTS):
            if _killed(command, job_dir, instant, log):
                landed += 1
                break
            print(
                f"{number:4d}/{len(instants)}  had ended before {instant}; once more, to be killed sooner", flush=True
            )
            instant = instant.sooner()
        else:
            raise StormError(f"kill {number} of {len(instants)} did not land in {_ATTEMPTS} attempts; see {log}.")
        step = check_readable(job_dir, at_least=step)
        found = f"the checkpoint of step {step} loads" if step >= 0 else "no checkpoint yet"
        print(f"{number:4d}/{len(instants)}  killed {instant}; {found}", flush=True)
    Job(command, log).wait()
    check_readable(job_dir, at_least=step)
    return landed


def _killed(command: Sequence[str], job_dir: Path, instant: Instant, log: Path) -> bool:
    """Runs the job until `instant`; False, with `job_dir` as it was, where the job ended before."""
    before = job_dir.with_name(f"{job_dir.name}-before")
    job_dir.mkdir(exist_ok=True)
    shutil.copytree(job_dir, before)
    try:
        if Job(command, log).kill_at(instant):
            return True
        shutil.rmtree(job_dir)
        before.rename(job_dir)
        return False
    finally:
        shutil.rmtree(before, ignore_errors=True)


def check_readable(job_dir: Path, *, at_least: int) -> int:
    """Load the latest checkpoint and every export; return the checkpoint's step, or -1 if there is none yet.

    Raise a StormError if there was a checkpoint of step `at_least` before, and now there is none, or an older one.
    """
    for export in sorted((job_dir / "export" / "census").glob("[0-9]*")):
        te.ExportedModel.load(export)
    step = load_checkpoint(job_dir).step if latest_checkpoint(job_dir) is not None else -1
    if step < at_least:
        raise StormError(f"the latest checkpoint was of step {at_least}, and after the kill it is of step {step}.")
    return step


def differences(one: Checkpoint, other: Checkpoint, *, rounding: float = 0.0) -> list[str]:
    """What is not the same in two checkpoints: bit for bit, or up to a rounding of tensors."""
    found = [] if one.step == other.step else [f"step: {one.step} and {other.step}"]
    found += _tensor_differences("weights", one.variables, other.variables, rounding)
    found += _tensor_differences("optimizer state", one.slots, other.slots, rounding)
    for key in sorted(one.state.keys() | other.state.keys()):
        if one.state.get(key) != other.state.get(key):
            found.append(f"state: {key} is {one.state.get(key)!r:.200} and {other.state.get(key)!r:.200}")
    return found


def _tensor_differences(
    what: str, one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], rounding: float
) -> list[str]:
    found = [f"{what}: only one has {name}" for name in sorted(one.keys() ^ other.keys())]
    for name in sorted(one.keys() & other.keys()):
        a, b = one[name], other[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"{what}: {name} is {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}")
        elif rounding:
            largest, apart = (float(x.abs().max()) if x.numel() else 0.0 for x in (a, a.double() - b.double()))
            if not apart <= rounding * largest:
                found.append(f"{what}: values of {name}, of {largest:.3g} at most, differ by up to {apart:.3g}")
        elif a.numpy().tobytes() != b.numpy().tobytes():
            found.append(f"{what}: {int((a != b).sum())} of {a.numel()} values of {name} differ")
    return found


def evaluate(arguments: Sequence[str]) -> dict[str, Any]:
    """The metrics of the job's last checkpoint on the evaluation files."""
    args = task.parse(arguments)
    metrics = task.build_estimator(args).evaluate(lambda: task.eval_data(args), name="storm")
    return dict(metrics)


def storm(arguments: argparse.Namespace) -> list[str]:
    """Runs both jobs and gives what differs between them: nothing, if all is well."""
    work = emptied(arguments.work_dir)
    jobs = {name: _job_arguments(arguments, work / name) for name in ("undisturbed", "killed")}
    commands = {name: census_job(job) for name, job in jobs.items()}

    print(f"The undisturbed run: {arguments.steps} steps, a checkpoint every {arguments.every}.", flush=True)
    timing = run_undisturbed(commands["undisturbed"], work / "undisturbed.log")
    print(
        f"It took {timing.start:.1f} s to its first checkpoint, {timing.save:.2f} s between two, "
        f"{timing.end:.1f} s from the last one to its end. Now the run that is killed:",
        flush=True,
    )
    instants = plan(
        arguments.kills,
        steps=arguments.steps,
        every=arguments.every,
        timing=timing,
        rng=random.Random(arguments.seed),
    )
    landed = run_killed(commands["killed"], work / "killed", instants, work / "killed.log")
    print(f"{landed} of {arguments.kills} kills landed. Comparing {work}/undisturbed and {work}/killed.", flush=True)

    one, other = (load_checkpoint(work / name) for name in jobs)
    is_auto = arguments.compile == "auto"
    found = differences(one, other, rounding=_ROUNDING if is_auto else 0.0)
    if landed != arguments.kills:
        found.append(f"kills: {landed} landed, {arguments.kills} were asked for")
    first, second = (evaluate(job) for job in jobs.values())
    found += [
        f"evaluation: {name} is {first.get(name)!r} and {second.get(name)!r}"
        for name in sorted(first.keys() | second.keys())
        if not math.isclose(
            first.get(name, math.nan), second.get(name, math.nan), rel_tol=_ROUNDING_OF_METRICS if is_auto else 0.0
        )
    ]
    print(f"Evaluation: accuracy {first['accuracy']:.4f}, AUC {first['auc']:.4f}.")
    print(f"Compared {len(one.variables)} variables and {len(one.slots)} tensors of optimizer state.")
    return found


def _job_arguments(arguments: argparse.Namespace, job_dir: Path) -> list[str]:
    settings: dict[str, object] = {
        "--train-files": arguments.train_file.resolve(),
        "--eval-files": arguments.eval_file.resolve(),
        "--job-dir": job_dir,
        "--train-steps": arguments.steps,
        "--save-checkpoints-steps": arguments.every,
        "--eval-steps": 20,
        "--eval-throttle-secs": 5,
        "--compile": arguments.compile,
    }
    return words(settings)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/storm kill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kills", type=at_least(0), default=25, help="how often to kill (default: 25)")
    add("--steps", type=at_least(1), default=4000, help="training steps of each job (default: 4000)")
    add("--every", type=at_least(1), default=50, help="steps between checkpoints (default: 50)")
    add("--compile", choices=("never", "always", "auto"), default="never", help="whether both jobs compile their step")
    add("--seed", type=int, default=1, help="of the instants (default: 1)")
    add("--work-dir", type=Path, default=ROOT / "runs" / "kill-storm", help="for both jobs; emptied first")
    add_census_files(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the storm; 0 where both jobs ended the same, 1 where not."""
    args = parse(arguments)
    same = "The same up to rounding" if args.compile == "auto" else "Bit for bit the same"
    with errors.exit_on_user_error():
        return conclude_storm(partial(storm, args), f"{same}: weights, optimizer state, saved state and evaluation.")


if __name__ == "__main__":
    sys.exit(main())
