"""When hooks are told."""

from __future__ import annotations

from collections.abc import Sequence

from torch_estimator.hooks.hook import Hook


class HookSchedule:
    """Tells which hooks are due, at the price of one comparison where none is."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = [(hook, hook.first_step, hook.every_n_steps) for hook in hooks]
        self._next = min((first for _, first, _ in self._hooks), default=None)

    def due_at(self, step: int) -> list[Hook]:
        """Hooks due at the run's ``step``-th step, from 1; asked for every step in turn."""
        if self._next is None or step < self._next:
            return []
        self._next = min(
            first if step < first else step + every - (step - first) % every for _, first, every in self._hooks
        )
        return [hook for hook, first, every in self._hooks if step >= first and (step - first) % every == 0]
