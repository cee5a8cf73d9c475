"""When hooks are told."""

from __future__ import annotations

from typing import Any

import pytest

from torch_estimator.hooks import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule


class Told(Hook):
    def __init__(self, **when: Any) -> None:
        for name, value in when.items():
            setattr(self, name, value)

    def after_step(self, context: RunContext) -> None:
        """Here so that it wants to be told."""


def steps_told(hooks: list[Hook], steps: int, tick: Any = lambda: None) -> list[list[int]]:
    schedule = HookSchedule(hooks)
    told: list[list[int]] = [[] for _ in hooks]
    for step in range(1, steps + 1):
        for hook in schedule.due_at(step):
            told[hooks.index(hook)].append(step)
        tick()
    return told


def test_by_seconds_the_clock_decides() -> None:
    now = [0.0]

    def tick() -> None:
        now[0] += 1.0

    by_seconds = Told(every_secs=2.5, clock=lambda: now[0])
    later = Told(every_secs=4, first_step=3, clock=lambda: now[0])
    every_third = Told(every_n_steps=3)
    assert steps_told([by_seconds, later, every_third], 9, tick) == [[1, 4, 7], [3, 7], [1, 4, 7]]


def test_those_due_come_in_their_order_whatever_decides() -> None:
    hooks: list[Hook] = [Told(every_n_steps=2), Told(every_secs=0), Told()]
    assert HookSchedule(hooks).due_at(1) == hooks


def test_without_steps_and_seconds_a_hook_is_not_told_of_steps() -> None:
    assert steps_told([Told(every_n_steps=None), Told(every_n_steps=2)], 3) == [[], [1, 3]]


def test_a_hook_without_anything_to_do_at_a_step_is_not_told() -> None:
    class Ends(Hook):
        def end(self, context: RunContext) -> None:
            """Nothing at a step."""

    assert steps_told([Ends(), Told(every_n_steps=3)], 3) == [[], [1]]


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


class ToldBefore(Told):
    def before_step(self, context: RunContext) -> None:
        """Here so that it wants to be told before, too."""


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("most", [1, 2, 8, 1000])
@pytest.mark.parametrize("cut", [1000, 3])
def test_hooks_that_steps_at_once_brings_after_a_step_are_those_due_there(
    hooks: list[dict[str, Any]], most: int, cut: int
) -> None:
    kinds: list[Hook] = [(Told, ToldBefore)[place % 2](**when) for place, when in enumerate(hooks)]
    schedule, plain = HookSchedule(kinds), HookSchedule(kinds)
    told: dict[int, list[Hook]] = {}
    step = 1
    while step <= 100:
        if due := schedule.due_at(step):
            taken = 1
        else:
            # An input may end a call early.
            taken = min(cut, schedule.steps_at_once(step, most))
            due = schedule.due_after(step + taken - 1)
            assert taken == 1 or not any(isinstance(hook, ToldBefore) for hook in due)
        assert not set(told).intersection(range(step, step + taken))
        told.update({one: [] for one in range(step, step + taken)})
        step += taken
        told[step - 1] = due
    assert told == {one: plain.due_at(one) for one in range(1, step)}


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


def test_all_steps_are_without_a_hook_that_has_nothing_to_do() -> None:
    assert HookSchedule([Hook()]).steps_without(1, 1000) == 1000


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps of Told must be 1 or more, but is 0."),
        ({"every_n_steps": 2.5}, "every_n_steps of Told must be 1 or more, but is 2.5."),
        ({"first_step": 0}, "first_step of Told must be 1 or more, but is 0."),
        ({"every_secs": -1}, "every_secs of Told must not be negative, but is -1."),
        ({"every_secs": "60"}, "every_secs of Told must not be negative, but is '60'."),
    ],
)
def test_what_cannot_be_is_one_sentence(when: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        HookSchedule([Told(**when)])
