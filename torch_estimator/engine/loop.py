"""The training loop: batches in, steps taken, hooks told when they asked to be."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from torch_estimator.engine.checkpoint_hook import CheckpointSaverHook
from torch_estimator.errors import NanLossDuringTrainingError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule

logger = logging.getLogger("torch_estimator")


class StopReason(Enum):
    """Why training ended."""

    LAST_STEP = "the last step was reached"
    END_OF_INPUT = "the input ended"
    HOOK = "a hook asked for it"
    NAN_LOSS = "the loss became NaN"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Where training ended, and why."""

    global_step: int
    steps_taken: int
    reason: StopReason


def run_training(
    take_step: Callable[[], Tensor | None],
    *,
    context: RunContext,
    last_step: int | None,
    hooks: Sequence[Hook],
) -> TrainingResult:
    """Trains until ``last_step``, the end of the input, or a hook's wish.

    Args:
        take_step: Takes the next batch and trains on it; returns the loss, or None where the input has ended.
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
    reason = StopReason.LAST_STEP
    while last_step is None or context.global_step < last_step:
        if context.stop_requested:
            reason = StopReason.HOOK
            break
        due = schedule.due_at(context.global_step - start + 1)
        for hook in due:
            hook.before_step(context)
        loss = take_step()
        if loss is None:
            reason = StopReason.END_OF_INPUT
            break
        context.loss_tensor = loss
        context.global_step += 1
        if math.isnan(loss):
            _meet_nan(context)
            reason = StopReason.NAN_LOSS
            break
        for hook in due:
            hook.after_step(context)
        context.observe = False
    for hook in sorted(hooks, key=lambda hook: not isinstance(hook, CheckpointSaverHook)):
        hook.end(context)
    return TrainingResult(context.global_step, context.global_step - start, reason)


def _meet_nan(context: RunContext) -> None:
    context.damaged = True
    message = (
        f"The loss became NaN at global step {context.global_step}; try a smaller learning rate or look for invalid "
        "values in the input. The last checkpoint holds the state before it."
    )
    if context.fail_on_nan_loss:
        raise NanLossDuringTrainingError(message)
    logger.error("%s Training ends.", message)
