"""SecondOrStepTimer is tf.estimator's."""

from __future__ import annotations

from typing import Any

import pytest

import torch_estimator as te


def test_by_steps() -> None:
    timer = te.SecondOrStepTimer(every_steps=3)
    triggered = []
    for step in range(5, 13):
        if timer.should_trigger_for_step(step):
            triggered.append((step, timer.update_last_triggered_step(step)[1]))
    assert triggered == [(5, None), (8, 3), (11, 3)]
    assert timer.last_triggered_step() == 11


def test_by_seconds_but_never_twice_for_a_step() -> None:
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
def test_exactly_one_must_be_given(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^SecondOrStepTimer takes exactly one of every_secs and every_steps, but got"
    ):
        te.SecondOrStepTimer(**arguments)


def test_it_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"^every_steps of SecondOrStepTimer must be positive, but got 0\.$"):
        te.SecondOrStepTimer(every_steps=0)
