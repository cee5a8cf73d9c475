"""ASHA: asynchronous successive halving with promotion (Li et al., 2018, "Massively Parallel Hyperparameter Tuning").

Trials are evaluated at rungs, which are numbers of steps that grow by a factor. A trial pauses at each rung. It is
promoted to the next rung once it is among the best ``1 / factor`` of all that have reached its own. Nobody waits for a
rung to be complete: when no paused trial can be promoted, a new one is started (Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a trial has come: its metric at rung 0, 1, …, and the rung that it was last sent to.

    A trial has ended or pauses at the last of its rungs if it was sent no further; else it runs, or failed on its way.
    """

    values: Sequence[float]
    sent_to: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """What to do next: send a trial to a rung. The trial None is a new one."""

    trial: int | None
    rung: int


def rungs(least: int, most: int, factor: int = 4) -> list[int]:
    """Return the steps of the rungs: `least` times powers of the factor, and `most`, up to which the best are trained.

    >>> rungs(100, 1600), rungs(100, 2000), rungs(500, 400)
    ([100, 400, 1600], [100, 400, 1600, 2000], [400])
    """
    if least < 1 or most < 1 or factor < 2:
        raise InvalidValueError(
            f"rungs need at least 1 step and a factor of 2 or more, but got {least} to {most} steps and {factor}."
        )
    steps = []
    while least < most:
        steps.append(least)
        least *= factor
    return [*steps, most]


def next_move(
    trials: Mapping[int, Standing], rung_count: int, *, maximize: bool, can_start: bool = True, factor: int = 4
) -> Move | None:
    """Return what a free worker should do; None if no trial can be promoted, and none be started.

    The highest rung comes first, and in a rung the best trial. A metric that is NaN counts as the worst, and of equal
    ones that of the trial with the lower number as the better one.

    >>> trials = {0: Standing([0.7]), 1: Standing([0.9]), 2: Standing([0.8]), 3: Standing([0.6])}
    >>> next_move(trials, 3, maximize=True)
    Move(trial=1, rung=1)
    >>> next_move({**trials, 1: Standing([0.9], sent_to=1)}, 3, maximize=True)
    Move(trial=None, rung=0)
    """

    def rank(number: int, rung: int) -> tuple[bool, float, int]:
        value = trials[number].values[rung]
        return math.isnan(value), 0.0 if math.isnan(value) else -value if maximize else value, number

    for rung in range(rung_count - 2, -1, -1):
        reached = [number for number, one in trials.items() if len(one.values) > rung]
        best = sorted(reached, key=lambda number: rank(number, rung))[: len(reached) // factor]
        for number in best:
            if trials[number].sent_to <= rung:
                return Move(number, rung + 1)
    return Move(None, 0) if can_start else None
