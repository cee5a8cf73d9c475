"""Says when so many seconds or steps have gone by."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable

from torch_estimator.errors import InvalidTypeError, InvalidValueError


class SecondOrStepTimer:
    """Triggers every so many seconds, or every so many steps: give exactly one of them.

    Most hooks need none: they set `Hook.every_secs` or `Hook.every_n_steps`.

    Args:
        every_secs: Seconds between triggers.
        every_steps: Steps between triggers.
        clock: Gives the seconds.

    Raises:
        InvalidValueError: Where none or both are given, or one is not positive.
        InvalidTypeError: Where one is no number.

    >>> timer = SecondOrStepTimer(every_steps=10)
    >>> timer.should_trigger_for_step(1), timer.update_last_triggered_step(1), timer.should_trigger_for_step(10)
    (True, (None, None), False)
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_seconds_or_steps("SecondOrStepTimer", every_secs=every_secs, every_steps=every_steps)
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forgets when it triggered last."""
        self._last: tuple[int, float] | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether enough has gone by at ``step``; always the first time, never twice for one step."""
        if self._last is None:
            return True
        last_step, last_time = self._last
        if step == last_step:
            return False
        if self._every_secs is not None:
            return self._clock() >= last_time + self._every_secs
        assert self._every_steps is not None
        return step >= last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float, int] | tuple[None, None]:
        """Takes note that it triggered; returns the seconds and the steps since the last time, None the first time."""
        before, self._last = self._last, (step, self._clock())
        if before is None:
            return None, None
        return self._last[1] - before[1], step - before[0]

    def last_triggered_step(self) -> int | None:
        """The step at which it triggered last, or None."""
        return None if self._last is None else self._last[0]


def check_seconds_or_steps(kind: str, *, at_least_one: bool = True, **given: float | None) -> None:
    """Checks that exactly one of the values is given and that it is positive; ``kind`` is for the message.

    Raises:
        InvalidValueError: Where it is not so.
        InvalidTypeError: Where a value is no number, or a number of steps no integer.
    """
    got = ", ".join(f"{name}={value}" for name, value in given.items())
    set_ones = {name: value for name, value in given.items() if value is not None}
    if len(set_ones) > 1 or (at_least_one and not set_ones):
        raise InvalidValueError(f"{kind} takes exactly one of {' and '.join(given)}, but got {got}.")
    for name, value in set_ones.items():
        check_number(f"{name} of {kind}", value, whole=not name.endswith("secs"))
        if not value > 0:
            raise InvalidValueError(f"{name} of {kind} must be positive, but got {value}.")


def check_number(name: str, value: object, *, whole: bool) -> None:
    """Checks that a value is a number, and if ``whole`` an integer.

    Raises:
        InvalidTypeError: Where it is not so.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real):
        raise InvalidTypeError(f"{name} must be {'an integer' if whole else 'a number'}, but got {value!r}.")
