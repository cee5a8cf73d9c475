"""The metric of a trial: its values by step, from whatever the program wrote below its job directory.

The sources are, in this order: the record of an evaluator of this package, event files of any framework, and the file
to which cloudml-hypertune writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.executors import evaluation_record
from torch_estimator.runs.state_file import StateFile

_EVAL = "eval"
_MOST_NAMED = 10
_NOTHING = "nothing was measured in {}, which the program gets as --job-dir"


class _Curve(NamedTuple):
    """Values by step of the metric `tag` that an evaluation `place` wrote, or whatever writes into a directory.

    Of curves that fit a metric's name, those of the lowest rank count.
    """

    rank: int
    place: str
    tag: str
    values: dict[int, float]

    @property
    def name(self) -> str:
        return f"{self.place}/{self.tag}" if self.place else self.tag


def read_metric(job_dir: str, metric: str, reported: str) -> dict[int, float]:
    """Return the values of a metric by step, in the order of the steps.

    `reported` is the file of cloudml-hypertune. Raise an InvalidValueError that says which metrics there are, if this
    one is not there, or if several evaluations have it.
    """
    curves = sorted(_curves(job_dir, reported), key=lambda one: (one.rank, one.name))
    found = [one for one in curves if metric in (one.tag, one.name)]
    if not found:
        names = list(dict.fromkeys(one.name for one in curves))
        there = f"these did: {', '.join(names[:_MOST_NAMED])}" if names else _NOTHING.format(job_dir)
        raise InvalidValueError(f"the metric {metric!r} never appeared; {there}.")
    best = [one for one in found if one.rank == found[0].rank]
    names = sorted({one.name for one in best})
    if len(names) > 1:
        raise InvalidValueError(f"several places have the metric {metric!r}; name one of {', '.join(names)}.")
    values: dict[int, float] = {}
    for one in best:
        values.update(one.values)
    return dict(sorted(values.items()))


def _curves(job_dir: str, reported: str) -> Iterator[_Curve]:
    # Only here, as it imports PyTorch.
    from torch_estimator.summary.event_reader import read_scalars

    there = files.all_files(job_dir)
    folders = sorted({name.rpartition("/")[0] for name in there if "tfevents" in files.basename(name)})
    for folder in folders:
        base = files.basename(folder) if folder else ""
        is_evaluation = base == _EVAL or base.startswith(f"{_EVAL}_")
        place = base.removeprefix(_EVAL).removeprefix("_") if is_evaluation else base
        for tag, points in read_scalars(files.join(job_dir, folder) if folder else job_dir).items():
            rank = (1 if place else 0) if is_evaluation else 2
            yield _Curve(rank, place, tag, {point.step: point.value for point in points})
    for name in there:
        # The record has the last evaluation only, but exactly. Event files have float32.
        if files.basename(name) == evaluation_record.NAME:
            state = StateFile(files.join(job_dir, name), evaluation_record.EvaluatorState).read()
            for place, spec in state.specs.items() if state is not None else ():
                for tag, value in spec.metrics.items():
                    if isinstance(value, int | float):
                        yield _Curve(1 if place else 0, place, tag, {spec.step: float(value)})
    yield from _reported(reported)


def _reported(path: str) -> Iterator[_Curve]:
    """Yield what cloudml-hypertune wrote: a JSON object a line, with the step and one metric among its keys."""
    try:
        lines = files.read_text(path).splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            content: dict[str, Any] = json.loads(line)
            step = int(content.pop("global_step", 0))
            for key in ("timestamp", "trial", "checkpoint_path"):
                content.pop(key, None)
            values = {tag: float(value) for tag, value in content.items()}
        except (ValueError, TypeError, AttributeError):
            # A program that was killed leaves half a line.
            continue
        for tag, value in values.items():
            yield _Curve(3, "", tag, {step: value})
