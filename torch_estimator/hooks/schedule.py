"""When hooks are told."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook


class HookSchedule:
    """Tells which hooks are due, at the price of one comparison where none is.

    Made after the hooks' ``begin``, which may set when they want to be told. Those that override neither
    ``before_step`` nor ``after_step`` never are.

    Raises:
        InvalidValueError: Where a hook asks for what cannot be.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = list(hooks)
        asking = [(place, hook) for place, hook in enumerate(hooks) if _wants_steps(hook)]
        for _, hook in asking:
            _check(hook)
        self._timed = [_Timed(place, hook) for place, hook in asking if hook.every_secs is not None]
        self._counted = [
            (place, hook.first_step, hook.every_n_steps)
            for place, hook in asking
            if hook.every_secs is None and hook.every_n_steps is not None
        ]
        self._next = min((first for _, first, _ in self._counted), default=None)
        self._asked = 0

    def due_at(self, step: int) -> list[Hook]:
        """Hooks due at the run's ``step``-th step, from 1, in their order.

        Asked for steps in turn; those that `steps_without` tells may be left out. Where others train the same model,
        too, steps may be left out that somebody is due at: they are told then.
        """
        due = [timed.place for timed in self._timed if timed.is_due_at(step)]
        due += self._counted_at(step)
        return [self._hooks[place] for place in sorted(due)] if due else []

    def due_after(self, step: int) -> list[Hook]:
        """Hooks due at the last of the steps that `steps_at_once` told, once that is taken."""
        return [self._hooks[place] for place in self._counted_at(step)]

    def steps_at_once(self, step: int, most: int) -> int:
        """How many steps from the run's ``step``-th on may be taken before anybody is told of one, ``most`` at most.

        Where there are several, hooks may be due at the last of them: those that want to be told after it only.
        """
        several = self.steps_without(step, most)
        if 0 < several < most and step + several == self._next:
            several += not any(
                self._hooks[place].wants_before_step
                for place, first, every in self._counted
                if _is_due(step + several, first, every)
            )
        return max(1, several)

    def steps_without(self, step: int, most: int) -> int:
        """How many steps from the run's ``step``-th on no hook is due at, ``most`` at most; `due_at` may skip them.

        Seconds are looked at now, for all of these steps.
        """
        if self._next is not None:
            most = min(most, self._next - step)
        for timed in self._timed:
            most = min(most, timed.steps_without(step, most))
        return max(most, 0)

    def _counted_at(self, step: int) -> list[int]:
        if self._next is None or step < self._next:
            return []
        before, self._asked = self._asked, step
        self._next = min(
            first if step < first else step + every - (step - first) % every for _, first, every in self._counted
        )
        return [
            place
            for place, first, every in self._counted
            if _times_due(step, first, every) > _times_due(before, first, every)
        ]


class _Timed:
    """A hook told every so many seconds."""

    def __init__(self, place: int, hook: Hook) -> None:
        assert hook.every_secs is not None
        self.place = place
        self._first_step = hook.first_step
        self._every_secs = hook.every_secs
        self._clock = hook.clock
        self._told_at: float | None = None

    def is_due_at(self, step: int) -> bool:
        if step < self._first_step:
            return False
        now = self._clock()
        if not self._is_time(now):
            return False
        self._told_at = now
        return True

    def steps_without(self, step: int, most: int) -> int:
        if self._is_time(self._clock()):
            return self._first_step - step
        return most

    def _is_time(self, now: float) -> bool:
        return self._told_at is None or now >= self._told_at + self._every_secs


def _is_due(step: int, first: int, every: int) -> bool:
    return step >= first and (step - first) % every == 0


def _times_due(step: int, first: int, every: int) -> int:
    """How often somebody has been due up to a step."""
    return 0 if step < first else 1 + (step - first) // every


def _wants_steps(hook: Hook) -> bool:
    kind = type(hook)
    return kind.before_step is not Hook.before_step or kind.after_step is not Hook.after_step


def _check(hook: Hook) -> None:
    for name in ("first_step", "every_n_steps"):
        value = getattr(hook, name)
        if value is None and name == "every_n_steps":
            continue
        if not isinstance(value, numbers.Integral) or value < 1:
            raise InvalidValueError(f"{name} of {type(hook).__name__} must be 1 or more, but is {value!r}.")
    secs = hook.every_secs
    if secs is not None and (not isinstance(secs, numbers.Real) or not secs >= 0):
        raise InvalidValueError(f"every_secs of {type(hook).__name__} must not be negative, but is {secs!r}.")
