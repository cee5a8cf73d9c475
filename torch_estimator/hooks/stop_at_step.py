"""Ends training at a step."""

from __future__ import annotations

from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.second_or_step_timer import check_number


class StopAtStepHook(Hook):
    """Stops after ``num_steps`` more steps, or at global step ``last_step``: give exactly one of them.

    Raises:
        InvalidValueError: Where none or both are given.
        InvalidTypeError: Where the one given is no integer.
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
