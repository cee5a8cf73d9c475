"""A training that is told of, from its begin to its end, to those who only see its model directory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from torch_estimator.checkpoint.checkpoint import is_reached
from torch_estimator.cluster.process_start import job_start
from torch_estimator.errors import RESTART_ME, CheckpointError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.training_status import new_training, read_training_state, write_training_state
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext, checked_listeners
from torch_estimator.specs import TrainSpec
from torch_estimator.strategies.joining import end_servers
from torch_estimator.train.loop import TrainingResult

logger = logging.getLogger("torch_estimator")


class Announcement:
    """Of the training of a chief, to evaluators and to workers that come late.

    Args:
        estimator: What is trained.
        spec: How.
        evaluates: Whether the chief evaluates, too.
        heard: Whether there may be such others; else nothing is told, as where there is nothing left to train.

    Attributes:
        interrupted: Whether the one before was killed, so that this one goes on with it.
    """

    def __init__(self, estimator: Estimator, spec: TrainSpec, *, evaluates: bool = False, heard: bool = True) -> None:
        self._estimator = estimator
        self._spec = spec
        self._heard = heard
        before = read_training_state(estimator.model_dir) if heard else None
        self.interrupted = before is not None and not before.ended
        self._state = new_training(spec.max_steps, evaluates=evaluates)
        if before is not None and self.interrupted and before.over_at and before.max_steps == spec.max_steps:
            self._state = replace(before, evaluates=evaluates, failed=False)
        elif before is not None and is_reached(estimator.model_dir, spec.max_steps):
            # Others of this job may be in the training after this one, or wait for it, and would take this for its end.
            is_of_job = before.began > job_start()
            self._heard = not (is_of_job and (before.ended or before.max_steps != spec.max_steps))

    def train(
        self, listeners: Sequence[CheckpointSaverListener] | None, *, input_over_when_ended: bool
    ) -> TrainingResult | None:
        """Trains; see `Estimator._train`. Where all that was left is to end, only that is done."""
        self._write()
        try:
            return self._trained(listeners, input_over_when_ended=input_over_when_ended)
        except (Exception, SystemExit) as error:
            is_to_go = isinstance(error, SystemExit) and error.code == RESTART_ME
            if not is_to_go and self._known_run() in (None, self._state.run):
                self._state = replace(self._state, failed=True)
                # What went wrong counts more than that this cannot be told.
                with suppress(CheckpointError):
                    self._write()
            raise

    def _trained(
        self, listeners: Sequence[CheckpointSaverListener] | None, *, input_over_when_ended: bool
    ) -> TrainingResult | None:
        config = self._estimator.config
        listeners = checked_listeners(listeners)
        if self._heard:
            listeners = (*listeners, _SavedListener(self._say_again))
        if self._state.over_at is not None:
            logger.info("Training had ended when this process was killed; it takes no further step.")
            end_servers(config, is_over=True)
            return None
        hooks = tuple(self._spec.hooks or ())
        if config.num_ps_replicas:
            hooks = (*hooks, _OverHook(self._say_over))
        return self._estimator._train(
            self._spec.input_fn,
            hooks,
            listeners,
            max_steps=self._spec.max_steps,
            input_over_when_ended=input_over_when_ended,
        )

    def end(self) -> None:
        """Tells that it has ended."""
        self._state = replace(self._state, over_at=self._state.over_at or time.time(), ended=True)
        self._write()

    def _say_over(self) -> None:
        # Servers that have ended hold nothing to go on with.
        self._estimator._wait_for_checkpoint()
        self._state = replace(self._state, over_at=time.time())
        self._write()

    def _say_again(self) -> None:
        # Another chief may have been started by mistake, which has said that it trains, or has failed, before it knew.
        if self._known_run() != self._state.run:
            self._write()

    def _known_run(self) -> str | None:
        known = None
        with suppress(CheckpointError):
            known = read_training_state(self._estimator.model_dir) if self._heard else None
        return None if known is None else known.run

    def _write(self) -> None:
        if self._heard:
            write_training_state(self._estimator.model_dir, self._state)


class _OverHook(Hook):
    """Calls a function after all other hooks have ended, and before the parameter servers do."""

    every_n_steps = None
    after_saving = True

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say

    def end(self, context: RunContext) -> None:
        if not context.preempted:
            self._say()


class _SavedListener(CheckpointSaverListener):
    """Calls a function with each checkpoint."""

    reads_checkpoint = False

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say

    def after_save(self, global_step: int) -> None:
        self._say()
