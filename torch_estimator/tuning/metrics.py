"""The metric of a trial: its values by step, from whatever the program wrote below its job directory.

The sources are, in this order: the record of an evaluator of this package, event files of any framework, and the file
to which cloudml-hypertune writes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.executors import evaluation_record
from torch_estimator.json_text import shortened
from torch_estimator.runs.state_file import StateFile
from torch_estimator.summary.scalar_reader import read_scalars
from torch_estimator.tuning.study import DEFAULT_METRIC

_EVAL = "eval"
# Ranks of curves that are no evaluation: in event files, and reported with cloudml-hypertune.
_EVENTS, _REPORTED = 2, 3
_MOST_NAMED = 10
_NOTHING = "nothing was measured in {}, which the program gets as --job-dir"


class _Curve(NamedTuple):
    """Values by step of the metric `tag` in a folder below the job directory, to which an evaluation `place` wrote.

    What is no evaluation has the last part of its folder as `place`. Of curves that fit a metric's name, those of the
    lowest rank count.
    """

    rank: int
    folder: str
    place: str
    tag: str
    values: dict[int, Any]

    @property
    def name(self) -> str:
        return f"{self.place}/{self.tag}" if self.place else self.tag

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.tag}" if self.folder else self.tag

    def is_called(self, metric: str) -> bool:
        return metric in (self.tag, self.name, self.path)


class Measured(NamedTuple):
    """Values of a metric by step, in the order of the steps, and whether they are those of evaluated checkpoints."""

    values: dict[int, float]
    is_evaluated: bool

    def rung(self, wanted: int, paused_at: int) -> int | None:
        """Return the step of a rung, for a trial that was to pause from step `wanted` on; None without a value there.

        A process that was killed between an evaluation and its pause has trained on to the next one.
        """
        steps = [step for step in self.values if step <= paused_at]
        if self.is_evaluated:
            return min((step for step in steps if step >= wanted), default=None)
        return paused_at if steps else None


def read_metric(job_dir: str, metric: str, reported: str) -> Measured:
    """Return the values of a metric.

    The name of a metric is its tag, that after the evaluation's name, as in ``holdout/auc``, or that after its folder,
    as in ``first/eval/auc``. `reported` is the file of cloudml-hypertune. Raise an InvalidValueError that says which
    metrics there are, if this one is not there or a text, or if several places have it.
    """
    curves = sorted(_curves(job_dir, reported), key=lambda one: (one.rank, one.name, one.folder))
    found = [one for one in curves if one.is_called(metric)]
    if not found:
        for one in _curves(job_dir, reported, of_texts=True):
            if one.is_called(metric):
                raise InvalidValueError(
                    f"the metric {metric!r} is a text, such as {shortened(next(iter(one.values.values())))}, but only "
                    "numbers can be compared."
                )
        names = _names(curves)
        there = f"these did: {', '.join(names[:_MOST_NAMED])}" if names else _NOTHING.format(job_dir)
        if metric == DEFAULT_METRIC:
            there += "; hyperparameterMetricTag names another one"
        raise InvalidValueError(f"the metric {metric!r} never appeared; {there}.")
    best = [one for one in found if one.rank == found[0].rank]
    if len({one.folder for one in best}) > 1:
        raise InvalidValueError(f"several places have the metric {metric!r}; name one of {', '.join(_names(best))}.")
    values: dict[int, float] = {}
    for one in best:
        values.update(one.values)
    return Measured(dict(sorted(values.items())), found[0].rank < _EVENTS)


def _names(curves: Sequence[_Curve]) -> list[str]:
    """Return names that choose one curve each: the short ones, and where two folders share one, those with folders."""
    folders: dict[str, set[str]] = {}
    for one in curves:
        folders.setdefault(one.name, set()).add(one.folder)
    return list(dict.fromkeys(one.name if len(folders[one.name]) == 1 else one.path for one in curves))


def _curves(job_dir: str, reported: str, *, of_texts: bool = False) -> Iterator[_Curve]:
    """Yield what was written as numbers, or as texts."""
    kind: Any = str if of_texts else int | float
    there = files.all_files(job_dir)
    folders = sorted({name.rpartition("/")[0] for name in there if "tfevents" in files.basename(name)})
    for folder in folders:
        for tag, values in (_texts if of_texts else _scalars)(files.join(job_dir, folder) if folder else job_dir):
            yield _Curve(*_place(folder), tag, values)
    for name in there:
        # The record has the last evaluation only, but exactly. Event files have float32.
        if files.basename(name) == evaluation_record.NAME:
            state = StateFile(files.join(job_dir, name), evaluation_record.EvaluatorState).read()
            for place, spec in state.specs.items() if state is not None else ():
                folder = name.removesuffix(evaluation_record.NAME) + (f"{_EVAL}_{place}" if place else _EVAL)
                for tag, value in spec.metrics.items():
                    if isinstance(value, kind):
                        yield _Curve(*_place(folder), tag, {spec.step: value if of_texts else float(value)})
    yield from (one for one in _reported(reported) if all(isinstance(value, kind) for value in one.values.values()))


def _place(folder: str) -> tuple[int, str, str]:
    """Return the rank of what was written to a folder, the folder, and the name of the place."""
    base = files.basename(folder) if folder else ""
    if base == _EVAL:
        return 0, folder, ""
    return (1, folder, base.removeprefix(f"{_EVAL}_")) if base.startswith(f"{_EVAL}_") else (_EVENTS, folder, base)


def _scalars(folder: str) -> Iterator[tuple[str, dict[int, float]]]:
    for tag, points in read_scalars(folder).items():
        yield tag, points.by_step()


def _texts(folder: str) -> Iterator[tuple[str, dict[int, str]]]:
    from torch_estimator.summary.event_reader import read_events

    for event in read_events(folder):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "text" and value.tensor.string_val:
                yield value.tag, {event.step: value.tensor.string_val[0].decode(errors="replace")}


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
            values = {tag: _number(value) for tag, value in content.items()}
        except (ValueError, TypeError, AttributeError):
            # A program that was killed leaves half a line.
            continue
        for tag, value in values.items():
            yield _Curve(_REPORTED, "", "", tag, {step: value})


def _number(value: Any) -> Any:
    """Return the number that cloudml-hypertune's users may give as a text; any other value as it is."""
    with contextlib.suppress(ValueError, TypeError):
        return float(value)
    return value
