"""StopAtStepHook ends a run."""

from __future__ import annotations

import pytest

from torch_estimator.hooks import RunContext, StopAtStepHook


def steps_until_stop(hook: StopAtStepHook, start: int) -> int:
    context = RunContext(global_step=start)
    hook.begin(context)
    while not context.stop_requested:
        hook.before_step(context)
        context.global_step += 1
        hook.after_step(context)
    return context.global_step - start


def test_num_steps_counts_from_the_start_of_the_run() -> None:
    assert steps_until_stop(StopAtStepHook(num_steps=3), start=0) == 3
    assert steps_until_stop(StopAtStepHook(num_steps=3), start=10) == 3


def test_num_steps_counts_anew_when_the_hook_is_used_again() -> None:
    hook = StopAtStepHook(num_steps=3)
    assert [steps_until_stop(hook, start=0), steps_until_stop(hook, start=3)] == [3, 3]


def test_last_step_is_absolute() -> None:
    assert steps_until_stop(StopAtStepHook(last_step=12), start=10) == 2
    assert steps_until_stop(StopAtStepHook(last_step=5), start=10) == 1


@pytest.mark.parametrize("arguments", [{}, {"num_steps": 1, "last_step": 2}])
def test_exactly_one_must_be_given(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^Give one of num_steps and last_step, but got num_steps="):
        StopAtStepHook(**arguments)
