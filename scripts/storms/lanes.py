"""The row `lanes` of `scripts/job-storm`: kills at recorded times, looked for in what the roles have recorded."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from scripts.storms.common import StormError
from scripts.storms.job_rows import IN_STEP, SERVED, Storm, Trial, row
from scripts.storms.submitting import wait_until
from torch_estimator.activity.state import LONG_SECS
from torch_estimator.activity.timeline import Run, read_runs
from torch_estimator.jobs.directory import FINAL
from torch_estimator.jobs.kinds import status_of

# Each job: how it is asked for, the roles that are killed, and who waits then for the one that was.
_JOBS = (
    (SERVED, ("worker-0", "ps-0", "evaluator-0", "chief-0"), {"ps-0": ("chief-0", "worker-0")}),
    (IN_STEP, ("worker-0",), {"worker-0": ("chief-0",)}),
)
_MOST_SECS = 1.0
_MOST_OFF = 0.1


@dataclass(frozen=True, slots=True)
class _Kill:
    role: str
    pid: int
    at: float


@row(
    "roles killed at recorded times: in their lanes, and the waits of the others", "each within 1 s; waits within 10 %"
)
def lanes(storm: Storm) -> tuple[str, bool | None]:
    wanted = 5 if storm.is_quick else storm.rounds
    kills, lags, offs = 0, [0.0], [0.0]
    while kills < wanted:
        for options, roles, waits in _JOBS:
            trial = storm.trial("steps", options, "--every", 100, "--pace", 0.02)
            order = storm.rng.sample(roles, len(roles))
            done = [_killed(trial, role) for role in order[: wanted - kills]]
            (trial.notes / "enough").touch()
            trial.succeed()
            runs = read_runs(trial.out)
            for kill in done:
                lags += _found(trial, runs, kill)
                for waiter in waits.get(kill.role, ()):
                    offs.append(_off(trial, runs, kill, waiter))
            kills += len(done)
    told = f"{kills} kills; at most {max(lags):.2f} s apart; waits at most {max(offs):.0%} off"
    return told, storm.judged(max(lags) <= _MOST_SECS and max(offs) <= _MOST_OFF)


def _killed(trial: Trial, role: str) -> _Kill:
    """Kill a role at some step; return when its successor is at work."""

    def is_at_work(pid: int = 0) -> bool:
        last = next((run for run in reversed(read_runs(trial.out)) if run.role == role), None)
        is_there = last is not None and last.pid != pid and last.changes[-1].state != "starting"
        return is_there or status_of(trial.job).state in FINAL

    def all_train() -> bool:
        """Return whether all that train have taken a step, so that their next pause is one that a kill makes."""
        pids = [(name, pid) for name, pid in trial.processes().items() if name in ("chief-0", "worker-0")]
        return len(pids) == 2 and all((trial.notes / f"{name}.{pid}.steps").exists() for name, pid in pids)

    wait_until(lambda: is_at_work() and all_train())
    trial.wait_for_step(trial.last_step() + 30)
    pid = trial.processes()[role]
    kill = _Kill(role, pid, time.time())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_at_work(pid))
    return kill


def _found(trial: Trial, runs: list[Run], kill: _Kill) -> Iterator[float]:
    """Yield by how many seconds the recorded times of a kill differ from the true one; raise if it is not there."""
    own = [run for run in runs if run.role == kill.role]
    killed = next((run for run in own if run.pid == kill.pid), None)
    if killed is None or killed.end is not None or killed is own[-1]:
        raise StormError(f"{trial.name}: the kill of {kill.role} ({kill.pid}) is not in its lane.")
    if own[own.index(killed) + 1].began < kill.at:
        raise StormError(f"{trial.name}: the successor of {kill.role} ({kill.pid}) began before it was killed.")
    yield abs(kill.at - killed.last_seen)
    exits = [one for one in trial.job.events() if (one.kind, one.role, one.pid) == ("exited", kill.role, kill.pid)]
    if [one.status for one in exits] != [-signal.SIGKILL]:
        raise StormError(f"{trial.name}: the events of {kill.role} ({kill.pid}) do not say that SIGKILL ended it.")
    yield abs(kill.at - exits[0].time)


def _off(trial: Trial, runs: list[Run], kill: _Kill, waiter: str) -> float:
    """Return by which part the recorded wait differs from the time between the kill and the next step of `waiter`."""
    gaps = [
        (after - max(before, kill.at), max(before, kill.at), after)
        for part in trial.steps(waiter)
        for (_, before), (_, after) in pairwise(part)
        if before < kill.at + _MOST_SECS and after > kill.at
    ]
    secs, begin, end = max(gaps, default=(0.0, 0.0, 0.0))
    waited = 0.0
    for run in runs:
        for change, following in pairwise(run.changes):
            if run.role == waiter and kill.role in change.waits_for:
                waited += max(0.0, min(following.time, end) - max(change.time, begin))
    if 0 < secs < LONG_SECS and not waited:
        return 0.0  # The recorder does not write a wait that is so short.
    if not secs or not waited:
        raise StormError(f"{trial.name}: {waiter} is not said to have waited for {kill.role}, or took no step since.")
    return abs(waited - secs) / secs
