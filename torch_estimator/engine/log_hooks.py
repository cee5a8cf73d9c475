"""The log lines and summaries of a training run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from torch_estimator.engine.summaries import EventWriter
from torch_estimator.hooks.hook import Hook, RunContext

logger = logging.getLogger("torch_estimator")
Clock = Callable[[], float]


class StepCounterHook(Hook):
    """Logs ``global_step/sec`` and writes its summary."""

    def __init__(self, every_n_steps: int, events: EventWriter, clock: Clock = time.monotonic) -> None:
        self.every_n_steps = every_n_steps
        self._events = events
        self._clock = clock
        self._last: tuple[int, float] | None = None

    def after_step(self, context: RunContext) -> None:
        now = self._clock()
        if self._last is not None:
            last_step, last_time = self._last
            speed = (context.global_step - last_step) / max(now - last_time, 1e-9)
            logger.info("global_step/sec: %g", speed)
            self._events.scalar("global_step/sec", speed, context.global_step)
        self._last = (context.global_step, now)


class LossLogHook(Hook):
    """Logs the loss with the step before it, as tf.estimator does: at 0, k, 2k, … of a fresh run."""

    def __init__(self, every_n_steps: int, clock: Clock = time.monotonic) -> None:
        self.every_n_steps = every_n_steps
        self._clock = clock
        self._last: float | None = None

    def after_step(self, context: RunContext) -> None:
        now = self._clock()
        took = "" if self._last is None else f" ({now - self._last:.3f} sec)"
        logger.info("loss = %g, step = %d%s", context.loss, context.global_step - 1, took)
        self._last = now


class LossSummaryHook(Hook):
    """Writes the ``loss`` summary."""

    def __init__(self, every_n_steps: int, events: EventWriter) -> None:
        self.every_n_steps = every_n_steps
        self._events = events

    def after_step(self, context: RunContext) -> None:
        self._events.scalar("loss", context.loss, context.global_step)

    def end(self, context: RunContext) -> None:
        self._events.flush()
