"""Batch fusion: several batches of an evaluation or a prediction computed in one forward pass."""

from __future__ import annotations

from torch_estimator.data.iterator import DatasetIterator
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.model import Model
from torch_estimator.train.threads import rows_worth_a_call

_MOST_ROWS = 8192


class BatchFusion:
    """Takes batches from an input, several at once where the results are the same.

    They are where the module sets ``rows_are_independent``, no forward hook watches it, and no hook is to be called
    between the batches. A forward pass of 40 rows takes half as long as one of 512 (torch 2.13).

    Args:
        batches: The batches of the input.
        model: The model that they are for.
        schedule: When hooks are called.
        own_hooks: Number of this package's forward hooks on the module, which work on fused batches as well.
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
        """Return what to compute next, and how many batches it is; None at the end.

        Where it is one batch, the caller has to call the hooks that are due at `step`.

        Args:
            step: Number of the first batch in the run, from 1.
            most: How many batches there may be, or None for any number.
        """
        if self._rows and not self._watched:
            unnoticed = self._schedule.steps_without(step, self._rows if most is None else min(self._rows, most))
            if unnoticed > 1:
                return self._batches.next_together(self._rows, unnoticed)
        return next(self._batches, None), 1

    def hooks_were_called(self) -> None:
        """Look again for forward hooks, which a hook of the user's may have added."""
        self._watched = self._is_watched()

    def _is_watched(self) -> bool:
        hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in self._module.modules())
        return hooks > self._own_hooks
