"""Lanes: what each role of a job did over time, from the timelines of its model directory and the job's events.

A lane is by its role's own clock. Where machines differ, it is moved so that the roles reach the same steps at the same
time.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from torch_estimator.activity.timeline import Change, Run, Spent
from torch_estimator.console.texts import ROLE, TRAINERS, clean, span
from torch_estimator.jobs.directory import FINAL, JobEvent
from torch_estimator.launch.job import describe_status

AWAY, PAUSED = "away", "paused"
"""States of a role between the end of a process and the next one; a trial of a study is paused."""

# Most segments of a lane that are drawn.
_COLUMNS = 800
# An event of the launcher that comes later than this after a process was last seen is not about its end.
_EXIT_SECS = 15.0
# A process that has written so recently is alive.
_ALIVE_SECS = 5.0
_LEAST_SHIFT_SECS = 0.5
_SERVER = "ps-"

STATES = (
    *("starting", "compiling", "training", "running", "serving", "waiting", "saving", "evaluating", "exporting"),
    *("unknown", AWAY, PAUSED),
)
"""All states that lanes show."""

PARTS = ("computing", "input", "servers", "others", "saving", "evaluating", "starting")
"""Parts of the time, as `Spent` has them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What a role did from one time to another; `note` says more."""

    start: float
    end: float
    state: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """A process that took over from one that had ended before its time.

    `secs` passed until it trained again, and `steps` were done again; both may be unknown.
    """

    role: str
    time: float
    reason: str
    secs: float | None
    steps: int | None


@dataclass(slots=True)
class Lane:
    """One role: its segments without gaps, its restarts, and by how many seconds its clock is ahead."""

    role: str
    segments: list[Segment] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    ahead: float = 0.0


def lanes_of(
    runs: Sequence[Run], events: Sequence[JobEvent], *, now: float, paused: Sequence[Segment] = ()
) -> list[Lane]:
    """Return a lane for each role of a job. Without timelines, it shows from when to when processes ran."""
    by_role: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if ROLE.fullmatch(run.role):
            by_role[run.role].append(run)
    ahead = _clocks(by_role)
    moved = {role: [_moved(run, -ahead.get(role, 0.0)) for run in own] for role, own in by_role.items()}
    setbacks = _Setbacks(moved)
    if events and events[-1].state in FINAL:
        now = min(now, events[-1].time)
    roles = [*by_role, *sorted({one.role for one in events if ROLE.fullmatch(one.role)} - by_role.keys())]
    lanes = []
    for role in sorted(roles, key=_order):
        own = [one for one in events if one.role == role]
        there = moved.get(role)
        lanes.append(_lane(role, there, own, paused, now, setbacks) if there else _lane_of_events(role, own, now))
        lanes[-1].ahead = ahead.get(role, 0.0)
    return lanes


def _order(role: str) -> tuple[int, str, int]:
    kind, _, number = role.rpartition("-")
    kinds = ("chief", "master", "worker", "ps", "evaluator")
    return (kinds.index(kind) if kind in kinds else len(kinds)), kind, int(number) if number.isdigit() else 0


def pauses_of(runs: Sequence[Run], rungs: Iterable[int], asked: Iterable[float], until: float | None) -> list[Segment]:
    """Return when a trial was paused: at the steps of its rungs, and where somebody asked for it at these times.

    A trial that is paused now is so `until` a time.
    """
    first = min((run.role for run in runs), key=_order, default="")
    own = [run for run in runs if run.role == first]
    found, ahead = [], sorted(rungs)
    for run, following in zip_longest(own, own[1:]):
        end = run.end.time if run.end is not None else run.last_seen
        last = max((step for step in _steps(run) if step is not None), default=0)
        reached = [step for step in ahead if step <= last]
        note = f"at the rung of step {reached[-1]:,}" if reached else "by request"
        if following is None:
            found += [] if until is None else [Segment(end, until, PAUSED, note)]
        # A process that was killed has not paused, even if it had come to its rung.
        elif (reached and run.end is not None) or any(run.began <= time <= following.began for time in asked):
            found.append(Segment(end, following.began, PAUSED, f"{note}, then went on"))
            ahead = ahead[len(reached) :]
    return found


class _Setbacks:
    """When, and by how many steps, training processes went back to a checkpoint because a parameter server was lost."""

    def __init__(self, by_role: Mapping[str, Sequence[Run]]) -> None:
        servers = [runs for role, runs in by_role.items() if role.startswith(_SERVER)]
        self._returns = sorted(run.began for runs in servers for run in runs[1:])
        self._found: list[tuple[float, int]] = []
        for run in (run for role, runs in by_role.items() if role.startswith(TRAINERS) for run in runs):
            noted: list[Change | Spent] = [*run.changes, *run.spent]
            reached = 0
            for time, step in sorted((one.time, one.step) for one in noted if one.step is not None):
                if step < reached:
                    self._found.append((time, reached - step))
                reached = step

    def after(self, server: Run) -> int | None:
        """Return by how many steps training went back after a server had begun again; None if that was not noted.

        Of several servers that are restored together, the last one has them.
        """
        until = next((one for one in self._returns if one > server.began), math.inf)
        # Clocks of machines differ a little.
        own = (steps for time, steps in self._found if server.began <= time + _LEAST_SHIFT_SECS < until)
        return max(own, default=None)


def _lane(
    role: str, runs: list[Run], events: Sequence[JobEvent], paused: Sequence[Segment], now: float, setbacks: _Setbacks
) -> Lane:
    lane = Lane(role)
    exits = [one for one in events if one.kind == "exited"]
    for place, run in enumerate(runs):
        following = runs[place + 1] if place + 1 < len(runs) else None
        end = run.end.time if run.end is not None else run.last_seen
        gone = next((one for one in exits if -1 < one.time - end < _EXIT_SECS), None)
        if run.end is None and gone is not None:
            end = max(end, min(gone.time, end + _ALIVE_SECS))
        elif run.end is None and following is None and now - end < _ALIVE_SECS:
            end = now
        if following is not None:
            end = min(end, following.began)
        lane.segments += _segments(run, end)
        until = now if following is None else following.began
        pause = next((one for one in paused if one.start <= until and one.end >= end), None)
        if pause is not None:
            if until > end:
                lane.segments.append(replace(pause, start=end, end=until))
        elif following is not None:
            reason = _why(run, gone)
            restart = _restart(run, following, end, reason, setbacks)
            if run.end is None or run.end.failed:
                lane.restarts.append(restart)
            note = "; ".join(filter(None, [reason, f"back after {span(following.began - end)}", _again(restart)]))
            lane.segments.append(Segment(end, following.began, AWAY, note))
    return lane


def _segments(run: Run, end: float) -> Iterator[Segment]:
    changes = run.changes or [Change(time=run.began, state="starting")]
    if changes[0].time > run.began:
        changes = [Change(time=run.began, state="starting"), *changes]
    for change, following in zip(changes, [*changes[1:], None], strict=True):
        until = end if following is None else min(following.time, end)
        if change.state != "ended" and until > change.time:
            state = change.state if change.state in STATES else "unknown"
            yield Segment(change.time, until, state, _note(change))


def _note(change: Change) -> str:
    parts = []
    if change.waits_for:
        parts.append(f"for {', '.join(change.waits_for)}")
    if change.step is not None:
        parts.append(f"at step {change.step:,}")
    return clean(", ".join([*parts, change.reason] if change.reason else parts), 200)


def _why(run: Run, gone: JobEvent | None) -> str:
    if gone is not None:
        status = "" if gone.status is None else describe_status(gone.status)
        return clean(". ".join(filter(None, [status, gone.reason])), 300)
    if run.end is not None and run.end.reason:
        return clean(run.end.reason, 300)
    return "it was gone without a word, as after SIGKILL" if run.end is None else "it ended"


def _restart(run: Run, following: Run, end: float, reason: str, setbacks: _Setbacks) -> Restart:
    before = [one for one in _steps(run) if one is not None]
    after = [one for one in _steps(following) if one is not None]
    trains = next((one.time for one in following.changes if one.state in ("training", "serving", "evaluating")), None)
    if run.role.startswith(_SERVER):
        # It trains on with the step that it is given.
        steps = setbacks.after(following)
    elif before:
        steps = max(0, max(before) - min(after)) if after else None
    else:
        steps = 0
    return Restart(run.role, end, reason, None if trains is None else trains - end, steps)


def _again(restart: Restart) -> str:
    return "" if not restart.steps else f"{restart.steps:,} {'step' if restart.steps == 1 else 'steps'} again"


def _steps(run: Run) -> Iterator[int | None]:
    yield from (change.step for change in run.changes)
    yield from (spent.step for spent in run.spent)


def _lane_of_events(role: str, events: Sequence[JobEvent], now: float) -> Lane:
    lane = Lane(role)
    since: float | None = None
    ended: JobEvent | None = None
    for event in events:
        if event.kind in ("started", "restarted"):
            if ended is not None:
                reason = _why(Run(role=role, pid=0, host="", began=0, last_seen=0), ended)
                lane.segments.append(Segment(ended.time, event.time, AWAY, reason))
                lane.restarts.append(Restart(role, ended.time, reason, event.time - ended.time, None))
            since, ended = event.time, None
        elif event.kind == "exited" and since is not None:
            lane.segments.append(Segment(since, event.time, "running"))
            since, ended = None, event
    if since is not None:
        lane.segments.append(Segment(since, max(since, now), "running"))
    return lane


def _moved(run: Run, secs: float) -> Run:
    if not secs:
        return run
    changes = [replace(one, time=one.time + secs) for one in run.changes]
    spent = [replace(one, time=one.time + secs) for one in run.spent]
    return replace(run, began=run.began + secs, last_seen=run.last_seen + secs, changes=changes, spent=spent)


def _clocks(by_role: dict[str, list[Run]]) -> dict[str, float]:
    """Return by how many seconds the clocks of roles on other machines are ahead of the chief's, where it shows."""
    trainers = {role: runs for role, runs in by_role.items() if role.startswith(TRAINERS)}
    if not trainers:
        return {}
    first = min(trainers, key=_order)
    hosts = {run.host for run in trainers[first]}
    reached = _times_of_steps(trainers[first])
    found: dict[str, float] = {}
    for role, runs in trainers.items():
        if role != first and not hosts & {run.host for run in runs} and reached:
            steps = [step for step, _ in reached]
            differences = []
            for step, time in _times_of_steps(runs):
                place = bisect.bisect_left(steps, step)
                if 0 < place < len(steps):
                    (low, start), (high, end) = reached[place - 1], reached[place]
                    differences.append(time - (start + (end - start) * (step - low) / (high - low)))
            if differences and abs(shift := statistics.median(differences)) >= _LEAST_SHIFT_SECS:
                found[role] = shift
    by_host = {run.host: found[role] for role in found for run in by_role[role]}
    # A server or an evaluator has the clock of its machine, too.
    others = {role: by_host.get(runs[-1].host, 0.0) for role, runs in by_role.items() if role not in trainers}
    return {**found, **{role: shift for role, shift in others.items() if shift}}


