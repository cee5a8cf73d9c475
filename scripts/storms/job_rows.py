"""The rows of `scripts/job-storm`: what is promised of jobs, each with what does it and looks at what became of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scripts.storms.common import ROOT, StormError
from scripts.storms.kill import differences
from scripts.storms.places import Place, slurm_cluster
from scripts.storms.submitting import Jobs, is_running, launcher_process, role_processes, wait_until
from torch_estimator.checkpoint.checkpoint import latest_checkpoint, load_checkpoint
from torch_estimator.jobs.directory import FINAL
from torch_estimator.jobs.kinds import status_of

SERVED = ("--scale-tier", "CUSTOM", "--worker-count", "1", "--parameter-server-count", "1")
IN_STEP = ("--scale-tier", "CUSTOM", "--worker-count", "1", "--evaluator-count", "0")

PROGRAMS = Path(__file__).parent / "submitted"
_LINE = re.compile(r"line (\d+) (\d+) x+ end")
_TIMES = 5
_LEFT_SECS = 30.0
_START_BARS = {"local": 1.0, "slurm": 4.0, "ray": 4.0, "kubernetes": 3.0}
# The line of Google's article, but for its paths.
_GOOGLE = (
    "submit training census_1 --scale-tier SCALE_TIER_STANDARD_1 --runtime-version 1.4 --job-dir {job_dir} "
    "--module-name trainer.task --package-path trainer/ --region us-central1 -- --train-steps 5000 "
    "--train-files {train} --eval-files {eval}"
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `holds` is None where nothing was judged."""

    what: str
    measured: str
    bar: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "DOES NOT HOLD", None: "not judged"}[self.holds]


@dataclass(slots=True)
class Storm:
    """What all rows use: where jobs are submitted, how often, and the census files to train and evaluate on."""

    jobs: Jobs
    target: str
    place: Place
    rounds: int
    is_quick: bool
    rng: random.Random
    files: tuple[Path, Path]
    count: int = 0

    def trial(self, program: str, options: tuple[str, ...], *arguments: object, on: str = "storm") -> Trial:
        """Submit one of our programs."""
        self.count += 1
        return Trial(self, f"{program}_{self.count}", program, options, arguments, on)

    def judged(self, holds: bool) -> bool | None:
        """Return a judgement of times; None in a quick run, which is too short for it."""
        return None if self.is_quick else holds


