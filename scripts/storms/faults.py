"""Kills processes of a cluster with SIGKILL again and again, and checks that the job ends well: `scripts/storm faults`.

`estimator local train` runs a chief, two workers and an evaluator, with two parameter servers or, with --synchronous,
in step, and starts again what dies. They train the census model on numbered rows for some epochs. Chief, workers,
servers and evaluator are killed in a random order: most once all is well again after the kill before, a fifth while it
is not, the evaluator also after the end of the training. The job has to end by itself with status 0, with checkpoints
that load, whose steps ascend and the last of which is that of the last step, with the final export, and after every
row was trained on in every epoch. Those that train in step must end with the very bits of a job that nobody disturbed.
After a kill that comes alone, the next step has to come within 2 s where it was a server's, and within 8 s where it was
that of a worker who trains in step; fewer than 20 kills are too few to judge that by.

With --large, a table of so many rows (2^24 by default, 1 GB, and as much of state) is on the parameter servers instead,
and every row of every checkpoint has to be what some number of whole updates makes of it (`large_job`).
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.protocol import conclude
from examples.options import at_least, positive
from scripts.storms.checks import Rows, Told, problems, problems_of_checkpoints
from scripts.storms.cluster import LAUNCHER, Line, StormCluster
from scripts.storms.common import (
    ROOT,
    SILENCE_SECS,
    StormError,
    add_census_files,
    conclude_storm,
    emptied,
    words,
)
from scripts.storms.job import PACE, STEP
from scripts.storms.kill import differences
from scripts.storms.large_job import problems_of_rows
from scripts.storms.times import SERVED, TOGETHER, Kill, table, verdicts
from torch_estimator.checkpoint.checkpoint import Checkpoint, load_checkpoint

ROLES = ("chief", "worker", "ps", "evaluator")

_BATCH = 40
_JUDGED_KILLS = 20
_LOOK_SECS = 0.5

# The rest of the steps is taken slowly until the last kill, so that there always is a rest.
_SLOW_FROM = 0.6
_SLOW_SECS = 0.5


@dataclass(frozen=True, slots=True)
class Strike:
    """A planned kill of the process `name`, `delay` seconds after recovery from the kill before.

    If `early`, the delay begins at that kill itself. If `late`, the process is killed at the end of the training
    instead.
    """

    name: str
    delay: float
    early: bool = False
    late: bool = False


def plan(kills: int, names: Sequence[str], roles: Sequence[str], rng: random.Random) -> list[Strike]:
    """Draws all of them: every role as often as the others, the evaluator also after the end."""
    strikes: list[Strike] = []
    while len(strikes) < kills:
        for role in rng.sample(roles, len(roles)):
            name = rng.choice([name for name in names if name.startswith(role)])
            early = bool(strikes) and rng.random() < 0.2
            strikes.append(Strike(name, rng.uniform(0.0, 3.0 if early else 1.0), early))
    strikes = strikes[:kills]
    last = next((at for at in reversed(range(kills)) if strikes[at].name.startswith("evaluator")), None)
    if last is not None:
        late = strikes.pop(last)
        strikes.append(Strike(late.name, 0.0, late=True))
    return strikes


@dataclass(slots=True)
class Storm:
    """A cluster whose processes are killed one after another.

    `strikes` are still to come, and `kills` have happened. The file `pace` says how many seconds a step waits, `steps`
    is about the number of global steps, and `together` says whether all processes that train are restarted together.
    """

    cluster: StormCluster
    strikes: list[Strike]
    pace: Path
    steps: int
    together: bool
    kills: list[Kill] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    _total: int = 0
    _step: int = -1
    _well_since: float | None = None
    _heard_at: float = 0.0

    def run(self) -> int:
        """Follow the job to its end and return its exit status; raise a StormError if it hangs or does not recover."""
        self._total = len(self.strikes)
        self._heard_at = time.monotonic()
        while True:
            try:
                line = self.cluster.next_line(min(_LOOK_SECS, self._due() - time.monotonic()))
            except EOFError:
                return self.cluster.wait()
            if line is not None:
                self._see(line)
            self._look_for_silence()
            if self.strikes and time.monotonic() >= self._due():
                self._strike(self.strikes.pop(0))
            self._set_pace()

    def _due(self) -> float:
        """When to strike next."""
        if not self.strikes or self.strikes[0].late:
            return float("inf")
        first = self.strikes[0]
        if first.early and self.kills:
            return self.kills[-1].at + first.delay
        return float("inf") if self._well_since is None else self._well_since + first.delay

    def _see(self, line: Line) -> None:
        self._heard_at = line.at
        self.told.see(line)
        if line.text.startswith(f"{STEP} "):
            self._step = max(self._step, int(line.text.split()[1]))
        for kill in self.kills:
            if not kill.is_over:
                kill.see(line)
                if kill.is_over:
                    print(f"{'':9} {kill.name}: {kill.in_words}", flush=True)
        is_well = self._step > 0 and all(kill.is_over for kill in self.kills)
        self._well_since = (self._well_since or line.at) if is_well else None
        if line.name == LAUNCHER and "chief 0 finished successfully" in line.text and self.strikes:
            self._strike(self.strikes.pop(0))

    def _strike(self, strike: Strike) -> None:
        number = self._total - len(self.strikes)
        at = self.cluster.kill(strike.name)
        if at is None:
            print(f"{number:4}/{self._total} {strike.name} was not there to be killed", flush=True)
            return
        kill = Kill(strike.name, at, self.together, alone=all(one.is_over for one in self.kills))
        for one in self.kills:
            one.alone &= one.is_over
        self.kills.append(kill)
        self._well_since = None
        after = "; training had ended" if strike.late else "" if kill.alone else ", while others were coming back"
        print(f"{number:4}/{self._total} killed {strike.name} at step {self._step}{after}", flush=True)

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now > self._heard_at + SILENCE_SECS:
            raise StormError(f"no process has said anything for {SILENCE_SECS:.0f} s.")
        missing = [kill for kill in self.kills if not kill.is_over] if self.told.end is None else []
        if missing and now > missing[-1].at + SILENCE_SECS:
            names = ", ".join(kill.name for kill in missing)
            raise StormError(f"{SILENCE_SECS:.0f} s after it was killed, the job has not recovered from {names}.")

    def _set_pace(self) -> None:
        over = not self.strikes or self.strikes[0].late
        if over and (self._well_since is not None or not self.kills):
            set_pace(self.pace, 0.0)
        elif self._step > _SLOW_FROM * self.steps:
            set_pace(self.pace, _SLOW_SECS)


def set_pace(file: Path, secs: float) -> None:
    """Tells those who train how long to take for a step."""
    text = f"{secs}"
    if not file.exists() or file.read_text() != text:
        written = file.with_suffix(".new")
        written.write_text(text)
        written.replace(file)


def number_rows(source: Path, target: Path, most: int) -> int:
    """Copies at most so many census rows, with their numbers in the unused column; returns how many."""
    from examples.census.trainer import columns

    place = columns.CSV_COLUMNS.index(columns.UNUSED[0])
    with source.open(newline="") as rows, target.open("w", newline="") as numbered:
        writer = csv.writer(numbered)
        number = 0
        for row in csv.reader(rows):
            if number == most:
                break
            if row:
                number += 1
                writer.writerow([*row[:place], number, *row[place + 1 :]])
    return number


def storm(args: argparse.Namespace) -> Iterator[str]:
    """Runs it; a sentence for everything that does not hold."""
    work = emptied(args.work_dir)
    if args.large:
        yield from storm_of_large_table(args, work)
        return
    trainers = 1 + args.workers
    examples = args.steps * _BATCH * (trainers if args.synchronous else 1)
    count = number_rows(args.train_file, work / "train.csv", max(1, examples // 2))
    rows = Rows(count=count, epochs=max(1, round(examples / count)), batch=_BATCH)
    number_rows(args.eval_file, work / "eval.csv", 20 * _BATCH)
    names = ["chief 0", *(f"worker {index}" for index in range(args.workers)), "evaluator 0"]
    names += [] if args.synchronous else [f"ps {index}" for index in range(args.servers)]
    strikes = plan(args.kills, names, args.roles, random.Random(args.seed))
    print(
        f"{', '.join(names)}: about {args.steps} steps, {rows.epochs} epochs of {rows.count} rows, "
        f"{len(strikes)} kills of {', '.join(args.roles)}; lines of all processes go to {work}/struck.log.",
        flush=True,
    )
    struck = Struck(args, work, rows)
    began = time.monotonic()
    one = struck.run("struck", strikes)
    landed = [kill.name for kill in one.kills]
    print(f"{len(landed)} of {args.kills} kills landed in {time.monotonic() - began:.0f} s.\n\n{table(one.kills)}\n")
    times = verdicts(one.kills, TOGETHER if args.synchronous else SERVED)
    if conclude(times, quick=args.kills < _JUDGED_KILLS):
        yield "the next step came later than promised, as said above."
    if one.strikes:
        yield f"the job had ended {len(one.strikes)} kills before the last; give more --steps."
    yield from problems(work / "struck", one.told, rows, landed, served=not args.synchronous)
    if args.synchronous:
        struck.run("undisturbed", [])
        for difference in differences(*(_end(work / name) for name in ("undisturbed", "struck"))):
            yield f"an undisturbed job ends otherwise: {difference}."


def storm_of_large_table(args: argparse.Namespace, work: Path) -> Iterator[str]:
    """Runs the storm with a large table; a sentence for everything that does not hold."""
    names = ["chief 0", *(f"worker {index}" for index in range(args.workers)), "evaluator 0"]
    names += [f"ps {index}" for index in range(args.servers)]
    strikes = plan(args.kills, names, args.roles, random.Random(args.seed))
    print(f"{', '.join(names)}: {args.steps} steps, a table of {args.large} rows, {len(strikes)} kills.", flush=True)
    began = time.monotonic()
    one = Struck(args, work, None).run("struck", strikes)
    landed = [kill.name for kill in one.kills]
    print(f"{len(landed)} of {args.kills} kills landed in {time.monotonic() - began:.0f} s.\n\n{table(one.kills)}\n")
    if one.strikes:
        yield f"the job had ended {len(one.strikes)} kills before the last; give more --steps."
    yield from problems_of_checkpoints(work / "struck", one.told)
    yield from problems_of_rows(work / "struck")


def _end(model_dir: Path) -> Checkpoint:
    """The last checkpoint, without whether the input was known to be over when it was saved."""

    def without(state: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in state.items() if key != "input_ended"}

    checkpoint = load_checkpoint(str(model_dir))
    replicas = [one and without(one) for one in checkpoint.state["replicas"]]
    return replace(checkpoint, state={**without(checkpoint.state), "replicas": replicas})


@dataclass(frozen=True, slots=True)
class Struck:
    """Runs jobs in folders of `work`, with the settings of the command line; `rows` is None for a large table."""

    args: argparse.Namespace
    work: Path
    rows: Rows | None

    def run(self, name: str, strikes: Sequence[Strike]) -> Storm:
        """Run a job to its end, with these kills; raise a StormError if it fails."""
        (self.work / name).mkdir()
        pace = self.work / name / PACE
        set_pace(pace, self.args.pace if strikes else 0.0)
        log = self.work / f"{name}.log"
        cluster = StormCluster(self._options(name), log)
        try:
            one = Storm(cluster, list(strikes), pace, self.args.steps, self.args.synchronous)
            status = one.run()
        except StormError as error:
            raise StormError(f"{error} See {log}.") from error
        finally:
            cluster.close()
        if status:
            raise StormError(f"the job ended with status {status}; see {log}.")
        return one

    def _options(self, name: str) -> list[str]:
        launch: dict[str, object] = {
            "--worker-count": self.args.workers,
            "--parameter-server-count": 0 if self.args.synchronous else self.args.servers,
            "--max-restarts": 10 * self.args.kills + 1,
            "--package-path": ROOT / "scripts",
            "--module-name": "scripts.storms.job" if self.rows is not None else "scripts.storms.large_job",
            "--job-dir": self.work / name,
        }
        if self.rows is None:
            table: dict[str, object] = {
                "--rows": self.args.large,
                "--steps": self.args.steps,
                "--every": self.args.every,
            }
            return ["--distributed", "--evaluator", *words(launch), "--", *words(table)]
        job: dict[str, object] = {
            "--train-file": self.work / "train.csv",
            "--eval-file": self.work / "eval.csv",
            "--epochs": self.rows.epochs,
            "--batch": self.rows.batch,
            "--every": self.args.every,
        }
        return ["--distributed", "--evaluator", *words(launch), "--", *words(job)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/storm faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kills", type=at_least(0), default=100, help="how often to kill (default: 100)")
    add("--steps", type=at_least(1), help="global steps, about (default: 200 for each kill)")
    add("--seed", type=int, default=1, help="of whom to kill, and when (default: 1)")
    add("--roles", nargs="+", choices=ROLES, help="whom to kill (default: all that there are)")
    add("--synchronous", action="store_true", help="train in step, without parameter servers")
    add("--large", type=at_least(1), nargs="?", const=1 << 24, default=0, metavar="ROWS", help="see above")
    add("--workers", type=at_least(0), default=2, help="beside the chief (default: 2)")
    add("--servers", type=at_least(1), default=2, help="that hold parameters (default: 2)")
    add("--every", type=at_least(1), default=100, help="steps between checkpoints (default: 100)")
    add("--pace", type=positive, default=0.02, help="seconds that a step takes longer, as long as kills come")
    add("--work-dir", type=Path, default=ROOT / "runs" / "fault-storm", help="for the jobs; emptied first")
    add_census_files(parser)
    args = parser.parse_args(arguments)
    if args.large and args.synchronous:
        parser.error("--large is for parameter servers, and --synchronous trains without them")
    absent = {"ps": args.synchronous, "worker": not args.workers}
    there = [role for role in ROLES if not absent.get(role)]
    if args.roles and not set(args.roles) <= set(there):
        parser.error(f"--roles must be of those that there are, {', '.join(there)}, but got {', '.join(args.roles)}")
    args.roles = args.roles or there
    args.steps = args.steps or max(1000, 200 * args.kills)
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the storm; 0 where all holds, 1 where not."""
    args = parse(arguments)
    return conclude_storm(partial(storm, args), "The job is whole: it has ended well, and nothing is lost.")


if __name__ == "__main__":
    sys.exit(main())
