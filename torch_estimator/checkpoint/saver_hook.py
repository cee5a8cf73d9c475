"""Saves checkpoints while training runs, and tells those who listen."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

from torch_estimator.hooks.checkpoint_saver_listener import CheckpointSaverListener
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.train.damage import NotFinite, end_for_variable

logger = logging.getLogger("torch_estimator")

_LOOK_EVERY_SECS = 1.0


class CheckpointSaverHook(Hook):
    """Saves at the start, every so many steps or seconds, and at the end if the last step is not saved yet.

    Args:
        save: Saves the state at a global step; ``wait=True`` returns once the checkpoint can be read. Raises
            `NotFinite` where a trained variable is NaN or infinite.
        model_dir: Where it goes, for the log.
        every_n_steps: Steps between checkpoints, or None.
        every_secs: Seconds between checkpoints, or None; nothing is written unless the step advanced.
        listeners: Told before and after each save.
        saved_step: Global step of the checkpoint that training starts from, which need not be written again.
        amend: Called at the end with the last step where that is saved: what hooks learnt since belongs to it, too.
        refresh: Called before the global step is looked at: makes all that is saved what it is elsewhere.
    """

    def __init__(
        self,
        save: Callable[..., None],
        model_dir: str,
        *,
        every_n_steps: int | None,
        every_secs: float | None,
        listeners: Sequence[CheckpointSaverListener] = (),
        saved_step: int | None = None,
        amend: Callable[[int], None] = lambda step: None,
        refresh: Callable[[RunContext], None] = lambda context: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._by_steps = bool(every_n_steps)
        if every_n_steps:
            self.every_n_steps = self.first_step = every_n_steps
        elif every_secs:
            # Told more often than it saves: the seconds count from the end of a save.
            self.every_secs = min(_LOOK_EVERY_SECS, every_secs / 10)
            self.clock = clock
        self._save_state = save
        self._model_dir = model_dir
        self._save_secs = every_secs
        self._listeners = listeners
        self._saved_step = saved_step
        self._amend = amend
        self._refresh = refresh
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
            self._refresh(context)
        if context.damaged:
            logger.info("The checkpoint of global step %s stays the last one.", self._saved_step)
        elif context.global_step != self._saved_step:
            self.save(context)
        else:
            self._amend(context.global_step)
        for listener in self._listeners:
            listener.end(context.global_step)

    def save(self, context: RunContext) -> None:
        """Save between two steps, unless the last one is saved.

        Raises:
            NanLossDuringTrainingError: A trained variable is NaN or infinite, unless ``context.fail_on_nan_loss`` is
                False: then the training ends without an error.
        """
        self._refresh(context)
        step = context.global_step
        for listener in self._listeners:
            listener.before_save(step)
        if step != self._saved_step:
            logger.info("Saving checkpoints for %d into %s.", step, self._model_dir)
            try:
                self._save_state(step, wait=any(listener.reads_checkpoint for listener in self._listeners))
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
