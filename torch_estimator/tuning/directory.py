"""A study on disk: a job whose directory has, beside what every job has, files for each trial.

    JOBS/NAME/trials/3.json      trial 3, a `Trial`, which only the controller writes
    JOBS/NAME/trials/3.lock      locked by the process of trial 3 while it lives, which it names
    JOBS/NAME/trials/3.end       how that process ended, an `End`, which it writes itself
    JOBS/NAME/trials/3.shape     whether its training step is compiled, a `Shape`, which it writes itself
    JOBS/NAME/trials/3.metrics   what the program reported with cloudml-hypertune
    JOBS/NAME/trials/3/          its output, where the job has no directory for it
    JOBS/NAME/logs/trial-3.raw.log  what it printed
    JOBS/NAME/requests/          what people ask of the controller; see `torch_estimator.tuning.requests`
    JOBS/NAME/optuna.journal     copy of the trials for optuna-dashboard
    JOBS/NAME/controller.lock    locked by the controller, which it names
    JOBS/NAME/imported.json      modules of libraries that trials have imported, for the controller to import them once

Controller and trials share nothing else, so that each can be killed and started again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.jobs.logs import RAW_SUFFIX
from torch_estimator.runs.locks import FileLock, Holder
from torch_estimator.runs.state_file import StateFile, from_json
from torch_estimator.tuning.study import Study

_EXPORT = re.compile(r"((?:.*/)?export/[^/]+/(\d+))/")

TrialState = Literal["RUNNING", "PAUSED", "SUCCEEDED", "STOPPED", "FAILED"]


@dataclass(slots=True, kw_only=True)
class Trial:
    """A trial, as ``trials/N.json`` has it.

    Attributes:
        number: Its number, from 1 on.
        parameters: Values of the parameters as texts.
        job_dir: Its job directory.
        compile: What ``compile="auto"`` means in it, if that does not depend on its `Shape`.
        threads: On how many threads it computes.
        state: RUNNING also where its process has died and is to be started again, PAUSED at a rung, and at the end
            SUCCEEDED, STOPPED (it paused and was not promoted, or somebody stopped it) or FAILED.
        by_hand: What somebody asked of it last, and holds on: a trial that was asked to STOP or PAUSE is not promoted
            by itself, and one that was asked to PROMOTE waits for a place.
        asked: Place of its parameters in the order of what was asked of the sampler and told to it.
        told: Place of its results in that order.
        rung: Rung that it was last sent to, from 0 on.
        pauses_at: Step of that rung; None if it runs to its own end.
        results: Step and value at each rung that it has reached, and at its end.
        starts: How often a process was started for it.
        restarts: How often it died since it last reached a rung.
        began: When it was first started, in seconds since 1970.
        ended: When it last paused or ended.
        reason: Why it failed, or was ended before a rung, in a sentence.
    """

    number: int
    parameters: dict[str, str]
    job_dir: str
    compile: bool | None
    threads: int
    state: TrialState = "RUNNING"
    by_hand: Literal["", "STOP", "PAUSE", "PROMOTE"] = ""
    asked: int = 0
    told: list[int] = field(default_factory=list)
    rung: int = 0
    pauses_at: int | None = None
    results: list[tuple[int, float]] = field(default_factory=list)
    starts: int = 0
    restarts: int = 0
    began: float = 0.0
    ended: float = 0.0
    reason: str = ""

    @property
    def value(self) -> float | None:
        """The metric at the last rung or the end; None before."""
        return self.results[-1][1] if self.results else None

    @property
    def step(self) -> int | None:
        """The step of the value."""
        return self.results[-1][0] if self.results else None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the process of a trial ended: in which of the trial's starts, with which exit status, and where it paused."""

    start: int
    status: int
    paused_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a trial computes in each step.

    Attributes:
        key: Cache key of its training step. Trials with equal keys share the compiled step.
        is_compiled: What ``compile="auto"`` means in the trial.
        python_secs: Seconds that its steps have taken in Python.
    """

    key: str
    is_compiled: bool
    python_secs: float = 0.0


class StudyDirectory:
    """The directory of a job that is a study."""

    def __init__(self, job: JobDirectory) -> None:
        self.job = job
        self.trials_url = files.join(job.url, "trials")

    def study(self) -> Study:
        """Return what was asked for; raise an InvalidValueError if the job is no study."""
        asked = self.job.spec().study
        if asked is None:
            raise InvalidValueError(f"job {self.job.name} is no study, so that it has no trials.")
        study: Study = from_json(Study, asked)
        return study

    def trial(self, number: int) -> Trial:
        """Return a trial that there is."""
        trial = self._trial(number).read()
        if trial is None:
            raise InvalidValueError(f"study {self.job.name} has no trial {number}.")
        return trial

    def trials(self) -> list[Trial]:
        """Return all trials, by number."""
        return [self.trial(number) for number in self.numbers()]

    def numbers(self) -> list[int]:
        """Return the numbers of all trials, ascending."""
        stems = (name.removesuffix(".json") for name in files.listdir(self.trials_url) if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def states(self, trials: Iterable[Trial], *, is_over: bool) -> list[str]:
        """Return states to be shown: INTERRUPTED of a trial without a process whose study has ended before it."""
        is_shown = is_over and self.study().target is None
        return [
            "INTERRUPTED" if is_shown and one.state == "RUNNING" and self.holder(one.number) is None else one.state
            for one in trials
        ]

    def write(self, trial: Trial) -> None:
        """Write a trial."""
        self._trial(trial.number).write(trial)

    def log(self, number: int) -> str:
        """Return the path of the log of a trial, which its process writes."""
        return files.join(self.job.logs, f"trial-{number}{RAW_SUFFIX}")

    def trial_job(self, number: int) -> JobDirectory:
        """Return the directory of a trial that is a job of its own."""
        return JobDirectory(files.join(self.job.url, "jobs"), f"{self.job.name}_{number}")

    def path(self, number: int, suffix: str = "") -> str:
        """Return the path of a trial's directory, or of its file with a suffix such as ``.lock``."""
        return files.join(self.trials_url, f"{number}{suffix}")

    def shape(self, number: int) -> StateFile[Shape]:
        """Return the file that says whether the training step of a trial is compiled."""
        return StateFile(self.path(number, ".shape"), Shape)

    @property
    def imported(self) -> str:
        """Path of the file with the modules that trials have imported."""
        return files.join(self.job.url, "imported.json")

    def end(self, number: int) -> StateFile[End]:
        """Return the file with which the process of a trial says how it ended."""
        return StateFile(self.path(number, ".end"), End)

    def holder(self, number: int) -> Holder | None:
        """Return the process of a trial that runs; None if none runs."""
        with contextlib.suppress(BlockingIOError):
            FileLock(self.path(number, ".lock")).release()
            return None
        return Holder.read(self.path(number, ".lock"))

    def _trial(self, number: int) -> StateFile[Trial]:
        return StateFile(self.path(number, ".json"), Trial, error=InvalidValueError, cure="remove it")


def newest_export(job_dir: str) -> str | None:
    """Return the directory of the newest export of a trial; None if it has none."""
    found = (_EXPORT.match(name) for name in files.all_files(job_dir))
    exports = {match[1]: int(match[2]) for match in found if match}
    newest = max(exports, key=lambda name: exports[name], default=None)
    return None if newest is None else files.join(job_dir, newest)


def best_trial(trials: list[Trial], study: Study) -> Trial | None:
    """Return the trial with the best value, of equal ones the first; None if none has a value. NaN is the worst.

    Trials that have run to their end come before those that paused.
    """
    there = [one for one in trials if one.value is not None and one.state == "SUCCEEDED"]
    there = there or [one for one in trials if one.value is not None and one.state != "FAILED"]
    return min(there, key=lambda one: (rank(one.value or 0.0, study), one.number), default=None)


def rank(value: float, study: Study) -> tuple[bool, float]:
    """Return a key by which better values come first."""
    is_nan = value != value
    return is_nan, 0.0 if is_nan else -value if study.goal == "MAXIMIZE" else value
