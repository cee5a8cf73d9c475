"""Hooks that end training at a given step."""

from __future__ import annotations

from typing import Any

from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import check_number


class StopAtStepHook(Hook):
    """Hook that ends training after a number of steps, or at a global step.

    Args:
        num_steps: Number of steps of this run. Give either this or ``last_step``.
        last_step: Global step at which to stop.

    Raises:
        InvalidValueError: None or both of the arguments are given.
        InvalidTypeError: The argument is not an integer.

    >>> estimator = te.BaselineRegressor("memory://StopAtStepHook")
    >>> data = {"x": [1.0]}, [2.0]
    >>> estimator = estimator.train(lambda: data, steps=100, hooks=[te.StopAtStepHook(last_step=3)])
    >>> estimator.get_variable_value("global_step")
    array(3)
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise InvalidValueError(
                f"Give one of num_steps and last_step, but got num_steps={num_steps}, last_step={last_step}."
            )
        for name, value in (("num_steps", num_steps), ("last_step", last_step)):
            if value is not None:
                check_number(f"{name} of StopAtStepHook", value, whole=True)
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self, context: RunContext) -> None:
        if self._num_steps is not None:
            self._last_step = context.global_step + self._num_steps

    def after_step(self, context: RunContext) -> None:
        assert self._last_step is not None
        if context.global_step >= self._last_step:
            context.request_stop()


def make_stop_at_checkpoint_step_hook(estimator: Any, last_step: int, wait_after_file_check_secs: float = 30) -> Hook:
    """Return a hook that ends training at ``last_step``.

    In tf.estimator, workers other than the chief then waited until the chief's checkpoint reached that step, and looked
    for it every ``wait_after_file_check_secs`` seconds. Here no worker has to wait, so the argument is ignored.

    Args:
        estimator: Not used.
        last_step: Global step at which training ends.
        wait_after_file_check_secs: Not used.

    >>> hook = te.make_stop_at_checkpoint_step_hook(te.BaselineRegressor("memory://stop_at"), last_step=1000)
    >>> isinstance(hook, te.StopAtStepHook)
    True
    """
    return StopAtStepHook(last_step=last_step)
