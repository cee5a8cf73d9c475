"""Timing of hooks: which hooks must be called at a step, and checks of arguments such as ``every_n_iter``."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Sequence

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import Hook


class HookSchedule:
    """Schedule that returns, for each step, the hooks whose ``before_step`` and ``after_step`` must be called.

    In a step without such a hook, a query costs one comparison (and one reading of the clock for each hook with
    ``every_secs``). Create the schedule after calling the hooks' ``begin``, which may set their timing. Hooks that
    override neither method are never due.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = list(hooks)
        scheduled = [(index, hook) for index, hook in enumerate(hooks) if _overrides_step_methods(hook)]
        for _, hook in scheduled:
            _check_timing(hook)
        self._timed = [_TimedHook(index, hook) for index, hook in scheduled if hook.every_secs is not None]
        self._counted = [
            (index, hook.first_step, hook.every_n_steps)
            for index, hook in scheduled
            if hook.every_secs is None and hook.every_n_steps is not None
        ]
        # `_next` is the next step at which a hook with `every_n_steps` is due; `_queried` is the last queried step.
        self._next = min((first for _, first, _ in self._counted), default=None)
        self._queried = 0

    def due_at(self, step: int) -> list[Hook]:
        """Return the hooks that must be called at a step of the run, in the order of the hooks. Steps count from 1.

        Steps must be queried in increasing order, but some may be skipped. The steps that `steps_without` has returned
        may always be skipped. If several processes train one model, each of them queries only some of the steps; a hook
        that was due at a skipped step is then returned by the next query.
        """
        due = [timed.index for timed in self._timed if timed.is_due_at(step)]
        due += self._counted_at(step)
        return [self._hooks[index] for index in sorted(due)] if due else []

    def due_after(self, step: int) -> list[Hook]:
        """Return the hooks whose ``after_step`` must be called for ``step``, the last of the steps taken at once."""
        return [self._hooks[index] for index in self._counted_at(step)]

    def steps_at_once(self, step: int, most: int) -> int:
        """Return how many steps, starting at ``step``, may be taken at once, without a call of a hook between them.

        The result is from 1 to ``most``. If it is more than 1, hooks may be due at the last of these steps, but only
        hooks without a ``before_step``, which would have to be called before it.
        """
        several = self.steps_without(step, most)
        if 0 < several < most and step + several == self._next:
            several += not any(
                self._hooks[index].wants_before_step
                for index, first, every in self._counted
                if _is_due(step + several, first, every)
            )
        return max(1, several)

    def steps_without(self, step: int, most: int) -> int:
        """Return for how many steps, starting at ``step`` and at most ``most``, no hook has to be called.

        `due_at` need not be called for these steps. Hooks with ``every_secs`` are judged by the current time.
        """
        if self._next is not None:
            most = min(most, self._next - step)
        for timed in self._timed:
            most = min(most, timed.steps_without(step, most))
        return max(most, 0)

    def _counted_at(self, step: int) -> list[int]:
        if self._next is None or step < self._next:
            return []
        before, self._queried = self._queried, step
        self._next = min(
            first if step < first else step + every - (step - first) % every for _, first, every in self._counted
        )
        return [
            index
            for index, first, every in self._counted
            if _times_due(step, first, every) > _times_due(before, first, every)
        ]


class _TimedHook:
    """Timing of a hook that is due at intervals of seconds (``every_secs``)."""

    def __init__(self, index: int, hook: Hook) -> None:
        assert hook.every_secs is not None
        self.index = index
        self._first_step = hook.first_step
        self._every_secs = hook.every_secs
        self._clock = hook.clock
        self._called_at: float | None = None

    def is_due_at(self, step: int) -> bool:
        if step < self._first_step:
            return False
        now = self._clock()
        if not self._is_time(now):
            return False
        self._called_at = now
        return True

    def steps_without(self, step: int, most: int) -> int:
        if self._is_time(self._clock()):
            return self._first_step - step
        return most

    def _is_time(self, now: float) -> bool:
        return self._called_at is None or now >= self._called_at + self._every_secs


