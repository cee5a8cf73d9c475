"""A row of the list of jobs: what small files and the ends of files say about a job or a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch_estimator import files
from torch_estimator.activity.timeline import FOLDER, HEAD_BYTES, NAME
from torch_estimator.checkpoint.index import checkpoint_step, read_index
from torch_estimator.console.log_window import LogWindow
from torch_estimator.console.sources import Found, is_evaluation, is_part, main_folder
from torch_estimator.console.texts import TRAINERS, arguments_of, clean, clock, is_secret
from torch_estimator.errors import UserError
from torch_estimator.jobs.directory import FINAL, JobDirectory, JobEvent, JobSpec, Status
from torch_estimator.runs.state_file import StateFile
from torch_estimator.runs.training_status import TrainingStatus, status_path
from torch_estimator.summary.scalar_file import Ends, last_scalars

Ended = Callable[[JobEvent], str | None]

_END_BYTES = 2**14
# Evaluations are few, and the best of all of them is looked for.
_EVALUATIONS_BYTES, _EVALUATION_FILES = 2**18, 20
_LINES_BYTES = 2000
_EVENTS = "tfevents"
# A run without a job runs if something was written to it so recently, and so does a job whose launcher is not seen.
_RECENT_SECS = 120.0

SILENT = "SILENT"
"""State of a job that should run, of which nothing was heard for long."""

# The metric that a list shows is the first of these that there is.
_HIGHER_IS_BETTER = ("auc", "accuracy", "f1", "precision", "recall")
_LOWER_IS_BETTER = ("rmse", "mae", "average_loss", "loss")


@dataclass(slots=True)
class Row:
    """What the list shows of a job or a run. Unknown numbers are None; times are in seconds since 1970.

    `kind` is ``job``, ``study`` or ``run``. `secs_left` is by the speed of the last steps. `value` is the best of
    all, or of the last `of_last` if that is not 0. `searched` has everything that a search looks at, in lower case.
    """

    id: str
    name: str
    kind: str = ""
    state: str = ""
    shown_state: str = ""
    reason: str = ""
    created: float | None = None
    place: str = ""
    step: int | None = None
    max_steps: int | None = None
    secs_left: float | None = None
    metric: str = ""
    value: float | None = None
    of_last: int = 0
    trials: str = ""
    waits_for: str = ""
    problem: str = ""
    searched: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is going to change, unless somebody goes on with it."""
        return self.state in FINAL or (self.kind == "run" and not self.state)

    @property
    def progress(self) -> float | None:
        """The part of the steps that is done, from 0 to 1."""
        return None if not self.max_steps or self.step is None else min(1.0, self.step / self.max_steps)


def read_row(found: Found, ended: Ended) -> Row:
    """Return the row of a job or a run."""
    row = Row(id=found.id, name=clean(found.name, 200), kind="run", place="event files")
    seen = _read_output(row, found) if found.folder else 0.0
    words = [found.name, "run"]
    if found.job is not None and found.spec is not None:
        words = _read_job(row, found.job, found.spec, ended, seen)
    elif time.time() - seen < _RECENT_SECS:
        row.state = row.shown_state = "RUNNING"
    if row.state != "RUNNING":
        row.secs_left, row.waits_for = None, ""
    row.metric = clean(row.metric, 60)
    row.searched = clean(" ".join([*words, row.metric]), 1000).lower()
    return row


def damaged(id: str, why: str) -> Row:
    """Return the row of a job that cannot be read."""
    name = id.partition(":")[2]
    return Row(id=id, name=clean(name, 200), kind="job", problem=clean(why, 300), searched=f"{name} damaged".lower())


def _read_job(row: Row, job: JobDirectory, spec: JobSpec, ended: Ended, seen: float) -> list[str]:
    """Read what a job's directory says; return the words by which it is found."""
    status = job.status(ended)
    row.state, row.shown_state, row.reason = status.state, clean(status.shown, 200), clean(status.reason, 300)
    row.created = spec.created
    row.place = clean(f"{spec.target}, {spec.tier}", 100)
    if spec.study is not None:
        row.kind, row.place = "study", clean(spec.target, 100)
        row.metric, row.value, row.trials = _of_study(job)
    else:
        row.kind = "job"
        if status.state == "RUNNING" and (since := _silent_since(job, status, seen)):
            row.state, row.shown_state = SILENT, f"{row.shown_state}, no sign of life since {clock(since)}"
            row.reason = (
                "Nothing was written since then, and its launcher cannot be seen from here; it may have been killed."
            )
    arguments = arguments_of(spec.arguments, spec.secret_arguments)
    labels = {key: value for key, value in spec.labels.items() if not is_secret(key)}
    words = [job.name, status.state, row.state, spec.target, spec.tier, spec.module_name]
    return words + [f"{key}={value}" for key, value in {**arguments, **labels}.items()]


def _silent_since(job: JobDirectory, status: Status, seen: float) -> float | None:
    """Return when a job that should run was last written to, if that is long ago and its launcher is not seen."""
    launched = job.launched()
    if launched is not None and launched.pid is not None and not status.host:
        return None
    last = max(seen, status.since, LogWindow(job.logs).last_time())
    return None if time.time() - last < _RECENT_SECS else last


