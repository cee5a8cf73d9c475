"""`StepCounterHook`: training speed in steps per second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from torch_estimator.cluster.environment import task_from_environment
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import check_seconds_or_steps

logger = logging.getLogger("torch_estimator")


class StepCounterHook(Hook):
    """Hook that logs ``global_step/sec`` and writes it as a summary.

    Training adds such a hook itself, with the interval `RunConfig.log_step_count_steps`. With parameter servers the
    global step counts the steps of all workers, so the speed is that of the whole job, as in tf.estimator.

    Args:
        every_n_steps: Steps from one measurement to the next; ignored if ``every_n_secs`` is given.
        every_n_secs: Seconds from one measurement to the next.
        output_dir: Directory for the summary; None for the run's own directory.
        clock: Function that returns the time in seconds.
        min_log_secs: Minimum time between two log lines, in seconds; every measurement is written as a summary.

    Raises:
        InvalidValueError: A number is not positive.

    >>> hook = te.StepCounterHook(every_n_steps=2)
    >>> estimator = te.BaselineRegressor("memory://StepCounterHook")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=5, hooks=[hook])
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        min_log_secs: float = 0.0,
    ) -> None:
        steps = every_n_steps if every_n_secs is None else None
        check_seconds_or_steps("StepCounterHook", every_n_steps=steps, every_n_secs=every_n_secs)
        self.every_n_steps = steps
        self.every_secs = every_n_secs
        self.clock = clock
        self._output_dir = output_dir
        self._min_log_secs = min_log_secs
        # Global step and time of the last measurement (`_last`) and of the last log line (`_logged`).
        self._last: tuple[int, float] | None = None
        self._logged: tuple[int, float] | None = None

    def begin(self, context: RunContext) -> None:
        self._last = self._logged = None
        task = task_from_environment()
        self._whose = " (all workers together)" if task.num_ps and task.num_workers > 1 else ""

    def after_step(self, context: RunContext) -> None:
        now = (context.global_step, self.clock())
        if self._last is not None:
            speed = _speed(self._last, now)
            context.summary_writer(self._output_dir).scalar("global_step/sec", speed, context.global_step)
        if self._logged is None:
            self._logged = now
        elif now[1] - self._logged[1] >= self._min_log_secs:
            logger.info("global_step/sec: %g%s", _speed(self._logged, now), self._whose)
            self._logged = now
        self._last = now


def _speed(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[0] - start[0]) / max(end[1] - start[1], 1e-9)