def _times_of_steps(runs: Iterable[Run]) -> list[tuple[int, float]]:
    """Return when each noted step was first reached, by step."""
    found: dict[int, float] = {}
    for run in runs:
        for spent in run.spent:
            if spent.step is not None:
                found.setdefault(spent.step, spent.time)
    return sorted(found.items())


def drawn(segments: Sequence[Segment], low: float, high: float) -> list[Segment]:
    """Return what a lane shows between two times: segments narrower than a column become one, of its longest state."""
    width = (high - low) / _COLUMNS
    shown: list[Segment] = []
    secs: dict[str, float] = defaultdict(float)
    begun, alone = low, ""

    def flush(until: float) -> None:
        if secs:
            state = max(secs, key=lambda one: secs[one])
            note = f"{len(secs)} states" if len(secs) > 1 else alone
            if shown and shown[-1].state == state and shown[-1].note == note and shown[-1].end >= begun - width:
                shown[-1] = replace(shown[-1], end=until)
            else:
                shown.append(Segment(begun, until, state, note))
            secs.clear()

    for segment in segments:
        start, end = max(segment.start, low), min(segment.end, high)
        if end <= start:
            continue
        if end - start >= width:
            flush(start)
            shown.append(replace(segment, start=start, end=end))
            begun = end
            continue
        if not secs:
            begun = start
        elif end - begun > width:
            flush(start)
            begun = start
        alone = "" if secs else segment.note
        secs[segment.state] += end - start
    if secs:
        flush(min(high, max(begun + sum(secs.values()), begun + width)))
    return shown


def spent_by(runs: Iterable[Run]) -> tuple[dict[str, float], int]:
    """Return the seconds that the training processes of a job have spent, by part, and how many roles train."""
    trainers = [run for run in runs if run.role.rpartition("-")[0] not in ("ps", "evaluator")]
    last = [run.spent[-1] for run in trainers if run.spent]
    spent = {part: sum(getattr(one, part) for one in last) for part in PARTS}
    return spent, len({run.role for run in trainers})


_WORDS = {
    "computing": "computing",
    "input": "waiting for input",
    "servers": "waiting for parameter servers",
    "others": "waiting for other processes",
    "saving": "saving",
    "evaluating": "evaluating and exporting",
    "starting": "starting",
}


def time_sentence(spent: dict[str, float], processes: int) -> str:
    """Return in a sentence where the time went; empty if nothing was recorded."""
    total = sum(spent.values())
    if total <= 0:
        return ""
    parts = sorted(((secs / total, _WORDS[part]) for part, secs in spent.items()), reverse=True)
    told = [f"{part:.0%} {word}" for part, word in parts if part >= 0.01]
    whose = "the training process" if processes == 1 else f"{processes} training processes"
    return f"Of {span(total)} of {whose}: {', '.join(told)}."
