"""Command ``estimator status``: what each role of a training does, for people and for probes."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from torch_estimator.cli.tables import aligned
from torch_estimator.errors import InvalidValueError, printable

if TYPE_CHECKING:
    from torch_estimator.activity.status import RoleStatus

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
The exit status is 0 if all roles are well or have ended well, 3 if one should have taken a step and did not, 4 if one
is gone: it neither writes what it does nor has it said that it ends, and 5 if one has ended with an error or by a
signal. The highest one counts. A role that waits for others is well, and so is one that saves, evaluates or exports.
Ages are as right as the clocks of the machines."""

_EXIT_STATUSES = {"well": 0, "stalled": 3, "gone": 4, "failed": 5}


def add_to(commands: Commands) -> None:
    """Add the command and its options to the parser."""
    parser = commands.add_parser(
        "status",
        help="print what each role of a training does",
        description="Prints what each role of a training does: its state, its step and whom it waits for.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("model_dir", metavar="DIR", help="model_dir of the training, also a URL")
    add(
        "--stale-secs",
        type=float,
        default=120.0,
        metavar="SECS",
        help="age of the last step, or of the last sign of life, from which on something is wrong (default: 120)",
    )
    add("--format", choices=("text", "json"), default="text", help="text for people, json for programs (default: text)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the states; return the exit status for probes."""
    from torch_estimator import files
    from torch_estimator.activity.status import role_statuses
    from torch_estimator.activity.timeline import read_runs

    if not options.stale_secs > 0:
        raise InvalidValueError(f"--stale-secs must be positive, but got {options.stale_secs:g}.")
    try:
        runs = read_runs(options.model_dir)
        if not runs:
            raise InvalidValueError(_why_nothing(options.model_dir))
    except OSError as error:
        raise InvalidValueError(f"{options.model_dir} cannot be read: {files.reason(error)}.") from error
    now = time.time()
    statuses = role_statuses(runs, now, options.stale_secs)
    if options.format == "json":
        print(json.dumps([_as_json(one, now) for one in statuses]))
    else:
        header = ["ROLE", "STATE", "STEP", "STEP AGE", "WAITS FOR", "RESTARTS", "SEEN", "TIME"]
        print(printable(aligned([header, *(_row(one, now) for one in statuses)])))
        for one in statuses:
            if one.last.reason:
                print(printable(f"{one.run.role} ended: {one.last.reason}"))
    return max(_EXIT_STATUSES[one.health] for one in statuses)


def _why_nothing(model_dir: str) -> str:
    from torch_estimator import files

    if not files.exists(model_dir):
        return f"{model_dir} does not exist; name the model_dir of a training."
    if not files.is_dir(model_dir):
        return f"{model_dir} is a file; name the model_dir of a training."
    if files.exists(files.join(model_dir, "job.json")):
        return f"{model_dir} is the directory of a job; name the model_dir that its program trains in."
    return f"{model_dir} has no record of a training; name the model_dir of one that runs with this version or later."


def _row(one: RoleStatus, now: float) -> list[str]:
    step, last_step = one.spent.step, one.run.last_step
    return [
        one.run.role,
        one.last.state if one.health == "well" else f"{one.health} ({one.last.state})",
        "" if step is None else str(step),
        "" if last_step is None else _age(now - last_step),
        ", ".join(one.last.waits_for),
        str(one.restarts),
        f"{_age(now - one.run.last_seen)} ago",
        _shares(one),
    ]


def _age(secs: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if secs >= 2 * size:
            return f"{secs / size:.0f} {unit}"
    return f"{max(0.0, secs):.0f} s"


def _shares(one: RoleStatus) -> str:
    """Return the two parts of the time that are the largest, such as ``71 % computing, 20 % input``."""
    from torch_estimator.activity.status import PARTS

    secs = {part: getattr(one.spent, part) for part in PARTS}
    total = sum(secs.values()) or 1.0
    largest = sorted(secs, key=lambda part: -secs[part])[:2]
    return ", ".join(f"{100 * secs[part] / total:.0f} % {part}" for part in largest if secs[part] >= total / 200 > 0)


def _as_json(one: RoleStatus, now: float) -> dict[str, object]:
    return {
        "role": one.run.role,
        "health": one.health,
        "state": one.last.state,
        "waitsFor": one.last.waits_for,
        "step": one.spent.step,
        "stepAgeSecs": None if one.run.last_step is None else max(0.0, now - one.run.last_step),
        "seenAgeSecs": max(0.0, now - one.run.last_seen),
        "restarts": one.restarts,
        "reason": one.last.reason,
        "spent": asdict(one.spent),
    }
