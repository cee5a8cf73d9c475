"""Saving of checkpoints while training runs, including the states of hooks."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext
from torch_estimator.hooks.nan_tensor import NotFinite, end_for_variable
from torch_estimator.json_text import parse_json

logger = logging.getLogger("torch_estimator")

_POLL_SECS = 1.0

States = dict[str, list[dict[str, Any] | None]]


class Saver(Protocol):
    """Protocol of the object that saves the state of a training when `CheckpointSaverHook` calls it."""

    def save(self, step: int, *, wait: bool, is_last: bool = False) -> None:
        """Save the training state of a global step; if ``wait`` is True, wait until the checkpoint is complete.

        Raise `NotFinite` if a trained variable is NaN or infinite.
        """

    def has_saved(self, step: int) -> bool:
        """Wait until no checkpoint is being written; return whether the latest one is of this step."""

    def amend(self, step: int) -> None:
        """After the last step, which is saved already, update the hooks' states in its checkpoint if they changed."""

    def refresh(self, context: RunContext) -> None:
        """Fetch the model, the optimizer state and the global step, if other processes hold them."""


class CheckpointSaverHook(Hook):
    """Hook that saves checkpoints at the start, every N steps or seconds, and at the end.

    Nothing is saved after ``every_secs`` if there was no step since the last checkpoint. `saved_step` is the global
    step of the checkpoint that training starts from, which is not saved again.
    """

    def __init__(
        self,
        saver: Saver,
        model_dir: str,
        *,
        every_n_steps: int | None,
        every_secs: float | None,
        listeners: Sequence[CheckpointSaverListener] = (),
        saved_step: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._by_steps = bool(every_n_steps)
        if every_n_steps:
            self.every_n_steps = self.first_step = every_n_steps
        elif every_secs:
            # Call this hook more often than it saves, and let `after_step` decide whether to save. The interval to the
            # next save begins when a save and its listeners end. With an evaluation that takes longer than the
            # interval, there would otherwise be a single step between two saves.
            self.every_secs = min(_POLL_SECS, every_secs / 10)
            self.clock = clock
        self._saver = saver
        self._model_dir = model_dir
        self._save_secs = every_secs
        self._listeners = listeners
        self._saved_step = saved_step
        self._clock = clock
        self._saved_at = clock()

    def begin(self, context: RunContext) -> None:
        for listener in self._listeners:
            listener.begin()
        self.save(context)

    def after_step(self, context: RunContext) -> None:
        if self._by_steps or (self._save_secs and self._clock() - self._saved_at >= self._save_secs):
            self.save(context)

    def end(self, context: RunContext) -> None:
        if not context.damaged:
            self._saver.refresh(context)
        if context.damaged:
            logger.info(
                "Not saved: a loss or variable is not finite. The checkpoint of global step %s remains the latest.",
                self._saved_step,
            )
        elif context.global_step != self._saved_step or not self._saver.has_saved(context.global_step):
            self._saved_step = None
            self.save(context, is_last=True)
        else:
            self._saver.amend(context.global_step)
        for listener in self._listeners:
            listener.end(context.global_step)

    def save(self, context: RunContext, *, is_last: bool = False) -> None:
        """Save a checkpoint between two steps, unless the current step is saved already, and call the listeners.

        If a trained variable is NaN or infinite, raise `NanLossDuringTrainingError` or, if ``context.fail_on_nan_loss``
        is False, end training without an error.
        """
        self._saver.refresh(context)
        step = context.global_step
        for listener in self._listeners:
            listener.before_save(step)
        if step != self._saved_step:
            logger.info("Saving checkpoints for %d into %s.", step, self._model_dir)
            try:
                # Hooks whose `end` follows may read the last checkpoint, too.
                wait = is_last or any(listener.reads_checkpoint for listener in self._listeners)
                self._saver.save(step, wait=wait, is_last=is_last)
                while wait and not self._saver.has_saved(step):
                    # A parameter server was lost while it wrote its part. Restore it, and save again.
                    self._saver.refresh(context)
                    step = context.global_step
                    self._saver.save(step, wait=wait, is_last=is_last)
            except NotFinite as found:
                end_for_variable(context, found)
                return
        self._saved_step = step
        for listener in self._listeners:
            if listener.after_save(step):
                logger.info("A listener asked to stop at global step %d.", step)
                context.request_stop()
        self._saved_at = self._clock()


class CheckpointMemoryHook(Hook):
    """Hook that allocates the memory for checkpoints after the first step, because optimizers have no state before.

    `prepare` starts the allocation in the background.
    """

    every_n_steps = sys.maxsize  # The hook is due at the first step only.

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare

    def after_step(self, context: RunContext) -> None:
        self._prepare()


def hook_states(hooks: Sequence[Hook]) -> States:
    """Return a dict from the name of a hook's class to the states of its hooks. Classes without states are left out."""
    states: States = {}
    for hook in hooks:
        states.setdefault(_class_name(hook), []).append(_checked_state(hook))
    return {name: several for name, several in states.items() if any(state is not None for state in several)}


def restore_hooks(hooks: Sequence[Hook], states: Mapping[str, Sequence[dict[str, Any] | None]]) -> None:
    """Give each hook its state in a saved result of `hook_states`. Hooks without a saved state do not change."""
    waiting = {name: iter(several) for name, several in states.items()}
    for hook in hooks:
        state = next(waiting.get(_class_name(hook), iter(())), None)
        if state is not None:
            hook.restore(state)


def _class_name(hook: Hook) -> str:
    return type(hook).__qualname__


def _checked_state(hook: Hook) -> dict[str, Any] | None:
    state = hook.state()
    if state is None:
        return None
    try:
        # Convert the state to JSON and back. The hook cannot change this copy any more, and the copy equals the state
        # that will be read from the checkpoint.
        copied = parse_json(json.dumps(state))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTypeError(f"state() of {_class_name(hook)} must return what JSON can hold: {error}.") from error
    if not isinstance(copied, dict):
        raise InvalidTypeError(f"state() of {_class_name(hook)} must return a dict or None, but returned {state!r}.")
    return copied
