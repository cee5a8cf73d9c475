"""Pictures of a study: its trials at each rung, and lines through the values of their parameters to their metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_estimator.console import texts
from torch_estimator.tuning.directory import Trial, rank
from torch_estimator.tuning.importance import parameters_of, position_of
from torch_estimator.tuning.space import Axis, Parameter
from torch_estimator.tuning.study import Study

WIDTH, HEIGHT = 1000, 320
"""Size of the lines' picture, in its own units."""

_TOP, _BOTTOM, _SIDE = 52, 300, 60
_MOST_TICKS = 6
# Width of a character, in the same units; texts end before the next axis.
_CHARACTER = 8
_MOST_CHARACTERS = 18
# A metric of which the greatest value is so many times the least one gets a logarithmic axis.
_SPREAD = 30.0
_GOOD_PART = 4


Cell = tuple[int, str, str]
"""A trial at a rung: its number, ``on`` where it went further, else its state in lower case, and a sentence."""

Tick = tuple[float, str]
"""A place on an axis, and the value there."""


def rung_rows(trials: Sequence[Trial], states: Sequence[str], study: Study) -> list[tuple[str, list[Cell]]]:
    """Return the trials that came to each rung, or are on their way there, the highest rung and best trial first."""
    highest = max((max(one.rung, len(one.results) - 1) for one in trials), default=-1)
    rows = []
    for rung in range(highest, -1, -1):
        pairs = zip(trials, states, strict=True)
        there = [pair for pair in pairs if len(pair[0].results) > rung or pair[0].rung == rung]
        there.sort(key=lambda pair: (len(pair[0].results) <= rung, _rank_at(pair[0], rung, study), pair[0].number))
        steps = sorted({one.results[rung][0] for one, _ in there if len(one.results) > rung})
        label = "no result yet" if not steps else f"step {steps[0]:,}"
        label += f" to {steps[-1]:,}" if len(steps) > 1 else ""
        rows.append((label, [_cell(one, state, rung, study) for one, state in there]))
    return rows


def _rank_at(trial: Trial, rung: int, study: Study) -> tuple[bool, float]:
    return rank(trial.results[rung][1], study) if len(trial.results) > rung else (True, 0.0)


def _cell(trial: Trial, state: str, rung: int, study: Study) -> Cell:
    kind = "on" if trial.rung > rung or len(trial.results) > rung + 1 else state.lower()
    title = f"Trial {trial.number}, {'went on' if kind == 'on' else kind}"
    if len(trial.results) > rung:
        title += f", {texts.clean(study.metric, 60)} {texts.number(trial.results[rung][1])}"
    return trial.number, kind, title


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Parallel coordinates.

    `axes` has place, name and ticks of each parameter and of the metric; `lines` has the number of each trial with a
    value, ``best``, ``good`` for those of the best quarter, or ``rest``, the points of its line, and a sentence.
    """

    axes: list[tuple[float, str, list[Tick]]]
    lines: list[tuple[int, str, str, str]]


def coordinates(trials: Sequence[Trial], study: Study, best: Trial | None) -> Coordinates:
    """Return the picture; the best trials come last, so that they are drawn over the others."""
    there = [one for one in trials if one.value is not None and one.state != "FAILED"]
    there.sort(key=lambda one: rank(one.value or 0.0, study), reverse=True)
    parameters = parameters_of(study.space)
    between = (WIDTH - 2 * _SIDE) / len(parameters)
    xs = [_SIDE + between * place for place in range(len(parameters) + 1)]
    metric = _metric_axis([one.value for one in there if one.value is not None])
    most = max(4, min(_MOST_CHARACTERS, int(between / _CHARACTER) - 1))
    axes = [
        (x, _cut(name, most), _ticks(parameter, most))
        for x, (name, parameter) in zip(xs, parameters.items(), strict=False)
    ]
    halves = dict.fromkeys(metric.at(part) for part in (0.0, 0.5, 1.0))
    ticks = [(_metric_y(metric, half, study), texts.number(2 * half)) for half in halves]
    axes.append((xs[-1], _cut(study.metric, most), ticks))
    good = max(1, len(there) // _GOOD_PART)
    lines = []
    for place, one in enumerate(there):
        kind = "best" if one is best else "good" if len(there) - place <= good else "rest"
        places = [(x, _y(parameter, one)) for x, parameter in zip(xs, parameters.values(), strict=False)]
        places.append((xs[-1], _metric_y(metric, (one.value or 0.0) / 2, study)))
        # A parameter that does not exist for the trial is passed by.
        path = " ".join(f"{x:.0f},{y:.1f}" for x, y in places if y is not None)
        said = ", ".join(f"{name} {value}" for name, value in one.parameters.items())
        title = f"Trial {one.number}: {study.metric} {texts.number(one.value)}; {said}"
        lines.append((one.number, kind, path, texts.clean(title, 400)))
    lines.sort(key=lambda line: line[1] == "best")
    return Coordinates(axes, lines)


def _cut(text: str, most: int) -> str:
    shown = texts.clean(text, 200)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _at(part: float) -> float:
    return _BOTTOM - part * (_BOTTOM - _TOP)


def _part(axis: Axis, number: float) -> float:
    low, high = (math.log(axis.low), math.log(axis.high)) if axis.is_log else (axis.low, axis.high)
    return 0.5 if high <= low else ((math.log(number) if axis.is_log else number) - low) / (high - low)


def _y(parameter: Parameter, trial: Trial) -> float | None:
    number = position_of(parameter, trial)
    return None if number is None else _at(_part(parameter.axis, number))


def _ticks(parameter: Parameter, most: int) -> list[Tick]:
    axis = parameter.axis
    if axis.size is not None and axis.size <= _MOST_TICKS:
        numbers = [axis.low + place for place in range(int(axis.size))]
    else:
        numbers = list(dict.fromkeys(axis.at(part) for part in (0.0, 0.5, 1.0)))
    found = []
    for number in numbers:
        text = parameter.text_at(number)
        shown = texts.number(float(text)) if axis.is_ordered else _cut(text, most)
        found.append((_at(_part(axis, number)), shown))
    return found


def _metric_axis(values: Sequence[float]) -> Axis:
    """Return the axis of half the metric, since the differences of huge values overflow."""
    finite = [value / 2 for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    return Axis(low=low, high=high, is_log=low > 0 and high > _SPREAD * low)


def _metric_y(axis: Axis, half: float, study: Study) -> float:
    """Return the place of half the metric; the best one is at the top."""
    part = _part(axis, half) if math.isfinite(half) else None
    return _at(0.0 if part is None else part if study.goal == "MAXIMIZE" else 1 - part)
