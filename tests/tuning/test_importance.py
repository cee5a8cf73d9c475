"""The importance of parameters: shares of the variance of ranks, corrected for the number of groups."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from torch_estimator.tuning.directory import Trial
from torch_estimator.tuning.importance import importance
from torch_estimator.tuning.space import Categorical, Child, Discrete, Double, Integer, Space
from torch_estimator.tuning.study import Study


def trial(number: int, value: float | None, *, step: int = 10, **parameters: str) -> Trial:
    results = [] if value is None else [(step, value)]
    return Trial(number=number, parameters=parameters, job_dir="", compile=None, threads=1, results=results)


def study(*parameters: Any, **asked: Any) -> Study:
    return Study(space=Space(parameters), goal="MINIMIZE", **asked)


def test_a_parameter_that_decides_has_nearly_all_and_one_without_effect_nearly_nothing() -> None:
    draw = random.Random(0)
    trials = []
    for number in range(1, 201):
        rate, size = draw.uniform(0.1, 1.0), draw.randint(1, 9)
        trials.append(trial(number, rate, rate=str(rate), size=str(size), kind=draw.choice("ab")))
    found = importance(trials, study(Integer("size", 1, 9), Categorical("kind", ("a", "b")), Double("rate", 0.1, 1.0)))
    assert next(iter(found.shares)) == "rate"
    assert found.shares["rate"] > 0.9
    assert found.shares["size"] < 0.05
    assert found.shares["kind"] < 0.05
    assert (found.count, found.step) == (200, 10)


def test_one_loss_without_bounds_and_one_that_is_nan_count_as_the_worst_two() -> None:
    asked = study(Discrete("rate", ("1", "2")))
    tame = [trial(number, float(number), rate=str(1 + (number > 8))) for number in range(1, 17)]
    wild = [*tame[:14], trial(15, 1e30, rate="2"), trial(16, math.nan, rate="2")]
    assert importance(wild, asked).shares == importance(tame, asked).shares
    # 16 ranks in two halves: between them lie 1,024 of 1,360, less what two groups have by chance.
    assert importance(tame, asked).shares["rate"] == pytest.approx(1 - (84 / 14) / (340 / 15))


def test_trials_are_compared_at_their_first_rung_where_some_stop_early() -> None:
    asked = study(Discrete("rate", ("1", "2")), early_stopping=True)
    trials = [trial(number, float(number), rate=str(1 + number % 2)) for number in range(1, 9)]
    trials[0].results.append((40, -1.0))
    found = importance(trials, asked)
    assert (found.count, found.step) == (8, 10)


def test_a_parameter_that_exists_for_some_trials_only_has_a_group_for_the_others() -> None:
    parent = Categorical("kind", ("a", "b"), children=(Child(Integer("depth", 1, 2), ("b",)),))
    trials = [trial(number, 0.0, kind="a") for number in range(1, 5)]
    trials += [trial(number, 1.0, kind="b", depth="1") for number in range(5, 9)]
    assert importance(trials, study(parent)).shares == {"kind": 1.0, "depth": 1.0}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_trials_say_nothing(count: int) -> None:
    trials = [trial(number, float(number), rate=str(number)) for number in range(1, count + 1)]
    found = importance([*trials, trial(9, None, rate="1")], study(Discrete("rate", ("1", "2"))))
    assert (found.shares, found.count) == ({"rate": 0.0}, count)
