"""Batches that are computed as one."""

from __future__ import annotations

from torch_estimator.data.iterator import DatasetIterator
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.model import Model
from torch_estimator.train.threads import rows_worth_a_call

_MOST_ROWS = 8192


class BatchesTogether:
    """Takes batches from an input, many at once where that changes nothing but the time it takes.

    That is where the module says that its ``rows_are_independent``, nobody looks on with forward hooks, and no hook
    wants to be told of a batch in between. A forward pass of 40 rows takes half as long as one of 512 (torch 2.13).

    Args:
        batches: Of the input.
        model: What they are for.
        schedule: When hooks are told.
        own_hooks: Forward hooks of ours on the module, which do not mind.
    """

    def __init__(self, batches: DatasetIterator, model: Model, schedule: HookSchedule, *, own_hooks: int = 0) -> None:
        self._batches = batches
        self._module = model.module
        self._schedule = schedule
        self._own_hooks = own_hooks
        independent = getattr(model.module, "rows_are_independent", False)
        self._rows = min(rows_worth_a_call(model.module), _MOST_ROWS) if independent else 0
        self._watched = self._is_watched()

    def next(self, step: int, most: int | None) -> tuple[TensorBatch | None, int]:
        """Returns what to compute next, and how many batches it is; None at the end.

        Where it is one, the hooks due at `step` are to be told.

        Args:
            step: The run's, from 1, that the first batch is.
            most: How many batches there may be, or None.
        """
        if self._rows and not self._watched:
            unnoticed = self._schedule.steps_without(step, self._rows if most is None else min(self._rows, most))
            if unnoticed > 1:
                return self._batches.next_together(self._rows, unnoticed)
        return next(self._batches, None), 1

    def hooks_were_told(self) -> None:
        """To be called when they were: they may have begun to look on."""
        self._watched = self._is_watched()

    def _is_watched(self) -> bool:
        hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in self._module.modules())
        return hooks > self._own_hooks