def _read_output(row: Row, found: Found) -> float:
    """Read what the small files and the ends of the event files of a run say; return when it last wrote."""
    folder = main_folder(found)
    row.created = _first_written(folder)
    with contextlib.suppress(UserError, OSError, ValueError):
        if (status := StateFile(status_path(folder), TrainingStatus).read()) is not None:
            row.max_steps, row.created = status.max_steps, status.began or None
    ends = last_scalars(folder, _END_BYTES)
    points = max(ends.points.values(), key=lambda one: one[-1][2], default=None)
    recorded_step, seen, row.waits_for = _recorded(folder)
    steps = _saved_step(folder), None if points is None else points[-1][0], recorded_step
    row.step = max((one for one in steps if one is not None), default=None)
    if points is not None and row.max_steps is not None and row.step is not None:
        (first_step, _, began), (last_step, _, ended) = points[0], points[-1]
        if ended > began and last_step > first_step:
            row.secs_left = max(0.0, (row.max_steps - row.step) * (ended - began) / (last_step - first_step))
    is_inside = folder != found.folder and is_part(files.basename(folder))
    row.metric, row.value, row.of_last = _best(found.folder, None if is_inside else ends)
    return seen if points is None else max(seen, points[-1][2])


def _recorded(model_dir: str) -> tuple[int | None, float, str]:
    """Return step and time of the ends of a training's timelines, and what the first role that waits waits for."""
    folder = files.join(model_dir, FOLDER)
    newest: dict[str, tuple[int, str]] = {}
    for name in files.listdir(folder):
        if (match := NAME.fullmatch(name)) and match[1].startswith(TRAINERS):
            newest[match[1]] = max(newest.get(match[1], (0, "")), (int(match[2]), name))
    step, seen, waits_for = None, 0.0, ""
    sizes = files.sizes(folder) if newest else {}
    for _, name in (newest[role] for role in sorted(newest)):
        path = files.join(folder, name)
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError
        ):
            spent = json.loads(files.read_part(path, 0, HEAD_BYTES))["spent"]
            seen = max(seen, float(spent["time"]))
            step = max(step or 0, int(spent["step"])) if "step" in spent else step
            size = sizes[name]
            lines = files.read_part(path, max(HEAD_BYTES, size - _LINES_BYTES), size).splitlines()
            states = [content for line in lines[-3:] if "state" in (content := json.loads(line))]
            if states and states[-1]["state"] == "waiting" and not waits_for:
                waits_for = clean(", ".join(states[-1].get("waits_for", [])), 100)
    return step, seen, waits_for


def _saved_step(folder: str) -> int | None:
    """Return the step of the newest checkpoint."""
    with contextlib.suppress(UserError):
        index = read_index(folder)
        return None if index is None else checkpoint_step(index.latest)
    return None


def _first_written(folder: str) -> float | None:
    """Return the time in the name of the first event file."""
    names = [name.partition("tfevents.")[2].partition(".")[0] for name in files.listdir(folder) if "tfevents" in name]
    return min((float(name) for name in names if name.isdecimal()), default=None)


def _best(folder: str, own: Ends | None) -> tuple[str, float | None, int]:
    """Return name and best value of the metric that says most, and of how many last values it is; 0 if of all.

    `own` are the last points of the folder itself, if they were read already.
    """
    evaluations = sorted(name for name in files.listdir(folder) if is_evaluation(name))
    for place in [*(files.join(folder, name) for name in evaluations), folder]:
        if place == folder:
            ends = own or last_scalars(place, _END_BYTES)
        else:
            ends = last_scalars(place, _EVALUATIONS_BYTES, most_files=_EVALUATION_FILES)
        found = preferred(ends.points)
        if found is not None:
            tag, is_higher = found
            values = [value for _, value, _ in ends.points[tag] if math.isfinite(value)]
            if values:
                return tag, (max if is_higher else min)(values), 0 if ends.are_all else len(values)
    return "", None, 0


def preferred(tags: Iterable[str]) -> tuple[str, bool] | None:
    """Return which of the metrics says most, and whether higher values of it are better."""
    by_name = {tag.rpartition("/")[2].removeprefix("epoch_"): tag for tag in sorted(tags, reverse=True)}
    for name in (*_HIGHER_IS_BETTER, *_LOWER_IS_BETTER):
        if name in by_name:
            return by_name[name], name in _HIGHER_IS_BETTER
    return None


def _of_study(job: JobDirectory) -> tuple[str, float | None, str]:
    """Return the metric of a study, its best value, and how its trials do."""
    # Most lists have none.
    from torch_estimator.console.studies import read_trials
    from torch_estimator.tuning.directory import StudyDirectory, best_trial

    directory = StudyDirectory(job)
    try:
        study, (trials, _) = directory.study(), read_trials(directory)
    except (UserError, ValueError):
        return "", None, ""
    best = best_trial(trials, study)
    states = [trial.state for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state.lower()}" for state in dict.fromkeys(states))
    return study.metric, None if best is None else best.value, counts or "no trials yet"


def changed_at(found: Found) -> float:
    """Return when a job last got an event, or when a run was last written to; 0 at a URL, where asking takes long."""
    with contextlib.suppress(OSError, ValueError):
        if found.job is not None:
            return os.stat(files.join(found.job.url, "events")).st_mtime if found.job.is_local else 0.0
        if files.is_local(found.folder):
            folder = main_folder(found)
            return max(os.stat(files.join(folder, name)).st_mtime for name in files.listdir(folder) if _EVENTS in name)
    return 0.0
