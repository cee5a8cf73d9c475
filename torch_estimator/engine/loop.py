"""The training loop: batches in, steps taken, hooks told when they asked to be."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from torch_estimator.engine.checkpoint_hook import CheckpointSaverHook
from torch_estimator.errors import NanLossDuringTrainingError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule

logger = logging.getLogger("torch_estimator")

_MOST_UNSEEN = 50


class StopReason(Enum):
    """Why training ended."""

    LAST_STEP = "the last step was reached"
    END_OF_INPUT = "the input ended"
    HOOK = "a hook asked for it"
    NAN_LOSS = "the loss became NaN"
    OVER = "the others had ended it"
    PREEMPTED = "SIGTERM asked for it; start again to go on"


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
        """Takes at most so many steps, up to the first whose loss is not a number; returns their losses.

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
        NanLossDuringTrainingError: Where a loss is not a number, unless ``context.fail_on_nan_loss`` was set to False;
            the hooks of that step, and with them a checkpoint that would hold the damage, are skipped.
    """
    start = context.global_step
    for hook in hooks:
        hook.begin(context)
    schedule = HookSchedule(hooks)
    watch = _LossWatch(context)
    reason = StopReason.LAST_STEP
    while last_step is None or context.global_step < last_step:
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
        if watch.sees_nan(losses, at_once=bool(due)):
            reason = StopReason.NAN_LOSS
            break
        for hook in due:
            hook.after_step(context)
        if due:
            steps.told(due)
        context.observe = False
    if reason is not StopReason.NAN_LOSS and watch.sees_nan((), at_once=True):
        reason = StopReason.NAN_LOSS
    for hook in sorted(hooks, key=lambda hook: not isinstance(hook, CheckpointSaverHook)):
        hook.end(context)
    return TrainingResult(context.global_step, context.global_step - start, reason)


class _LossWatch:
    """Looks for losses that are not a number: at once on a CPU; on a GPU, where looking waits for it, before anybody is
    told of a step, and every so many steps."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._unseen: list[Tensor] = []

    def sees_nan(self, losses: Sequence[Tensor | float], *, at_once: bool) -> bool:
        """Whether there is one among these or those before; ends the training, or says how it ends."""
        if not self._unseen and losses and not (isinstance(losses[-1], Tensor) and losses[-1].is_cuda):
            # Whoever takes several steps stops at the first such loss.
            found = math.isnan(losses[-1])
        else:
            self._unseen += [loss.detach() for loss in losses if isinstance(loss, Tensor)]
            if not self._unseen or not (at_once or len(self._unseen) >= _MOST_UNSEEN):
                return False
            bad = torch.stack(self._unseen).isnan().nonzero()
            found = len(bad) > 0
            if found:
                self._context.global_step -= len(self._unseen) - 1 - int(bad[0])
            self._unseen = []
        if found:
            _meet_nan(self._context)
        return found


def _meet_nan(context: RunContext) -> None:
    context.damaged = True
    message = (
        f"The loss became NaN at global step {context.global_step}; try a smaller learning rate or look for invalid "
        "values in the input. The last checkpoint holds the state before it."
    )
    if context.fail_on_nan_loss:
        raise NanLossDuringTrainingError(message)
    logger.error("%s Training ends.", message)
