"""Timelines of the roles of a made-up job, as the recorder of `torch_estimator.activity` writes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_estimator.activity.timeline import FOLDER, HEAD_BYTES, Change, Spent

_AWAY_SECS = 5.0
_SAVES_EVERY_SECS = 120.0
_SPENT_EVERY_SECS = 60.0


def write(
    model_dir: Path,
    roles: Sequence[str],
    kills: Sequence[tuple[str, float]],
    began: float,
    secs: float,
    *,
    has_ended: bool,
) -> None:
    """Write a timeline for each process: some roles are killed once, after so many seconds, and started again."""
    for number, role in enumerate(roles):
        killed = [after for name, after in kills if name == role]
        starts = [0.0, *(after + _AWAY_SECS for after in killed)]
        for start, end in zip(starts, [*killed, secs], strict=True):
            changes = [one for one in _changes(role, kills, secs) if start + 8 < one.time < end]
            first = [Change(time=start, state="starting"), Change(time=start + 8, state=_work(role))]
            last = [Change(time=end, state="ended")] if has_ended and end == secs else []
            moved = [dataclasses.replace(one, time=began + one.time) for one in [*first, *changes, *last]]
            write_run(model_dir, role, 5000 + number, began + start, moved, _spent(role, began, start, end))


def write_run(
    model_dir: Path, role: str, pid: int, began: float, changes: Sequence[Change], spent: Sequence[Spent]
) -> Path:
    """Write the timeline of one process; return its file."""
    file = model_dir / FOLDER / f"{role}.{began * 1000:.0f}-{pid}.jsonl"
    file.parent.mkdir(exist_ok=True)
    lines: list[Change | Spent] = sorted([*changes, *spent], key=lambda one: one.time)
    file.write_bytes(head(role, pid, began, spent[-1]) + b"".join(map(line, lines)))
    return file


def head(role: str, pid: int, began: float, spent: Spent) -> bytes:
    """Return the first line of a file."""
    about = {"role": role, "pid": pid, "host": "node-7", "began": began, "last_step": spent.time}
    return f"{json.dumps({**about, 'spent': _content(spent)}):<{HEAD_BYTES - 1}}\n".encode()


def line(content: Change | Spent) -> bytes:
    """Return a line of a file after the first."""
    return json.dumps(_content(content)).encode() + b"\n"


def _content(found: Change | Spent) -> dict[str, Any]:
    return {one.name: value for one in dataclasses.fields(found) if (value := getattr(found, one.name)) != one.default}


def _work(role: str) -> str:
    kind = role.partition("-")[0]
    return {"ps": "serving", "evaluator": "evaluating"}.get(kind, "training")


def _changes(role: str, kills: Sequence[tuple[str, float]], secs: float) -> list[Change]:
    """Return what a role does beside its work, at seconds since the beginning of the job."""
    found = []
    for name, after in kills:
        if name != role and not role.startswith(("ps", "evaluator")):
            found += [
                Change(time=after + 1, state="waiting", waits_for=(name,)),
                Change(time=after + _AWAY_SECS + 8, state=_work(role)),
            ]
    for number in range(1, int(secs / _SAVES_EVERY_SECS)):
        at = number * _SAVES_EVERY_SECS
        if role.startswith("chief"):
            found += [Change(time=at, state="saving"), Change(time=at + 1.5, state="training")]
        elif role.startswith("evaluator"):
            found += [
                Change(time=at - 60, state="waiting", waits_for=("chief-0",)),
                Change(time=at + 2, state="evaluating"),
                Change(time=at + 40, state="exporting"),
            ]
    return sorted(found, key=lambda one: one.time)


def _spent(role: str, began: float, start: float, end: float) -> list[Spent]:
    """Return how a process spent its time."""
    found = []
    count = max(1, int((end - start) / _SPENT_EVERY_SECS))
    for number in range(1, count + 1):
        at = start + number * (end - start) / count
        rest = max(0.0, at - start - 8)
        shares = {"servers": 0.2, "input": 0.15, "others": 0.05}
        if not role.startswith(("chief", "worker")):
            shares = {"others": 0.4}
        parts = {name: round(rest * share, 3) for name, share in shares.items()}
        computing = round(rest - sum(parts.values()), 3)
        found.append(
            Spent(time=began + at, step=int(at * 3.3), starting=8.0, computing=computing, cpu=round(rest, 3), **parts)
        )
    return found
