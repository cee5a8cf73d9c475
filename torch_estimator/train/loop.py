"""Training loop: take steps, watch the losses, call the hooks that are due."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_estimator.hooks.checkpoint_saver import CheckpointSaverHook
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext
from torch_estimator.hooks.nan_tensor import end_for_loss
from torch_estimator.hooks.schedule import HookSchedule

_MOST_UNSEEN = 50


class StopReason(Enum):
    """Reason why training ended, with its text for the log."""

    LAST_STEP = "the last step was reached"
    END_OF_INPUT = "the input ended"
    HOOK = "a hook asked for it"
    NAN_LOSS = "the loss or a trained variable became NaN or infinite"
    OVER = "the other processes had ended it"
    PREEMPTED = "SIGTERM asked for it; start again to go on"
    INTERRUPTED = "Ctrl-C asked for it; train again to go on"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The global step at which training ended, the number of steps it took, and why it ended."""

    global_step: int
    steps_taken: int
    reason: StopReason


class Steps(Protocol):
    """Protocol of the object that takes training steps on the next batches of the input."""

    @property
    def steps_per_call(self) -> int:
        """Number of steps to take in one call of `take` for the best speed."""

    def stops(self, context: RunContext) -> bool:
        """Return whether training must end now; the loop asks this before each call of `take`."""

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Train on the next batches for up to `most` steps and return the losses; stop after a loss of NaN or infinity.

        The result is empty only if no step was taken, because the input or the whole training has ended.
        """

    def invalidate(self) -> None:
        """Make the next step check whether the model or the optimizers have changed; called after a user's hook."""


def run_training(
    steps: Steps,
    *,
    context: RunContext,
    last_step: int | None,
    hooks: Sequence[Hook],
    look: Callable[[int, int], str | None] = lambda taken, back: None,
) -> TrainingResult:
    """Train until ``last_step`` or the end of the input, or until a hook or a signal asks to stop.

    The global step of `context` is the step to start from, and is updated after every step. Hooks are called in their
    order; only for ``end``, the hook that saves the last checkpoint comes first. `look` returns what is not finite in
    the batch of a loss that is not, or None if the batch is gone. Its arguments are the number of steps that the last
    call of `Steps.take` took, and how many steps later than the loss the last of them was.

    After a loss, or a trained variable to be saved, that is NaN or infinite, no hooks are called, so the damaged
    weights are not saved. If ``context.fail_on_nan_loss`` is True, `NanLossDuringTrainingError` is raised.
    """
    start = context.global_step
    for hook in hooks:
        hook.begin(context)
    schedule = HookSchedule(hooks)
    watch = _LossWatch(context, look)
    foreign = _ForeignHooks()
    reason = StopReason.LAST_STEP
    while not context.damaged and (last_step is None or context.global_step < last_step):
        if steps.stops(context):
            reason = StopReason.PREEMPTED if context.preempted else StopReason.HOOK
            break
        taken = context.global_step - start
        due = schedule.due_at(taken + 1)
        for hook in due:
            hook.before_step(context)
        if foreign.are_among(due):
            steps.invalidate()
        wanted = 1 if due else schedule.steps_at_once(taken + 1, steps.steps_per_call)
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
        if foreign.are_among(due):
            steps.invalidate()
        context.observe = False
    if not context.damaged:
        watch.sees_damage((), at_once=True)
    for hook in sorted(hooks, key=lambda hook: not isinstance(hook, CheckpointSaverHook)):
        hook.end(context)
    if context.damaged:
        reason = StopReason.NAN_LOSS
    return TrainingResult(context.global_step, context.global_step - start, reason)


class _ForeignHooks:
    """Record of which hooks run code of the user. Such code may change the model or the optimizers."""

    def __init__(self) -> None:
        # Examine each hook only once, because this searches the hook's attributes. One of the attributes may be a list
        # that grows with every step.
        self._known: dict[int, bool] = {}

    def are_among(self, hooks: Sequence[Hook]) -> bool:
        """Return whether any of these hooks runs code of the user."""
        return any(map(self._is_foreign, hooks))

    def _is_foreign(self, hook: Hook) -> bool:
        known = self._known.get(id(hook))
        if known is None:
            known = self._known[id(hook)] = _runs_foreign_code(hook)
        return known


def _runs_foreign_code(hook: Hook) -> bool:
    """Return whether a hook's class, or a function or listener that the hook calls, is from outside this package."""
    held: list[Any] = []
    for value in vars(hook).values():
        several = value.values() if isinstance(value, dict) else value
        held += several if isinstance(value, list | tuple | dict) else (value,)
    called = [one for one in held if callable(one) or isinstance(one, CheckpointSaverListener)]
    own = [type(hook), *(one if isinstance(one, FunctionType | MethodType | type) else type(one) for one in called)]
    return not all(one.__module__ == "builtins" or one.__module__.startswith("torch_estimator.") for one in own)


class _LossWatch:
    """Detector of losses that are NaN or infinite.

    On a CPU it checks every loss at once. On a GPU, reading a loss waits for the device, so losses are collected and
    checked together: before hooks are called, and every `_MOST_UNSEEN` steps.
    """

    def __init__(self, context: RunContext, look: Callable[[int, int], str | None]) -> None:
        self._context = context
        self._look = look
        self._unseen: list[Tensor] = []

    def sees_damage(self, losses: Sequence[Tensor | float], *, at_once: bool) -> bool:
        """Return whether a loss up to now is NaN or infinite; if so, log that training ends, or raise an error.

        With `at_once`, losses on a GPU are checked now.
        """
        if not self._unseen and losses and not (isinstance(losses[-1], Tensor) and losses[-1].device.type != "cpu"):
            # The last loss is enough: `Steps.take` stops at the first loss that is not finite.
            loss, back = float(losses[-1]), 0
        else:
            self._unseen += [loss.detach() for loss in losses if isinstance(loss, Tensor)]
            if not self._unseen or not (at_once or len(self._unseen) >= _MOST_UNSEEN):
                return False
            seen = torch.stack(self._unseen)
            bad = seen.isfinite().logical_not().nonzero()
            first = int(bad[0]) if len(bad) else len(seen) - 1
            back = len(seen) - 1 - first
            self._context.global_step -= back
            loss = float(seen[first])
            self._unseen = []
        if math.isfinite(loss):
            return False
        end_for_loss(self._context, loss, self._look(len(losses), back))
        return True
