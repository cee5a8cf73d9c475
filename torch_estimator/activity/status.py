"""State of each role of a training, from its timelines: for commands, probes and Prometheus."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_estimator.activity.timeline import Change, Run, Spent

WELL, STALLED, GONE, FAILED = "well", "stalled", "gone", "failed"

PARTS = ("computing", "input", "servers", "others", "saving", "evaluating", "starting")
"""Attributes of `Spent` that add up to the time that a process has recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """State of a role. Ages compare the role's clock with the one of this machine.

    Attributes:
        role: The role.
        health: ``well``; ``stalled`` if it should have taken a step; ``gone`` if it no longer writes; ``failed`` if it
            has ended before its time.
        last: Its last change.
        waits_for: Roles that it waits for.
        step: The last known global step.
        step_age: Seconds since that step, if there was one.
        seen_age: Seconds since it wrote for the last time.
        restarts: How often it was started again since it last ended well.
        spent: How the time of its last process was spent.
    """

    role: str
    health: str
    last: Change
    waits_for: tuple[str, ...]
    step: int | None
    step_age: float | None
    seen_age: float
    restarts: int
    spent: Spent


def role_statuses(runs: Sequence[Run], now: float, stale_secs: float) -> list[RoleStatus]:
    """Return the state of each role of sorted runs at a time, in seconds since 1970."""
    return [_status(list(own), now, stale_secs) for _, own in itertools.groupby(runs, lambda run: run.role)]


def _status(runs: Sequence[Run], now: float, stale_secs: float) -> RoleStatus:
    run, before = runs[-1], reversed(runs[:-1])
    last = run.changes[-1] if run.changes else Change(time=run.began, state="starting")
    seen_age = max(0.0, now - run.last_seen)
    if run.end is not None:
        health = FAILED if run.end.failed else WELL
    elif seen_age >= stale_secs:
        health = GONE
    else:
        # What else may take long is no step: to wait for others, to save, to evaluate.
        steps = last.state == "training" or last.waits_for == ("input",)
        health = STALLED if steps and now - max(run.last_step or 0.0, last.time) >= stale_secs else WELL
    return RoleStatus(
        role=run.role,
        health=health,
        last=last,
        waits_for=last.waits_for,
        step=run.spent[-1].step,
        step_age=None if run.last_step is None else max(0.0, now - run.last_step),
        seen_age=seen_age,
        restarts=sum(1 for _ in itertools.takewhile(lambda one: one.end is None or one.end.failed, before)),
        spent=run.spent[-1],
    )


def prometheus_text(statuses: Sequence[RoleStatus], now: float) -> str:
    """Return the states in Prometheus' text format."""
    lines = []

    def add(name: str, kind: str, text: str, *values: tuple[RoleStatus, dict[str, str], float | None]) -> None:
        lines.append(f"# HELP te_training_{name} {text}\n# TYPE te_training_{name} {kind}\n")
        for status, labels, value in values:
            if value is not None:
                pairs = ",".join(f'{key}="{_escaped(one)}"' for key, one in {"role": status.role, **labels}.items())
                lines.append(f"te_training_{name}{{{pairs}}} {value:.15g}\n")

    def add_each(name: str, kind: str, text: str, value: Callable[[RoleStatus], float | None]) -> None:
        add(name, kind, text, *((one, {}, value(one)) for one in statuses))

    add_each("step", "gauge", "Last known global step.", lambda one: one.step)
    add_each(
        "last_step_timestamp_seconds",
        "gauge",
        "When the global step changed for the last time.",
        lambda one: None if one.step_age is None else now - one.step_age,
    )
    seen = "When the process wrote its state for the last time."
    add_each("last_seen_timestamp_seconds", "gauge", seen, lambda one: now - one.seen_age)
    add_each("restarts", "gauge", "Processes before this one that did not end well.", lambda one: one.restarts)
    add(
        "state",
        "gauge",
        "What the role does, whom it waits for, and whether it is well, stalled, gone or failed.",
        *(
            (one, {"state": one.last.state, "waits_for": ",".join(one.waits_for), "health": one.health}, 1)
            for one in statuses
        ),
    )
    add(
        "seconds_total",
        "counter",
        "How the time of the process was spent.",
        *((one, {"part": part}, getattr(one.spent, part)) for one in statuses for part in PARTS),
    )
    add_each("cpu_seconds_total", "counter", "Processor time of the process.", lambda one: one.spent.cpu)
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
