"""HookSchedule: when hooks are called. SecondOrStepTimer: tf.estimator's timer."""

from __future__ import annotations

from typing import Any

import pytest

import torch_estimator as te
from torch_estimator.hooks import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule


class Called(Hook):
    def __init__(self, **when: Any) -> None:
        for name, value in when.items():
            setattr(self, name, value)

    def after_step(self, context: RunContext) -> None:
        """Do nothing; overridden so that the schedule includes this hook."""


def steps_called(hooks: list[Hook], steps: int, tick: Any = lambda: None) -> list[list[int]]:
    schedule = HookSchedule(hooks)
    called: list[list[int]] = [[] for _ in hooks]
    for step in range(1, steps + 1):
        for hook in schedule.due_at(step):
            called[hooks.index(hook)].append(step)
        tick()
    return called


def test_by_seconds_the_clock_decides() -> None:
    now = [0.0]

    def tick() -> None:
        now[0] += 1.0

    by_seconds = Called(every_secs=2.5, clock=lambda: now[0])
    later = Called(every_secs=4, first_step=3, clock=lambda: now[0])
    every_third = Called(every_n_steps=3)
    assert steps_called([by_seconds, later, every_third], 9, tick) == [[1, 4, 7], [3, 7], [1, 4, 7]]


def test_due_hooks_are_in_the_order_of_the_hooks() -> None:
    hooks: list[Hook] = [Called(every_n_steps=2), Called(every_secs=0), Called()]
    assert HookSchedule(hooks).due_at(1) == hooks


def test_a_hook_without_steps_and_seconds_is_never_due() -> None:
    assert steps_called([Called(every_n_steps=None), Called(every_n_steps=2)], 3) == [[], [1, 3]]


def test_a_hook_without_step_methods_is_never_due() -> None:
    class Ends(Hook):
        def end(self, context: RunContext) -> None:
            """Do nothing."""

    assert steps_called([Ends(), Called(every_n_steps=3)], 3) == [[], [1]]


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
    every, skipping = (HookSchedule([Called(**when) for when in hooks]) for _ in range(2))
    step, due = 1, {step for step in range(1, 101) if every.due_at(step)}
    while step <= 100:
        without = skipping.steps_without(step, most)
        assert not due.intersection(range(step, step + without))
        assert without == most or step + without > 100 or step + without in due
        if without == 0:
            assert skipping.due_at(step)
        step += max(without, 1)


class ToldBefore(Called):
    def before_step(self, context: RunContext) -> None:
        """Do nothing; overridden so that the schedule calls this hook before steps."""


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("most", [1, 2, 8, 1000])
@pytest.mark.parametrize("cut", [1000, 3])
def test_hooks_after_steps_at_once_are_those_due_there(hooks: list[dict[str, Any]], most: int, cut: int) -> None:
    kinds: list[Hook] = [(Called, ToldBefore)[place % 2](**when) for place, when in enumerate(hooks)]
    schedule, plain = HookSchedule(kinds), HookSchedule(kinds)
    called: dict[int, list[Hook]] = {}
    step = 1
    while step <= 100:
        if due := schedule.due_at(step):
            taken = 1
        else:
            # The input may end before all requested steps are taken.
            taken = min(cut, schedule.steps_at_once(step, most))
            due = schedule.due_after(step + taken - 1)
            assert taken == 1 or not any(isinstance(hook, ToldBefore) for hook in due)
        assert not set(called).intersection(range(step, step + taken))
        called.update({one: [] for one in range(step, step + taken)})
        step += taken
        called[step - 1] = due
    assert called == {one: plain.due_at(one) for one in range(1, step)}


def test_no_steps_are_without_a_hook_whose_time_has_come() -> None:
    now = 0.0
    schedule = HookSchedule([Called(every_secs=10.0, first_step=3, clock=lambda: now), Called(every_n_steps=1000)])
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


def test_a_hook_without_step_methods_limits_no_steps() -> None:
    assert HookSchedule([Hook()]).steps_without(1, 1000) == 1000


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps of Called must be 1 or more, but is 0."),
        ({"every_n_steps": 2.5}, "every_n_steps of Called must be 1 or more, but is 2.5."),
        ({"first_step": 0}, "first_step of Called must be 1 or more, but is 0."),
        ({"every_secs": -1}, "every_secs of Called must not be negative, but is -1."),
        ({"every_secs": "60"}, "every_secs of Called must not be negative, but is '60'."),
    ],
)
def test_invalid_arguments_are_one_sentence(when: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        HookSchedule([Called(**when)])


def test_timer_by_steps() -> None:
    timer = te.SecondOrStepTimer(every_steps=3)
    triggered = []
    for step in range(5, 13):
        if timer.should_trigger_for_step(step):
            triggered.append((step, timer.update_last_triggered_step(step)[1]))
    assert triggered == [(5, None), (8, 3), (11, 3)]
    assert timer.last_triggered_step() == 11


def test_timer_by_seconds_but_never_twice_for_a_step() -> None:
    now = [10.0]
    timer = te.SecondOrStepTimer(every_secs=2.0, clock=lambda: now[0])
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)
    now[0] = 12.5
    assert not timer.should_trigger_for_step(1)
    assert timer.should_trigger_for_step(2)
    assert timer.update_last_triggered_step(2) == (2.5, 1)
    now[0] = 14.0
    assert not timer.should_trigger_for_step(3)
    timer.reset()
    assert timer.should_trigger_for_step(3)


@pytest.mark.parametrize("arguments", [{}, {"every_secs": 1.0, "every_steps": 1}])
def test_timer_exactly_one_must_be_given(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^SecondOrStepTimer takes exactly one of every_secs and every_steps, but got"
    ):
        te.SecondOrStepTimer(**arguments)


def test_timer_it_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"^every_steps of SecondOrStepTimer must be positive, but got 0\.$"):
        te.SecondOrStepTimer(every_steps=0)