def _is_due(step: int, first: int, every: int) -> bool:
    return step >= first and (step - first) % every == 0


def _times_due(step: int, first: int, every: int) -> int:
    """Return how often a hook is called up to ``step``: first at step ``first``, then every ``every`` steps."""
    return 0 if step < first else 1 + (step - first) // every


def _overrides_step_methods(hook: Hook) -> bool:
    kind = type(hook)
    return kind.before_step is not Hook.before_step or kind.after_step is not Hook.after_step


def _check_timing(hook: Hook) -> None:
    for name in ("first_step", "every_n_steps"):
        value = getattr(hook, name)
        if value is None and name == "every_n_steps":
            continue
        if not isinstance(value, numbers.Integral) or value < 1:
            raise InvalidValueError(f"{name} of {type(hook).__name__} must be 1 or more, but is {value!r}.")
    secs = hook.every_secs
    if secs is not None and (not isinstance(secs, numbers.Real) or not secs >= 0):
        raise InvalidValueError(f"every_secs of {type(hook).__name__} must not be negative, but is {secs!r}.")


class SecondOrStepTimer:
    """Timer that triggers at regular intervals of seconds or steps, with tf.estimator's interface.

    Most hooks do not need a timer: they set `Hook.every_secs` or `Hook.every_n_steps`.

    Args:
        every_secs: Seconds between triggers. Give either this or ``every_steps``.
        every_steps: Steps between triggers.
        clock: Function that returns the time in seconds.

    Raises:
        InvalidValueError: None or both of the intervals are given, or one is not positive.
        InvalidTypeError: An interval is not a number.

    >>> timer = te.SecondOrStepTimer(every_steps=10)
    >>> timer.should_trigger_for_step(1), timer.update_last_triggered_step(1)
    (True, (None, None))
    >>> timer.should_trigger_for_step(10), timer.should_trigger_for_step(11), timer.last_triggered_step()
    (False, True, 1)
    >>> timer.reset()
    >>> timer.last_triggered_step() is None
    True
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
        """Forget the last trigger, so that the timer triggers at the next step."""
        self._last: tuple[int, float] | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Return whether to trigger at ``step``: always if there was no trigger yet, never twice at one step.

        Args:
            step: Global step.
        """
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
        """Record a trigger at ``step``; return how much time has passed.

        Args:
            step: Global step.

        Returns:
            Seconds and steps since the previous trigger; None for both if this is the first.
        """
        before, self._last = self._last, (step, self._clock())
        if before is None:
            return None, None
        return self._last[1] - before[1], step - before[0]

    def last_triggered_step(self) -> int | None:
        """Return the step of the last trigger, or None if there was no trigger yet."""
        return None if self._last is None else self._last[0]


def check_seconds_or_steps(kind: str, *, at_least_one: bool = True, **given: float | None) -> None:
    """Check that exactly one (or at most one) of a hook's interval arguments is given, and that it is positive.

    Intervals whose name ends with ``secs`` are numbers, the others whole numbers of steps.
    """
    got = ", ".join(f"{name}={value}" for name, value in given.items())
    intervals = {name: value for name, value in given.items() if value is not None}
    if len(intervals) > 1 or (at_least_one and not intervals):
        raise InvalidValueError(f"{kind} takes exactly one of {' and '.join(given)}, but got {got}.")
    for name, value in intervals.items():
        check_number(f"{name} of {kind}", value, whole=not name.endswith("secs"))
        if not value > 0:
            raise InvalidValueError(f"{name} of {kind} must be positive, but got {value}.")


def check_number(name: str, value: object, *, whole: bool) -> None:
    """Check that a value is a number, or an integer if ``whole``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real):
        raise InvalidTypeError(f"{name} must be {'an integer' if whole else 'a number'}, but got {value!r}.")
