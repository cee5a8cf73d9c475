"""Training on the chief, which writes the training's status to a file that evaluators and workers read."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from torch_estimator.checkpoint.checkpoint import is_reached
from torch_estimator.cluster.process_start import job_start
from torch_estimator.errors import RESTART_ME, CheckpointError
from torch_estimator.estimator import Estimator
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext, checked_listeners
from torch_estimator.runs.training_status import TrainingStatus, read_status, write_status
from torch_estimator.specs import TrainSpec
from torch_estimator.strategies.default import strategy_of
from torch_estimator.train.loop import TrainingResult

logger = logging.getLogger("torch_estimator")


class AnnouncedTraining:
    """One training on the chief, with its status in a file in the model directory for evaluators and workers.

    Args:
        estimator: The estimator to train.
        spec: How to train it.
        evaluates: Whether the chief evaluates, too.
        announces: Whether to write the status, since other processes may read it.

    Attributes:
        interrupted: Whether the previous training in this directory was killed, so that this one continues it.
    """

    def __init__(
        self, estimator: Estimator, spec: TrainSpec, *, evaluates: bool = False, announces: bool = True
    ) -> None:
        self._estimator = estimator
        self._spec = spec
        self._announces = announces
        before = read_status(estimator.model_dir) if announces else None
        self.interrupted = before is not None and not before.ended
        self._status = TrainingStatus(
            run=uuid.uuid4().hex, max_steps=spec.max_steps, evaluates=evaluates, began=time.time()
        )
        if before is not None and self.interrupted and before.over_at and before.max_steps == spec.max_steps:
            self._status = replace(before, evaluates=evaluates, failed=False)
        elif before is not None and is_reached(estimator.model_dir, spec.max_steps):
            # Nothing is left to train. If the file holds another training of this job, do not overwrite its status:
            # processes that take part in that training, or wait for the next, would assume that it has ended.
            is_of_job = before.began > job_start()
            self._announces = not (is_of_job and (before.ended or before.max_steps != spec.max_steps))

    def train(
        self, listeners: Sequence[CheckpointSaverListener] | None, *, starts_input_over: bool
    ) -> TrainingResult | None:
        """Write the status of the training to the file and train; if the training fails, write that to the file, too.

        If a chief was killed after the end of its training, no step is left to take, and only the job has to be
        finished.
        """
        self._write()
        try:
            return self._train(listeners, starts_input_over=starts_input_over)
        except (Exception, SystemExit) as error:
            is_restarted = isinstance(error, SystemExit) and error.code == RESTART_ME
            if not is_restarted and self._run_in_file() in (None, self._status.run):
                self._status = replace(self._status, failed=True)
                # If the status cannot be written, raise the error of the training, which matters more.
                with suppress(CheckpointError):
                    self._write()
            raise

    def end(self) -> None:
        """Write to the status file that the training, its last evaluation and its exports are complete."""
        self._status = replace(self._status, over_at=self._status.over_at or time.time(), ended=True)
        self._write()

    def _train(
        self, listeners: Sequence[CheckpointSaverListener] | None, *, starts_input_over: bool
    ) -> TrainingResult | None:
        config = self._estimator.config
        listeners = checked_listeners(listeners)
        if self._announces:
            listeners = (*listeners, _SavedListener(self._announce_again))
        if self._status.over_at is not None:
            logger.info("Training had ended when this process was killed; it takes no further step.")
            strategy_of(config).dismiss(config, is_over=True)
            return None
        hooks = tuple(self._spec.hooks or ())
        if config.num_ps_replicas:
            hooks = (*hooks, _EndHook(self._announce_end))
        return self._estimator.job.train(
            self._spec.input_fn,
            hooks,
            listeners,
            max_steps=self._spec.max_steps,
            starts_input_over=starts_input_over,
        )

    def _announce_end(self) -> None:
        # Wait for the last checkpoint first: after the announcement the parameter servers exit, and from then on
        # training can resume only from a checkpoint.
        self._estimator.job.wait_for_checkpoint()
        self._status = replace(self._status, over_at=time.time())
        self._write()

    def _announce_again(self) -> None:
        # A second chief, started by mistake, may have overwritten the status. If so, write this chief's status again.
        if self._run_in_file() != self._status.run:
            self._write()

    def _run_in_file(self) -> str | None:
        known = None
        with suppress(CheckpointError):
            known = read_status(self._estimator.model_dir) if self._announces else None
        return None if known is None else known.run

    def _write(self) -> None:
        if self._announces:
            write_status(self._estimator.model_dir, self._status)


class _EndHook(Hook):
    """Hook that calls a function at the end of training, after all other hooks, unless training was preempted."""

    every_n_steps = None
    after_saving = True

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce

    def end(self, context: RunContext) -> None:
        if not context.preempted:
            self._announce()


class _SavedListener(CheckpointSaverListener):
    """Listener that calls a function after each checkpoint is saved."""

    reads_checkpoint = False

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce

    def after_save(self, global_step: int) -> None:
        self._announce()