class Trial:
    """A job with one of our programs, and what that notes of itself."""

    def __init__(
        self, storm: Storm, name: str, program: str, options: tuple[str, ...], arguments: tuple[object, ...], on: str
    ) -> None:
        self._jobs = storm.jobs
        self.name = name
        self.module = f"submitted.{program}"
        self.notes = storm.jobs.folder / "notes" / name
        self.notes.mkdir(parents=True)
        self.out = storm.jobs.folder / "out" / name
        self.job = storm.jobs.directory(name)
        own = ("--on", on, "--module-name", self.module, "--package-path", str(PROGRAMS), *options)
        job_dir = ("--job-dir", str(self.out)) if program == "steps" else ()
        storm.jobs.submit(name, *own, *job_dir, "--", "--notes", str(self.notes), *map(str, arguments))

    def processes(self) -> dict[str, int]:
        """Return the processes of the roles."""
        return {role: pid for role, (pid, _) in role_processes(self.job, self.module).items()}

    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of the roles, as those that run were told them; only jobs see the names of nodes."""
        configs = [config for _, config in role_processes(self.job, self.module).values()]
        addresses = [one for config in configs[:1] for each in config["cluster"].values() for one in each]
        split = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in addresses)]
        return [(host if host[0].isdigit() else "localhost", port) for host, port in split]

    def steps(self, role: str = "chief-0") -> list[list[tuple[int, float]]]:
        """Return the steps and their times of each process of a role, the oldest first."""
        found = []
        for path in self.notes.glob(f"{role}.*.steps"):
            lines = (line.split() for line in path.read_text().splitlines())
            found.append([(int(step), float(at)) for step, at in lines])
        return sorted(filter(None, found), key=lambda one: one[0][1])

    def last_step(self) -> int:
        """Return the last step that the chief has taken, 0 if none."""
        return max((step for one in self.steps() for step, _ in one), default=0)

    def wait_for_step(self, step: int) -> None:
        """Wait until the chief has taken a step; raise a StormError if the job ends before."""
        wait_until(lambda: self.last_step() >= step or status_of(self.job).state in FINAL)
        if self.last_step() < step:
            raise StormError(f"{self.name} {self.end()} at step {self.last_step()}, and {step} was to come.")

    def printed(self, role: str) -> dict[str, int]:
        """Return how many lines each process of a role has printed at least, by its id."""
        paths = [path for path in self.notes.glob(f"{role}.*") if path.suffix[1:].isdigit()]
        return {path.suffix[1:]: int.from_bytes(path.read_bytes(), "little") for path in paths}

    def end(self, secs: float = 120.0) -> str:
        """Wait for the end; return the state and, unless the job SUCCEEDED, the reason."""
        state = self._jobs.wait(self.name, secs)
        return state if state == "SUCCEEDED" else f"{state} ({status_of(self.job).reason})"

    def succeed(self) -> None:
        """Wait for the end; raise a StormError if it is not success."""
        if (state := self.end()) != "SUCCEEDED":
            raise StormError(f"{self.name} is {state}.")

    def restarted(self) -> list[str]:
        """Return the roles that were started again, in that order."""
        return [event.role for event in self.job.events() if event.kind == "restarted"]

    def check_lines(self, *, may_lack_last: bool = False) -> int:
        """Return the number of numbered lines in the logs; raise a StormError if one is missing, twice, or torn.

        Of a launcher that was killed, the logs may lack the last lines of each process.
        """
        total = 0
        for role in sorted({path.name.partition(".")[0] for path in self.notes.glob("*.*")}):
            try:
                total += lines_of(self._jobs.log(self.name, role), self.printed(role), may_lack_last)
            except StormError as error:
                raise StormError(f"{self.name}: the log of {role} has {error}") from error
        return total


def lines_of(log: str, printed: Mapping[str, int], may_lack_last: bool = False) -> int:
    """Return the number of numbered lines in a log, given how many each process has printed at least.

    Raise a StormError if one is missing, twice, or torn; the last ones of each process may be missing if so said.
    """
    numbers: dict[str, list[int]] = {pid: [] for pid in printed}
    for line in log.splitlines():
        if match := _LINE.fullmatch(line):
            numbers.setdefault(match[1], []).append(int(match[2]))
        elif "xxx" in line:
            raise StormError(f"a torn line, {line!r:.200}.")
    for pid, found in numbers.items():
        most = printed.get(pid, 0)
        # A kill may come between a line and the note of it.
        is_enough = may_lack_last or len(found) >= most
        if found != list(range(len(found))) or len(found) > most + 1 or not is_enough:
            raise StormError(f"{len(found)} lines, {len(set(found))} of them different, of {most} of process {pid}.")
    return sum(map(len, numbers.values()))


Rows = Callable[[Storm], Iterator[Row]]
AnyStorm = TypeVar("AnyStorm")


def row(
    what: str, bar: str
) -> Callable[[Callable[[AnyStorm], tuple[str, bool | None]]], Callable[[AnyStorm], Iterator[Row]]]:
    """Make a row of a function that returns what it measured and whether that holds; a StormError does not hold."""

    def decorated(measure: Callable[[AnyStorm], tuple[str, bool | None]]) -> Callable[[AnyStorm], Iterator[Row]]:
        @functools.wraps(measure)
        def rows(storm: AnyStorm) -> Iterator[Row]:
            try:
                measured, holds = measure(storm)
            except (StormError, AssertionError) as error:
                measured, holds = str(error), False
            yield Row(what, measured, bar, holds)

        return rows

    return decorated


@row("census, and a program without torch_estimator, in one command line each", "SUCCEEDED; the export is there")
def programs(storm: Storm) -> tuple[str, bool]:
    out = storm.jobs.folder / "out" / "census"
    train, evaluate = map(str, storm.files)
    storm.jobs.submit(
        *("census", "--on", "storm", "--module-name", "examples.census.trainer.task"),
        *("--package-path", str(ROOT / "examples"), "--job-dir", str(out), *(() if storm.is_quick else SERVED)),
        *("--", "--train-steps", "100" if storm.is_quick else "1000", "--train-files", train, "--eval-files", evaluate),
    )
    lines = storm.trial("lines", ())
    states = [storm.jobs.wait("census", 600.0), lines.end()]
    lines.check_lines()
    exports = len(list((out / "export" / "census").glob("[0-9]*")))
    return f"{' and '.join(states)}; {exports} export", states == ["SUCCEEDED"] * 2 and exports == 1


@row("worker, server and evaluator killed once each, at random steps", "only that process replaced; every line once")
def kills(storm: Storm) -> tuple[str, bool]:
    lines = landed = 0
    for _ in range(storm.rounds):
        trial = storm.trial("steps", SERVED)
        roles = ["worker-0", "ps-0", "evaluator-0"]
        wait_until(lambda trial=trial: _is_well(trial) or status_of(trial.job).state in FINAL)  # type: ignore[misc]
        storm.rng.shuffle(roles)
        for role in roles:
            trial.wait_for_step(trial.last_step() + storm.rng.randrange(1, 100))
            _kill_one(trial, role)
            landed += 1
        (trial.notes / "enough").touch()
        trial.succeed()
        if trial.restarted() != roles:
            raise StormError(f"{trial.name}: {roles} were killed, and {trial.restarted()} were started again.")
        if (count := storm.jobs.log(trial.name, "ps-0").count("listens on")) != 2:
            raise StormError(f"{trial.name}: the log of ps-0 tells of {count} starts.")
        lines += trial.check_lines()
    return f"{landed} of {3 * storm.rounds} kills, {lines} lines", landed == 3 * storm.rounds


def _is_well(trial: Trial) -> bool:
    """Return whether all four roles are at work."""
    trained = all(trial.steps(role) for role in ("chief-0", "worker-0"))
    return trained and any(trial.printed("evaluator-0").values()) and len(trial.processes()) == 4


def _kill_one(trial: Trial, role: str) -> None:
    """Kill a role of a job that is well, wait until it is again, and see that no other process was replaced."""
    before, steps, printed = trial.processes(), len(trial.steps(role)), len(trial.printed(role))
    os.kill(before[role], signal.SIGKILL)
    # The first process that takes its place may not be the last one.
    wait_until(lambda: trial.processes().get(role, before[role]) != before[role])
    at = trial.last_step()

    def is_back() -> bool:
        if role == "ps-0":
            return trial.last_step() > at + 5
        return len(trial.steps(role)) > steps if role == "worker-0" else len(trial.printed(role)) > printed

    wait_until(lambda: (is_back() and _is_well(trial)) or status_of(trial.job).state in FINAL)
    after = trial.processes()
    if {one for one in before if before[one] != after.get(one)} != {role}:
        raise StormError(f"{trial.name}: {role} was killed, the processes were {before}, and then {after}.")
    wait_until(lambda: trial.restarted()[-1:] == [role])


@row("chief killed", "the same bits as undisturbed")
def chief(storm: Storm) -> tuple[str, bool]:
    return _compared(storm, lambda trial: os.kill(trial.processes()["chief-0"], signal.SIGKILL))


@row("launcher killed, then jobs resume", "no role left, FAILED; then the same bits as undisturbed")
def launcher(storm: Storm) -> tuple[str, bool]:
    def kill(trial: Trial) -> None:
        pid = launcher_process(trial.job)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        state = trial.end()
        if not state.startswith("FAILED") or "jobs resume" not in state:
            raise StormError(f"{trial.name} is {state}.")
        wait_until(lambda: not trial.processes(), _LEFT_SECS)
        status, _, said = storm.jobs.run("resume", trial.name)
        if status:
            raise StormError(f"{trial.name} does not resume: {said.strip()}")

    return _compared(storm, kill, may_lack_last=True)


@row("launcher killed", "no role is replaced; every line once; the same bits as undisturbed")
def follower(storm: Storm) -> tuple[str, bool]:
    def kill(trial: Trial) -> None:
        before, pid = trial.processes(), launcher_process(trial.job)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        trial.wait_for_step(trial.last_step() + 3)
        # This starts a launcher again.
        status_of(trial.job)
        if trial.processes() != before:
            raise StormError(f"{trial.name}: the processes were {before}, and then {trial.processes()}.")

    return _compared(storm, kill)


def _compared(storm: Storm, disturb: Callable[[Trial], None], *, may_lack_last: bool = False) -> tuple[str, bool]:
    """Compare jobs that were disturbed at a random step with one that was not, by their last checkpoints."""
    steps, every = (60, 10) if storm.is_quick else (200, 10)
    settings = ("--steps", steps, "--every", every, "--pace", 0.02)
    undisturbed = storm.trial("steps", IN_STEP, *settings)
    undisturbed.succeed()
    times, at = min(storm.rounds, 3), []
    for _ in range(times):
        trial = storm.trial("steps", IN_STEP, *settings)
        step = storm.rng.randrange(2, steps - 20)
        trial.wait_for_step(step)
        at.append(trial.last_step())
        disturb(trial)
        trial.succeed()
        if found := differences(load_checkpoint(undisturbed.out), load_checkpoint(trial.out)):
            raise StormError(f"{trial.name}, disturbed at step {step}: {'; '.join(found)}.")
        trial.check_lines(may_lack_last=may_lack_last)
    return f"{times} of {times} the same, at steps {', '.join(map(str, at))}", True


@row("Slurm's time limit, twice", "steps done twice: 0; the next step within 15 s")
def limit(storm: Storm) -> tuple[str, bool]:
    with Path("estimator.toml").open("a") as table:
        table.write('[targets.limited]\nkind = "slurm"\nnodes = 2\ntime = "1"\noptions = ["--signal=B:TERM@20"]\n')
    trial = storm.trial("steps", IN_STEP, "--every", 1000, on="limited")
    wait_until(lambda: len(trial.steps()) == 3 or status_of(trial.job).state in FINAL, 400.0)
    (trial.notes / "enough").touch()
    trial.succeed()
    parts = trial.steps()
    again = sum(len(part) for part in parts) - len({step for part in parts for step, _ in part})
    follows = all(later[0][0] == before[-1][0] + 1 for before, later in itertools.pairwise(parts))
    secs = [later[0][1] - before[-1][1] for before, later in itertools.pairwise(parts)]
    trial.check_lines()
    told = f"told at steps {', '.join(str(part[-1][0]) for part in parts[:-1])}; {again} twice; the next step after "
    return f"{told}{_listed(secs)} s{_load()}", len(parts) == 3 and follows and not again and max(secs) <= 15.0


@row("cancel at random moments", f"the last step's checkpoint; nothing left after {_LEFT_SECS:g} s")
def cancel(storm: Storm) -> tuple[str, bool]:
    saved, worst = 0, (0.0, "")
    for number in range(storm.rounds):
        trial = storm.trial("steps", IN_STEP, "--every", 1000)
        # Half of them while the job starts, and half while it trains.
        is_early, secs = number % 2 == 1, storm.rng.uniform(0.0, 4.0)
        addresses = list[tuple[str, int]]()
        moment: float | None = None
        while moment is None or time.monotonic() < moment:
            if moment is None and (is_early or trial.last_step() or status_of(trial.job).state in FINAL):
                moment = time.monotonic() + secs
            addresses = addresses or trial.addresses()
            time.sleep(0.05)
        pids = list(trial.processes().values())
        status, _, said = storm.jobs.run("cancel", trial.name)
        if status:
            raise StormError(f"{trial.name} cannot be cancelled: {said.strip()}")
        began = time.monotonic()
        if not (state := trial.end()).startswith("CANCELLED"):
            raise StormError(f"{trial.name} was cancelled, and is {state}.")
        # What was left at the last look but one says what took so long.
        left, secs = "", 0.0
        while (found := _left(storm, trial, pids, addresses)) and secs < _LEFT_SECS:
            time.sleep(0.05)
            left, secs = ", ".join(found), time.monotonic() - began
        if found:
            raise StormError(f"{trial.name} leaves {left}.")
        worst = max(worst, (secs, left))
        last, path = trial.last_step(), latest_checkpoint(trial.out)
        step = load_checkpoint(trial.out).step if path is not None else 0
        if step != last:
            raise StormError(f"{trial.name} ended at step {last}, and its last checkpoint is of step {step}.")
        saved += last > 0
        trial.check_lines()
    took = f"at most {worst[0]:.1f} s (for {worst[1]})" if worst[1] else "nothing left at once"
    return f"{storm.rounds} of {storm.rounds}, {saved} after a step; {took}", True


def _left(storm: Storm, trial: Trial, pids: list[int], addresses: list[tuple[str, int]]) -> list[str]:
    """Return what is left of a job that has ended."""
    found = [f"{role} ({pid})" for role, pid in trial.processes().items()]
    found += [f"process {pid}" for pid in pids if is_running(pid)]
    if (pid := launcher_process(trial.job)) is not None and is_running(pid):
        found.append("the launcher")
    for address in addresses:
        with contextlib.suppress(OSError), socket.create_connection(address, 1.0):
            found.append(f"port {address[1]}")
    return found + storm.place.left()


@row("status 2 of a role", "FAILED within 10 s; describe has its sentence")
def status(storm: Storm) -> tuple[str, bool]:
    options = ("--scale-tier", "CUSTOM", "--worker-count", "2", "--evaluator-count", "0")
    trial = storm.trial("lines", options, "--roles", 3, "--fails", "worker-1")
    state = trial.end()
    secs = trial.job.events()[-1].time - float((trial.notes / "worker-1.ended").read_text())
    said = storm.jobs.describe(trial.name)["roles"]["worker-1"]["reason"]
    trial.check_lines()
    holds = state.startswith("FAILED") and said == "error: worker-1 cannot go on; mend its input." and secs <= 10.0
    return f"{state[:6]} after {secs:.1f} s; {said!r}", holds


@row("submit to first step, over estimator local train", "local + 1 s, Slurm and Ray + 4 s, Kubernetes + 3 s")
def start(storm: Storm) -> tuple[str, bool | None]:
    times = 1 if storm.is_quick else _TIMES
    secs: dict[str, list[float]] = {"submit": [], "local": []}
    for _ in range(times):
        for how, found in secs.items():
            found.append(_first_step_secs(storm, how))
    # The load of the machine may change from pair to pair.
    extra = statistics.median(one - other for one, other in zip(*secs.values(), strict=True))
    told = f"+ {extra:.2f} s: {_listed(secs['submit'])} s, local train {_listed(secs['local'])} s{_load()}"
    return told, storm.judged(extra <= _START_BARS[storm.target])


def _first_step_secs(storm: Storm, how: str) -> float:
    """Run a short training by a command of its own; return the time from the command to its first step."""
    storm.count += 1
    name = f"start_{storm.count}"
    notes = storm.jobs.folder / "notes" / name
    notes.mkdir(parents=True)
    own = ("--module-name", "submitted.steps", "--package-path", str(PROGRAMS))
    program = ("--job-dir", str(storm.jobs.folder / "out" / name), "--", "--notes", str(notes), "--steps", "3")
    words: tuple[str, ...]
    if how == "submit":
        words = ("jobs", "submit", "training", name, "--on", "storm", *own, *IN_STEP, *program)
    else:
        words = ("local", "train", *own, "--distributed", "--worker-count", "1", *program)
    began = time.time()
    done = subprocess.run([sys.executable, "-m", "torch_estimator.cli", *words], capture_output=True, text=True)
    if done.returncode:
        raise StormError(f"{how} ended with status {done.returncode}: {done.stderr[-300:]}")
    if how == "submit" and (state := storm.jobs.wait(name)) != "SUCCEEDED":
        raise StormError(f"{name} is {state}.")
    (steps,) = notes.glob("chief-0.*.steps")
    return float(steps.read_text().split()[1]) - began


@row("scripts/slurm-cluster, from unpacked packages to four idle nodes", "3 s")
def cluster(storm: Storm) -> tuple[str, bool | None]:
    secs = []
    for number in range(1 if storm.is_quick else _TIMES):
        began = time.monotonic()
        with slurm_cluster(storm.jobs.folder / f"cluster{number}"):
            secs.append(time.monotonic() - began)
    return f"{_listed(secs)} s{_load()}", storm.judged(statistics.median(secs) <= 3.0)


def load(storm: Storm) -> Iterator[Row]:
    """Two rows: a rate at which the launcher has to be idle nearly, and one at which nothing may be lost."""
    yield from _of_rate(500, "every line once; launcher at most 10 % of a core", 10.0)(storm)
    yield from _of_rate(5000, "every line once", None)(storm)


def _of_rate(rate: int, bar: str, most: float | None) -> Rows:
    @row(f"8 roles, {rate} lines a second each for 20 s", bar)
    def measure(storm: Storm) -> tuple[str, bool | None]:
        secs = 2 if storm.is_quick else 20
        options = ("--scale-tier", "CUSTOM", "--worker-count", "7", "--evaluator-count", "0")
        trial = storm.trial("lines", options, "--roles", 8, "--rate", rate, "--lines", rate * secs)
        wait_until(lambda: len(list(trial.notes.glob("*.began"))) == 8)
        pid = launcher_process(trial.job)
        assert pid is not None
        used, began = cpu_secs(pid), time.monotonic()
        wait_until(lambda: any(trial.notes.glob("*.ended")), 60.0 * secs)
        percent = 100.0 * (cpu_secs(pid) - used) / (took := time.monotonic() - began)
        state, lines = trial.end(600.0), trial.check_lines()
        told = f"{state}, {lines} lines in {took:.0f} s, launcher {percent:.1f} % of a core{_load()}"
        is_whole = state == "SUCCEEDED" and lines == 8 * rate * secs
        is_idle = most is None or storm.is_quick or percent <= most
        return told, is_whole and is_idle

    return measure


def cpu_secs(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@row("jobs list of 1,000 jobs, beyond estimator --help", "0.3 s")
def listing(storm: Storm) -> tuple[str, bool | None]:
    trial = storm.trial("lines", ())
    trial.succeed()
    folder = storm.jobs.folder / "thousand"
    for number in range(1000):
        copy = folder / f"job_{number}"
        shutil.copytree(trial.job.url, copy, ignore=shutil.ignore_patterns("package", "logs"))
        text = (copy / "job.json").read_text()
        (copy / "job.json").write_text(text.replace(f'"{trial.name}"', f'"job_{number}"'))
    secs: dict[str, list[float]] = {"jobs list --jobs thousand": [], "--help": []}
    for _ in range(1 if storm.is_quick else _TIMES):
        for words, found in secs.items():
            began = time.monotonic()
            command = [sys.executable, "-m", "torch_estimator.cli", *words.split()]
            printed = subprocess.check_output(command, text=True)
            found.append(time.monotonic() - began)
            if "list" in words and len(printed.splitlines()) != 1001:
                raise StormError(f"jobs list printed {len(printed.splitlines())} lines.")
    listed, helped = map(statistics.median, secs.values())
    return f"+ {listed - helped:.2f} s ({listed:.2f} s){_load()}", storm.judged(listed - helped <= 0.3)


@row("the command line of Google's article", "runs")
def google(storm: Storm) -> tuple[str, bool]:
    # The census program, under the name that the article has for it.
    (storm.jobs.folder / "trainer").mkdir()
    (storm.jobs.folder / "trainer" / "task.py").write_text("from examples.census.trainer.task import main\n\nmain()\n")
    out = storm.jobs.folder / "out" / "google"
    line = _GOOGLE.format(job_dir=out, train=storm.files[0], eval=storm.files[1])
    if storm.is_quick:
        line = line.replace("5000", "50")
    done, _, said = storm.jobs.run(*line.split())
    state = storm.jobs.wait("census_1", 900.0) if not done else said.strip()
    exports = len(list((out / "export" / "census").glob("[0-9]*")))
    return f"{state}; {exports} export", state == "SUCCEEDED" and exports == 1


def _listed(numbers: list[float]) -> str:
    return ", ".join(f"{number:.1f}" for number in numbers)


def _load() -> str:
    return f" (load {os.getloadavg()[0]:.1f})"


ROWS: dict[str, Rows] = {
    "programs": programs,
    "kills": kills,
    "chief": chief,
    "launcher": launcher,
    "follower": follower,
    "limit": limit,
    "cancel": cancel,
    "status": status,
    "start": start,
    "cluster": cluster,
    "load": load,
    "list": listing,
    "google": google,
}

ONLY_ON = {
    "launcher": ("local", "slurm", "ray"),
    "follower": ("kubernetes",),
    "limit": ("slurm",),
    "cluster": ("slurm",),
    "list": ("local",),
    "google": ("local",),
}
"""Rows that do not belong to every target."""
