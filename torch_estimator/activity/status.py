"""State of each role of a training, from its timelines: for commands, probes and Prometheus."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch_estimator.activity.timeline import Change, Run, Spent

PARTS = ("computing", "input", "servers", "others", "saving", "evaluating", "starting")
"""Attributes of `Spent` that add up to the time that a process has recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """State of a role.

    Attributes:
        run: Its last process.
        last: The last change of that.
        health: ``well``; ``stalled`` if it should have taken a step; ``gone`` if it no longer writes; ``failed`` if it
            has ended before its time.
        restarts: How often it was started again since it last ended well.
    """

    run: Run
    last: Change
    health: str
    restarts: int

    @property
    def spent(self) -> Spent:
        """How the time of its last process was spent, which has the last known global step, too."""
        return self.run.spent[-1]


def role_statuses(runs: Sequence[Run], now: float, stale_secs: float) -> list[RoleStatus]:
    """Return the state of each role of sorted runs at a time, in seconds since 1970."""
    return [_status(list(own), now, stale_secs) for _, own in itertools.groupby(runs, lambda run: run.role)]


def _status(runs: Sequence[Run], now: float, stale_secs: float) -> RoleStatus:
    run, before = runs[-1], reversed(runs[:-1])
    last = run.changes[-1] if run.changes else Change(time=run.began, state="starting")
    # What else may take long is no step: to wait for others, to save, to evaluate.
    takes_steps = last.state == "training" or last.waits_for == ("input",)
    if run.end is not None:
        health = "failed" if run.end.failed else "well"
    elif now - run.last_seen >= stale_secs:
        health = "gone"
    elif takes_steps and now - max(run.last_step or 0.0, last.time) >= stale_secs:
        health = "stalled"
    else:
        health = "well"
    restarts = sum(1 for _ in itertools.takewhile(lambda one: one.end is None or one.end.failed, before))
    return RoleStatus(run=run, last=last, health=health, restarts=restarts)


def prometheus_text(statuses: Sequence[RoleStatus]) -> str:
    """Return the states in Prometheus' text format."""
    lines = []

    def add(
        name: str, text: str, values: Callable[[RoleStatus], Mapping[str, float | None]], kind: str = "gauge"
    ) -> None:
        """Add a metric; `values` returns those of a role by further labels."""
        lines.append(f"# HELP te_training_{name} {text}\n# TYPE te_training_{name} {kind}\n")
        for one in statuses:
            for labels, value in values(one).items():
                if value is not None:
                    lines.append(f'te_training_{name}{{role="{one.run.role}"{labels}}} {value:.15g}\n')

    add("step", "Last known global step.", lambda one: {"": one.spent.step})
    changed = "When the global step changed for the last time."
    add("last_step_timestamp_seconds", changed, lambda one: {"": one.run.last_step})
    seen = "When the process wrote its state for the last time."
    add("last_seen_timestamp_seconds", seen, lambda one: {"": one.run.last_seen})
    add("restarts", "How often the role was started again since it last ended well.", lambda one: {"": one.restarts})
    state = "What the role does, whom it waits for, and whether it is well, stalled, gone or failed."
    add("state", state, lambda one: {_state_labels(one): 1})
    spent = "How the time of the process was spent."
    add("seconds_total", spent, lambda one: {f',part="{part}"': getattr(one.spent, part) for part in PARTS}, "counter")
    add("cpu_seconds_total", "Processor time of the process.", lambda one: {"": one.spent.cpu}, "counter")
    return "".join(lines)


def _state_labels(one: RoleStatus) -> str:
    labels = {"state": one.last.state, "waits_for": ",".join(one.last.waits_for), "health": one.health}
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return "".join(f',{name}="{value.translate(escapes)}"' for name, value in labels.items())
