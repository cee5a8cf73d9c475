"""Saves checkpoints while training runs, and tells those who listen."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from torch_estimator.hooks.checkpoint_saver_listener import CheckpointSaverListener
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.train.checks import NotFinite, end_for_variable

logger = logging.getLogger("torch_estimator")

_LOOK_EVERY_SECS = 1.0


class Saver(Protocol):
    """Saves the state of a training; `CheckpointSaverHook` says when."""

    def save(self, step: int, *, wait: bool) -> None:
        """Save the state at a global step; with ``wait``, return once the checkpoint can be read.

        Raises:
            NotFinite: A trained variable is NaN or infinite.
        """

    def amend(self, step: int) -> None:
        """Add what hooks have learnt since the last step was saved."""

    def refresh(self, context: RunContext) -> None:
        """Update the state and the global step, where another process holds them."""


class CheckpointSaverHook(Hook):
    """Saves at the start, every so many steps or seconds, and at the end if the last step is not saved yet.

    Args:
        saver: Saves the state.
        model_dir: Where it goes, for the log.
        every_n_steps: Steps between checkpoints, or None.
        every_secs: Seconds between checkpoints, or None; nothing is written unless the step advanced.
        listeners: Told before and after each save.
        saved_step: Global step of the checkpoint that training starts from, which need not be written again.
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
            # Told more often than it saves: the seconds count from the end of a save.
            self.every_secs = min(_LOOK_EVERY_SECS, every_secs / 10)
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
            logger.info("The checkpoint of global step %s stays the last one.", self._saved_step)
        elif context.global_step != self._saved_step:
            self.save(context)
        else:
            self._saver.amend(context.global_step)
        for listener in self._listeners:
            listener.end(context.global_step)

    def save(self, context: RunContext) -> None:
        """Save between two steps, unless the last one is saved.

        Raises:
            NanLossDuringTrainingError: A trained variable is NaN or infinite, unless ``context.fail_on_nan_loss`` is
                False: then the training ends without an error.
        """
        self._saver.refresh(context)
        step = context.global_step
        for listener in self._listeners:
            listener.before_save(step)
        if step != self._saved_step:
            logger.info("Saving checkpoints for %d into %s.", step, self._model_dir)
            try:
                self._saver.save(step, wait=any(listener.reads_checkpoint for listener in self._listeners))
            except NotFinite as found:
                end_for_variable(context, found)
                return
        self._saved_step = step
        self._saved_at = self._clock()
        for listener in self._listeners:
            if listener.after_save(step):
                logger.info("A listener asked to stop at global step %d.", step)
                context.request_stop()


class CheckpointMemoryHook(Hook):
    """Has the memory for the next checkpoint made ready after the first step, when all optimizers have their state.

    Args:
        prepare: Starts to make it ready.
    """

    every_n_steps = sys.maxsize  # Only once.

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare

    def after_step(self, context: RunContext) -> None:
        self._prepare()
