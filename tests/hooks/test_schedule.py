"""When hooks are due, and how many steps nobody wants to be told of."""

from __future__ import annotations

from typing import Any

import pytest

import torch_estimator as te
from torch_estimator.hooks.schedule import HookSchedule


class Told(te.Hook):
    def __init__(self, **when: Any) -> None:
        vars(self).update(when)

    def after_step(self, context: te.RunContext) -> None:
        raise AssertionError("Nobody runs here.")


HOOKS: list[list[dict[str, Any]]] = [
    [],
    [{}],
    [{"every_n_steps": None}],
    [{"every_n_steps": 7}],
    [{"every_n_steps": 7, "first_step": 5}, {"every_n_steps": 10, "first_step": 2}],
    [{"every_n_steps": None, "first_step": 30}],
    [{"every_n_steps": 40, "first_step": 30}, {"every_n_steps": 9}],
]


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("most", [1, 2, 8, 1000])
def test_steps_without_a_hook_are_those_at_which_none_is_due(hooks: list[dict[str, Any]], most: int) -> None:
    every, skipping = (HookSchedule([Told(**when) for when in hooks]) for _ in range(2))
    step, due = 1, {step for step in range(1, 101) if every.due_at(step)}
    while step <= 100:
        without = skipping.steps_without(step, most)
        assert not due.intersection(range(step, step + without))
        assert without == most or step + without > 100 or step + without in due
        if without == 0:
            assert skipping.due_at(step)
        step += max(without, 1)


def test_no_steps_are_without_a_hook_whose_time_has_come() -> None:
    now = 0.0
    schedule = HookSchedule([Told(every_secs=10.0, first_step=3, clock=lambda: now), Told(every_n_steps=1000)])
    assert schedule.steps_without(1, 50) == 0
    assert len(schedule.due_at(1)) == 1
    assert schedule.steps_without(2, 50) == 1
    assert schedule.steps_without(3, 50) == 0
    assert len(schedule.due_at(3)) == 1
    now = 9.0
    assert schedule.steps_without(4, 50) == 50
    now = 10.0
    assert schedule.steps_without(54, 50) == 0
    assert len(schedule.due_at(54)) == 1


def test_a_hook_that_is_never_told_of_steps_is_never_due() -> None:
    assert HookSchedule([te.Hook()]).steps_without(1, 1000) == 1000
