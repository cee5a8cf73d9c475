"""What has to be true of a job after a storm of faults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import torch_estimator as te
from scripts.storms.cluster import Line
from scripts.storms.job import SEEN, STEP
from torch_estimator.checkpoint.checkpoint import checkpoint_paths, load_checkpoint
from torch_estimator.summary.scalar_reader import read_scalars

_SAVING = re.compile(r"Saving checkpoints for (\d+)")
_ENDED = re.compile(r"Training ended at global step (\d+)")
_AGAIN = re.compile(r"where it stood (\d+) batches ago; these are trained on again")
_STEP = re.compile(rf"^{STEP} (\d+)")
_RESTORED = re.compile(r"restoring it from the checkpoint of global step (\d+)")
_HOLDS = re.compile(r"holds \d+ numbers, from global step (\d+) on")


@dataclass(slots=True)
class Told:
    """What the lines of a job have said.

    `saved` are the steps of checkpoints, in the order of saving, and `end` is the global step at which the chief ended.
    `again` counts batches that were said to be trained on again, and `lost` the steps lost when the first server was
    restored from a checkpoint. A worker that died together with that server reads the batches of its lost steps again.
    """

    saved: list[int] = field(default_factory=list)
    end: int | None = None
    again: int = 0
    lost: int = 0
    _reached: int = 0

    def see(self, line: Line) -> None:
        """Takes a line."""
        self.saved += map(int, _SAVING.findall(line.text))
        if restored := _RESTORED.search(line.text):
            # The newest checkpoint is of this step, so a kill has cut off what was begun after it.
            self.saved = [step for step in self.saved if step <= int(restored[1])]
        self.again += sum(map(int, _AGAIN.findall(line.text)))
        if step := _STEP.search(line.text):
            self._reached = max(self._reached, int(step[1]))
        if line.name == "ps 0" and (holds := _HOLDS.search(line.text)):
            self.lost += max(0, self._reached - int(holds[1]))
            self._reached = int(holds[1])
        ended = _ENDED.search(line.text)
        if ended and line.name == "chief 0":
            self.end = int(ended[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What was to be trained on: `count` rows, numbered from 1, each `epochs` times, in batches of `batch` rows."""

    count: int
    epochs: int
    batch: int


def problems(job_dir: Path, told: Told, rows: Rows, killed: Sequence[str], *, served: bool) -> Iterator[str]:
    """Yield a sentence for everything that does not hold of a job that has ended.

    `killed` are names of the processes that were killed. `served` says whether parameters are with servers, where
    nobody takes a step again.
    """
    yield from problems_of_checkpoints(job_dir, told)
    yield from _problems_of_exports(job_dir, told)
    yield from _problems_of_rows(job_dir, told, rows, killed, served)


def problems_of_checkpoints(job_dir: Path, told: Told) -> Iterator[str]:
    """Yield a sentence for checkpoints that do not load, or are not in the order of their steps up to the last."""
    if told.saved != sorted(told.saved):
        yield f"checkpoints were saved out of order: {told.saved}."
    steps = []
    for path in checkpoint_paths(str(job_dir)):
        try:
            steps.append(load_checkpoint(path).step)
        except te.errors.UserError as error:
            yield f"a checkpoint does not load: {error}"
    if steps != sorted(set(steps)):
        yield f"the steps of checkpoints do not ascend: {steps}."
    if told.end is None or steps[-1:] != [told.end]:
        yield f"training ended at global step {told.end}, but the checkpoints are of steps {steps}."


def _problems_of_exports(job_dir: Path, told: Told) -> Iterator[str]:
    exports = sorted((job_dir / "export" / "census").glob("[0-9]*"))
    if not exports:
        yield "there is no final export."
    for export in exports:
        try:
            te.ExportedModel.load(export)
        except te.errors.UserError as error:
            yield f"an export does not load: {error}"
    curves = read_scalars(job_dir / "eval_storm")
    evaluated = curves["loss"].steps.tolist() if "loss" in curves else []
    if told.end not in evaluated:
        yield f"the last checkpoint, of step {told.end}, was not evaluated."
    repeated = len(evaluated) - len(set(evaluated))
    if repeated:
        yield f"{repeated} evaluations were of checkpoints that were evaluated before: {evaluated}."


def _problems_of_rows(job_dir: Path, told: Told, rows: Rows, killed: Sequence[str], served: bool) -> Iterator[str]:
    times, batches = seen(job_dir / SEEN, rows.count)
    lost = int((times < rows.epochs).sum())
    if lost:
        first = int((times < rows.epochs).argmax()) + 1
        yield f"{lost} of {rows.count} rows were seen less than {rows.epochs} times, row {first} the first of them."
    again = int(times.sum()) - rows.count * rows.epochs
    print(
        f"Of {rows.count} rows in {rows.epochs} epochs, {again} were seen again; {batches} batches were computed, and "
        f"{told.end} steps taken. The log told of {told.again} batches of {rows.batch} that were trained on again, and "
        f"{told.lost} steps were lost with the first server."
    )
    if not served or told.end is None:
        return
    # Of a process that is killed, one batch may have been computed and not sent.
    unsent = sum(name.startswith(("chief", "worker")) for name in killed)
    # Each process computes its first batch again, with the rows that the model was found to look up.
    anew = sum(1 for _ in (job_dir / SEEN).iterdir())
    repeated = told.again + told.lost
    if again > rows.batch * (repeated + unsent + anew):
        yield f"{again} rows were seen again, but the log told of {repeated} batches of {rows.batch} only."
    # Servers that come back count on from the last checkpoint.
    if not any(name.startswith("ps") for name in killed) and not 0 <= batches - told.end <= unsent + anew:
        yield f"{told.end} steps were counted for {batches} batches."


def seen(folder: Path, count: int) -> tuple[np.ndarray, int]:
    """How often each row was trained on, ``[count]``, and in how many batches."""
    times, batches = np.zeros(count, np.int64), 0
    for file in folder.iterdir():
        whole = file.stat().st_size // 8 * 8
        numbers = np.frombuffer(file.read_bytes()[:whole], np.int64)
        batches += int((numbers < 0).sum())
        times += np.bincount(numbers[numbers > 0] - 1, minlength=count)
    return times, batches
