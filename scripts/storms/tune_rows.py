"""The rows of `scripts/tune-storm`: what is promised of studies under kills, pauses and many trials."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from scripts.storms.common import ROOT, StormError
from scripts.storms.job_rows import PROGRAMS, Row, cpu_secs, row
from scripts.storms.kill import differences
from scripts.storms.submitting import Jobs, is_running, wait_until
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.errors import RESTART_ME
from torch_estimator.jobs.directory import FINAL, JobDirectory, JobSpec
from torch_estimator.jobs.kinds import status_of
from torch_estimator.jobs.package import copy_package
from torch_estimator.runs.locks import Holder
from torch_estimator.tuning.directory import StudyDirectory, Trial, best_trial
from torch_estimator.tuning.job_trials import Submitted
from torch_estimator.tuning.space import Double, Space
from torch_estimator.tuning.starters import Fresh, Start
from torch_estimator.tuning.study import Study

_EVERY = 10
_SECS = 900.0

_CENSUS = """
trainingInput:
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: auc
    maxTrials: {trials}
    maxParallelTrials: {parallel}
    enableTrialEarlyStopping: true
    params:
    - {{parameterName: scale-factor, type: DOUBLE, minValue: 0.3, maxValue: 0.9}}
    - {{parameterName: embedding-size, type: INTEGER, minValue: 4, maxValue: 12}}
"""

_MANY = """
trainingInput:
  hyperparameters:
    hyperparameterMetricTag: score
    maxTrials: {trials}
    maxParallelTrials: 2
    algorithm: {algorithm}
    params:
    - {{parameterName: x, type: DOUBLE, minValue: 0, maxValue: 1}}
"""

_FORK = """
import os, sys, time
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.starters import Forked

directory = StudyDirectory(JobDirectory(*os.path.split(sys.argv[1])))
process = Forked(directory)(directory.trial(int(sys.argv[2])))
while not process.has_ended():
    time.sleep(0.01)
