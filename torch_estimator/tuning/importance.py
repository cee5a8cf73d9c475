"""How much of the difference between trials each parameter explains: a simple measure, which needs no other package.

The trials are put into up to four groups by a parameter's value, each of its values a group where it has no order. The
measure is the share of the variance of the trials' ranks that lies between the groups: a correlation ratio, corrected
for the number of groups (epsilon squared, Kelley, 1935), so that a parameter without effect has about 0. Ranks make it
a function of the order of the trials alone: one loss of 10^9 counts as one trial. It sees no effect that a parameter
has only together with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from torch_estimator.errors import InvalidValueError
from torch_estimator.tuning.directory import Trial, rank
from torch_estimator.tuning.space import Parameter, Space
from torch_estimator.tuning.study import Study

FEW = 16
"""Below as many trials, the shares say little: four groups of four."""

_GROUPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The share of each parameter, from 0 to 1, the greatest first, by `count` trials; of equal steps if `step` is one.

    Shares need not add up to 1.
    """

    shares: dict[str, float] = field(default_factory=dict)
    count: int = 0
    step: int | None = None


def importance(trials: Sequence[Trial], study: Study) -> Importance:
    """Return the shares of a study's parameters. With early stopping, trials are compared at their first rung."""
    there = [one for one in trials if one.results and one.state != "FAILED"]
    results = [one.results[0 if study.early_stopping else -1] for one in there]
    steps = {step for step, _ in results}
    ranks = _ranks([rank(value, study) for _, value in results])
    shares = {}
    for name, parameter in parameters_of(study.space).items():
        shares[name] = _share(ranks, _groups([position_of(parameter, one) for one in there], parameter.axis.is_ordered))
    greatest_first = dict(sorted(shares.items(), key=lambda one: -one[1]))
    return Importance(shares=greatest_first, count=len(there), step=steps.pop() if len(steps) == 1 else None)


def parameters_of(space: Space) -> dict[str, Parameter]:
    """Return all parameters by name, each after the one that it depends on; of conditional ones of a name the first."""
    found: dict[str, Parameter] = {}

    def walk(parameters: Iterable[Parameter]) -> None:
        for one in parameters:
            found.setdefault(one.name, one)
            walk(child.parameter for child in one.children)

    walk(space.parameters)
    return found


def position_of(parameter: Parameter, trial: Trial) -> float | None:
    """Return the number on the parameter's axis of a trial's value; None if the trial has no such value."""
    text = trial.parameters.get(parameter.name)
    try:
        return None if text is None else float(parameter.number_of(text))
    except InvalidValueError:
        return None


def _ranks(keys: Sequence[tuple[bool, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the rank of each key, that of equal ones the mean of theirs."""
    numbers = [np.inf if is_nan else number for is_nan, number in keys]
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: np.ndarray[tuple[int], np.dtype[np.float64]] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def _groups(positions: Sequence[float | None], is_ordered: bool) -> list[int]:
    """Return the group of each trial; those without a value are a group of their own."""
    values = sorted({one for one in positions if one is not None})
    bounds: Callable[[float], int] = values.index
    if is_ordered and len(values) > _GROUPS:
        edges = np.quantile([one for one in positions if one is not None], np.arange(1, _GROUPS) / _GROUPS)

        def bounds(value: float) -> int:
            return int(np.searchsorted(edges, value, "right"))

    return [-1 if one is None else bounds(one) for one in positions]


def _share(ranks: np.ndarray[tuple[int], np.dtype[np.float64]], groups: Sequence[int]) -> float:
    names, count = set(groups), len(groups)
    whole = float(((ranks - ranks.mean()) ** 2).sum()) if count else 0.0
    if not 1 < len(names) < count or whole == 0:
        return 0.0
    of = np.array(groups)
    within = sum(float(((ranks[of == one] - ranks[of == one].mean()) ** 2).sum()) for one in names)
    return max(0.0, 1 - within / (count - len(names)) * (count - 1) / whole)
