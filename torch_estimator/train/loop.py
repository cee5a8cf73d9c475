"""The training loop: batches in, steps taken, hooks told when they asked to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from torch_estimator.hooks.checkpoint_saver import CheckpointSaverHook
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.nan_tensor import end_for_loss
from torch_estimator.hooks.schedule import HookSchedule

_MOST_UNSEEN = 50


class StopReason(Enum):
    """Why training ended."""

    LAST_STEP = "the last step was reached"
    END_OF_INPUT = "the input ended"
    HOOK = "a hook asked for it"
    NAN_LOSS = "the loss or a trained variable became NaN or infinite"
    OVER = "the others had ended it"
    PREEMPTED = "SIGTERM asked for it; start again to go on"
    INTERRUPTED = "Ctrl-C asked for it; train again to go on"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Where training ended, and why."""

    global_step: int
    steps_taken: int
    reason: StopReason


class Steps(Protocol):
    """What takes the steps of a run."""

    @property
    def stroke(self) -> int:
        """How many steps are best taken at once."""

    def stops(self, context: RunContext) -> bool:
        """Whether to end before the next step."""

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Takes at most so many steps, up to the first whose loss is NaN or infinite; returns their losses.

        There are none only where the input has ended.
        """

    def told(self, hooks: Sequence[Hook]) -> None:
        """After hooks were told of a step, before or after it."""


def run_training(
    steps: Steps,
    *,
    context: RunContext,
    last_step: int | None,
    hooks: Sequence[Hook],
) -> TrainingResult:
    """Trains until ``last_step``, the end of the input, or a hook's wish.

    Args:
        steps: Takes them.
        context: Holds the global step to start from; kept up to date.
        last_step: Global step to stop at, or None.
        hooks: Told in this order; at the end the one that saves the last checkpoint goes first.

    Raises:
        NanLossDuringTrainingError: A loss is NaN or infinite, unless ``context.fail_on_nan_loss`` was set to False; the
            hooks of that step, and with them a checkpoint that would hold the damage, are skipped. Or the hook that
            saves checkpoints found a trained variable that is.
    """
    start = context.global_step
    for hook in hooks:
        hook.begin(context)
    schedule = HookSchedule(hooks)
    watch = _LossWatch(context)
    reason = StopReason.LAST_STEP
    while not context.damaged and (last_step is None or context.global_step < last_step):
        if steps.stops(context):
            reason = StopReason.PREEMPTED if context.preempted else StopReason.HOOK
            break
        taken = context.global_step - start
        due = schedule.due_at(taken + 1)
        for hook in due:
            hook.before_step(context)
        if due:
            steps.told(due)
        wanted = 1 if due else schedule.steps_at_once(taken + 1, steps.stroke)
        if last_step is not None:
            wanted = min(wanted, last_step - context.global_step)
        losses = steps.take(wanted)
        if not losses:
            reason = StopReason.END_OF_INPUT
            break
        context.loss_tensor = losses[-1]
        context.global_step += len(losses)
        due = due or schedule.due_after(context.global_step - start)
        if watch.sees_damage(losses, at_once=bool(due)):
            break
        for hook in due:
            hook.after_step(context)
        if due:
            steps.told(due)
        context.observe = False
    if not context.damaged:
        watch.sees_damage((), at_once=True)
    for hook in sorted(hooks, key=lambda hook: not isinstance(hook, CheckpointSaverHook)):
        hook.end(context)
    if context.damaged:
        reason = StopReason.NAN_LOSS
    return TrainingResult(context.global_step, context.global_step - start, reason)


class _LossWatch:
    """Looks for losses that are NaN or infinite: at once on a CPU; on a GPU, where looking waits for it, before anybody
    is told of a step, and every so many steps."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._unseen: list[Tensor] = []

    def sees_damage(self, losses: Sequence[Tensor | float], *, at_once: bool) -> bool:
        """Whether there is one among these or those before; ends the training, or says how it ends."""
        if not self._unseen and losses and not (isinstance(losses[-1], Tensor) and losses[-1].is_cuda):
            # Whoever takes several steps stops at the first such loss.
            loss = float(losses[-1])
        else:
            self._unseen += [loss.detach() for loss in losses if isinstance(loss, Tensor)]
            if not self._unseen or not (at_once or len(self._unseen) >= _MOST_UNSEEN):
                return False
            seen = torch.stack(self._unseen)
            bad = seen.isfinite().logical_not().nonzero()
            first = int(bad[0]) if len(bad) else len(seen) - 1
            self._context.global_step -= len(seen) - 1 - first
            loss = float(seen[first])
            self._unseen = []
        if math.isfinite(loss):
            return False
        end_for_loss(self._context, loss)
        return True