sys.exit(process.status)
"""


@dataclass(slots=True)
class TuneStorm:
    """What all rows use: where studies are submitted, how many kills, and the census files to train and evaluate on."""

    jobs: Jobs
    kills: int
    is_quick: bool
    rng: random.Random
    files: tuple[Path, Path]

    def census(self, steps: int) -> list[str]:
        """Return arguments of the census trainer."""
        train, evaluate = map(str, self.files)
        every = ("--save-checkpoints-steps", str(_EVERY), "--eval-steps", "5", "--eval-throttle-secs", "0")
        return ["--train-files", train, "--eval-files", evaluate, "--train-steps", str(steps), *every]


class CensusStudy:
    """A study of the census trainer, which notes its steps."""

    def __init__(self, storm: TuneStorm, name: str, parallel: int) -> None:
        self.name = name
        self.trials_count = 4 if storm.is_quick else 12
        self._jobs = storm.jobs
        self._notes = storm.jobs.folder / "notes" / name
        self.directory = StudyDirectory(storm.jobs.directory(name))
        config = storm.jobs.folder / f"{name}.yaml"
        config.write_text(_CENSUS.format(trials=self.trials_count, parallel=parallel))
        storm.jobs.submit(
            *(name, "--config", str(config), "--job-dir", str(storm.jobs.folder / "out" / name)),
            *("--module-name", "submitted.tuned", "--package-path", str(PROGRAMS), "--max-restarts", "1000"),
            *("--", "--notes", str(self._notes), *storm.census(50)),
        )

    @property
    def is_over(self) -> bool:
        return status_of(self.directory.job).state in FINAL

    def processes(self) -> list[int]:
        """Return the processes of the trials that run."""
        paths = Path(self.directory.trials_url).glob("*.lock")
        # This does not try the locks, as a controller might take this process for the trial's.
        pids = [Holder.read(str(path)).pid for path in paths]
        return [pid for pid in pids if pid is not None and is_running(pid)]

    def kill(self, kind: str) -> bool:
        """Kill the controller, one process of a trial, or both, and resume the study; return whether all were there."""
        is_whole, trials = True, self.processes()
        pids = [self._jobs.launcher(self.name)] if kind != "trial" else []
        pids += trials[-1:] if kind != "controller" else []
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                is_whole = False
        if kind == "trial":
            return is_whole and bool(trials)
        if self._jobs.wait(self.name) == "SUCCEEDED":
            return False
        self.resume()
        return is_whole and len(pids) == 1 + (kind == "both")

    def resume(self) -> None:
        """Run ``estimator jobs resume``."""
        status, _, said = self._jobs.run("resume", self.name)
        if status:
            raise StormError(f"{self.name} does not resume: {said.strip()}")

    def succeed(self) -> None:
        """Wait for the end; raise a StormError if it is not success, or if the trials are not what a study may have."""
        state = self._jobs.wait(self.name, _SECS)
        if state != "SUCCEEDED":
            raise StormError(f"{self.name} is {state}: {status_of(self.directory.job).reason}")
        trials = self.directory.trials()
        if [trial.number for trial in trials] != list(range(1, self.trials_count + 1)):
            raise StormError(f"{self.name} has the trials {[trial.number for trial in trials]}.")
        for trial in trials:
            if trial.state not in ("SUCCEEDED", "STOPPED") or len(trial.results) != len(trial.told):
                raise StormError(f"{self.name}: trial {trial.number} is {trial.state}, with {trial.results}.")
            check_steps(self.processes_of(trial), trial.step or 0, f"{self.name}, trial {trial.number}")

    def processes_of(self, trial: Trial) -> list[list[tuple[int, int]]]:
        """Return the steps of each process of a trial, each with the latest checkpoint after it, the oldest first."""
        found = []
        for path in (self._notes / str(trial.number)).glob("*.steps"):
            lines = [line.split() for line in path.read_text().splitlines()]
            found.append((int(path.name.split(".")[1]), [(int(step), int(saved)) for step, _, saved in lines]))
        return [steps for _, steps in sorted(found) if steps]

    def table(self) -> str:
        """Return what ``estimator jobs trials`` prints."""
        return self._jobs.run("trials", self.name)[1]

    def results(self) -> list[object]:
        """Return what the table rounds, and in which order the sampler was asked and told."""
        return [(one.number, one.results, one.asked, one.told) for one in self.directory.trials()]

    def best_dir(self) -> str:
        """Return the job directory of the best trial."""
        best = best_trial(self.directory.trials(), self.directory.study())
        assert best is not None
        return best.job_dir


def check_steps(processes: list[list[tuple[int, int]]], last: int, what: str) -> int:
    """Return how many steps were trained twice; raise a StormError if one is missing, or was in a checkpoint before.

    Each process has its steps, each with the step of the latest checkpoint after it.
    """
    done, saved, again = set[int](), 0, 0
    for steps in processes:
        if steps[0][0] <= saved:
            raise StormError(f"{what} trained step {steps[0][0]} again, though checkpoint {saved} was there.")
        again += sum(step in done for step, _ in steps)
        done |= {step for step, _ in steps}
        saved = max(saved, steps[-1][1])
    if done != set(range(1, max(done, default=0) + 1)) or max(done, default=0) < last:
        raise StormError(f"{what} is at step {last}, but trained {len(done)} steps up to {max(done, default=0)}.")
    return again


def _killed(storm: TuneStorm, parallel: int) -> Iterator[tuple[CensusStudy, int]]:
    """Yield studies that were killed, and how often, until there were as many kills as are asked for."""
    kinds = itertools.cycle(["trial", "controller", "both"])
    landed = 0
    while landed < storm.kills:
        study, before = CensusStudy(storm, f"killed_{parallel}_{landed}", parallel), landed
        while landed < storm.kills and not study.is_over:
            kind = next(kinds)
            # A controller is also killed while it starts, and between two trials.
            if kind != "controller" or storm.rng.random() < 0.7:
                wait_until(lambda study=study: bool(study.processes()) or study.is_over)  # type: ignore[misc]
            time.sleep(storm.rng.uniform(0.0, 2.0))
            landed += not study.is_over and study.kill(kind)
        study.succeed()
        if landed == before:
            raise StormError(f"{study.name} ended before a kill; it is too short.")
        yield study, landed - before


@row("one trial at a time, kills of controller, trial and both", "the undisturbed study's table; the best trial's bits")
def one(storm: TuneStorm) -> tuple[str, bool]:
    undisturbed = CensusStudy(storm, "undisturbed", 1)
    undisturbed.succeed()
    total = studies = 0
    for study, kills in _killed(storm, 1):
        if study.table() != undisturbed.table() or study.results() != undisturbed.results():
            raise StormError(f"{study.name} after {kills} kills:\n{study.table()}undisturbed:\n{undisturbed.table()}")
        # The weights, and all that training goes on with.
        if found := differences(load_checkpoint(undisturbed.best_dir()), load_checkpoint(study.best_dir())):
            raise StormError(f"the best trial of {study.name} after {kills} kills: {'; '.join(found)}.")
        total, studies = total + kills, studies + 1
    return f"{total} kills in {studies} studies; table and bits are the same", True


@row("two trials at a time, the same kills", "each trial once; no step in a checkpoint trained again")
def two(storm: TuneStorm) -> tuple[str, bool]:
    total = trials = steps = again = 0
    for study, kills in _killed(storm, 2):
        for trial in study.directory.trials():
            processes = study.processes_of(trial)
            steps += sum(map(len, processes))
            again += check_steps(processes, trial.step or 0, study.name)
        total, trials = total + kills, trials + study.trials_count
    return f"{total} kills, {trials} trials; of {steps} steps {again} were lost with their process", True


@row("pause at every rung: started fresh, forked, and as a job", "the bits of the undisturbed trial")
def pauses(storm: TuneStorm) -> tuple[str, bool]:
    rungs = [10] if storm.is_quick else [10, 20, 30, 40, 50]
    steps, count = (20 if storm.is_quick else 60), 0
    plain = _study(storm, "plain", "examples.census.trainer.task", ROOT / "examples", storm.census(steps))
    notes = str(storm.jobs.folder / "notes" / "paced")
    # The study looks at a job every half a second.
    slowly = ["--notes", notes, "--pace", "0.1", *storm.census(steps)]
    paced = _study(storm, "paced", "submitted.tuned", PROGRAMS, slowly)
    for compile in [False] if storm.is_quick else [False, True]:
        ways: dict[str, tuple[StudyDirectory, Callable[[Trial], int | None], list[int]]] = {
            "undisturbed": (plain, partial(_started, Fresh(plain, os.environ)), []),
            "forked": (plain, partial(_forked, plain), rungs),
        }
        if not storm.is_quick:
            ways["fresh"] = plain, partial(_started, Fresh(plain, os.environ)), rungs
            ways["job"] = paced, partial(_started, Submitted(paced, [])), rungs[::2]
        dirs = {}
        for number, (way, (directory, run, pauses_at)) in enumerate(ways.items(), 1 + len(ways) * compile):
            dirs[way] = _run(directory, run, number, compile, pauses_at)
            count += len(pauses_at)
        for way, found in dirs.items():
            if there := differences(load_checkpoint(dirs["undisturbed"]), load_checkpoint(found)):
                raise StormError(f"{way}, compile={compile}: {'; '.join(there)}.")
    return f"{count} pauses, {'compile False' if storm.is_quick else 'compile False and True'}; the same bits", True


def _study(storm: TuneStorm, name: str, module: str, package: Path, arguments: list[str]) -> StudyDirectory:
    """Make the directory of a study whose trials the storm starts itself."""
    job = JobDirectory(str(storm.jobs.folder / "jobs"), name)
    job.create()
    copy_package(package, job)
    study = Study(space=Space((Double("scale-factor", 0.3, 0.9),)), metric="auc", early_stopping=True)
    job.write(
        JobSpec(
            name=name,
            created=time.time(),
            target="local",
            module_name=module,
            folder=str(storm.jobs.folder),
            arguments=arguments,
            package=package.name,
            interpreter=sys.executable,
            settings={"kind": "local"},
            study=asdict(study),
        )
    )
    return StudyDirectory(job)


def _started(start: Start, trial: Trial) -> int | None:
    """Start the process of a trial, and wait for it; return its exit status."""
    process = start(trial)
    wait_until(process.has_ended, _SECS)
    return process.status


def _forked(directory: StudyDirectory, trial: Trial) -> int:
    """Fork a trial from a process that, unlike this one, has not imported the program; return its exit status."""
    return subprocess.run([sys.executable, "-c", _FORK, directory.job.url, str(trial.number)]).returncode


def _run(
    directory: StudyDirectory, run: Callable[[Trial], int | None], number: int, compile: bool, pauses_at: list[int]
) -> str:
    """Run a trial that pauses at some steps; return its job directory."""
    job_dir = directory.path(number)
    for starts, rung in enumerate([*pauses_at, None], 1):
        trial = Trial(
            number=number,
            parameters={"scale-factor": "0.5"},
            job_dir=job_dir,
            compile=compile,
            threads=1,
            pauses_at=rung,
            starts=starts,
            began=time.time(),
        )
        directory.write(trial)
        status = run(trial)
        if status != (0 if rung is None else RESTART_ME):
            said = Path(directory.log(number)).read_text()[-1000:]
            raise StormError(f"trial {number}, which was to pause at {rung}, has status {status}: {said}")
    return job_dir


def many(storm: TuneStorm) -> Iterator[Row]:
    """Two rows: random values, and those of Optuna."""
    for who, algorithm in (("random", "RANDOM_SEARCH"), ("Optuna", "ALGORITHM_UNSPECIFIED")):
        yield from _of_many(who, algorithm)(storm)


def _of_many(who: str, algorithm: str) -> Callable[[TuneStorm], Iterator[Row]]:
    @row(f"500 trials, {who}: CPU time of the controller for each; its memory", "50 ms; + 10 % from trial 100 to 500")
    def measure(storm: TuneStorm) -> tuple[str, bool | None]:
        first, last = (5, 20) if storm.is_quick else (100, 500)
        name = f"many_{who}"
        config = storm.jobs.folder / f"{name}.yaml"
        config.write_text(_MANY.format(trials=last, algorithm=algorithm))
        own = ("--config", str(config), "--module-name", "submitted.score", "--package-path", str(PROGRAMS))
        storm.jobs.submit(name, *own)
        pid, job = storm.jobs.launcher(name), storm.jobs.directory(name)
        trials = Path(StudyDirectory(job).trials_url)
        # With the second trial all is imported.
        before, memory = 0.0, dict[int, float]()
        for number in (2, first, last):
            path = trials / f"{number}.json"
            wait_until(lambda path=path: path.exists() or status_of(job).state in FINAL, _SECS)  # type: ignore[misc]
            before, memory[number] = (cpu_secs(pid) if number == 2 else before), _resident_mb(pid)
        used = 0.0
        # Its process is gone a moment after its end.
        with contextlib.suppress(FileNotFoundError):
            while is_running(pid):
                used = cpu_secs(pid)
                time.sleep(0.005)
        if (state := storm.jobs.wait(name)) != "SUCCEEDED":
            raise StormError(f"{name} is {state}: {status_of(job).reason}")
        millis = 1000 * (used - before) / (last - 1)
        grown = memory[last] / memory[first] - 1
        told = f"{millis:.0f} ms, and {before:.1f} s before; {memory[first]:.0f} MB, {100 * grown:+.1f} %"
        return told, None if storm.is_quick else millis <= 50 and grown <= 0.1

    return measure


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


ROWS: dict[str, Callable[[TuneStorm], Iterator[Row]]] = {"one": one, "two": two, "pauses": pauses, "many": many}
