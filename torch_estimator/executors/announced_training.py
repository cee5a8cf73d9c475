"""Training of the process that saves checkpoints, which writes the training's status to a file for other processes."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import is_reached
from torch_estimator.checkpoint.index import checkpoint_step
from torch_estimator.cluster.process_start import job_start
from torch_estimator.errors import RESTART_ME, CheckpointError
from torch_estimator.estimator import Estimator
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext
from torch_estimator.runs.training_status import TrainingStatus, read_status, write_status
from torch_estimator.specs import TrainSpec
from torch_estimator.strategies.default import strategy_of
from torch_estimator.train.loop import TrainingResult

logger = logging.getLogger("torch_estimator")

# File of earlier versions, in place of `unfinished` and `evaluating` of the status.
_MARKER = "train_and_evaluate.unfinished"


class AnnouncedTraining:
    """One training by the chief, or by the only process, with its status in a file in the model directory.

    Evaluators and workers read the file. After a kill, the next process reads it, and so continues this training.

    Attributes:
        interrupted: Whether the previous training in this directory was killed, so that this one continues it.
        unfinished: Whether an evaluation or an export of the previous training is still to be made here.
        evaluating: Step of the checkpoint whose evaluation was interrupted, or None.
    """

    def __init__(self, estimator: Estimator, spec: TrainSpec, *, evaluates: bool = False) -> None:
        self._estimator = estimator
        self._spec = spec
        self._announces = True
        before = read_status(estimator.model_dir)
        self.interrupted = before is not None and not before.ended
        self.unfinished, self.evaluating = _marked(estimator.model_dir)
        if before is not None and before.unfinished:
            self.unfinished, self.evaluating = True, before.evaluating
        self._status = TrainingStatus(
            run=uuid.uuid4().hex,
            max_steps=spec.max_steps,
            evaluates=evaluates,
            began=time.time(),
            unfinished=evaluates and self.unfinished,
            evaluating=self.evaluating,
        )
        if before is not None and self.interrupted and before.over_at and before.max_steps == spec.max_steps:
            self._status = replace(before, evaluates=evaluates, failed=False)
        elif before is not None and is_reached(estimator.model_dir, spec.max_steps):
            # Nothing is left to train. If the file holds another training of this job, do not overwrite its status:
            # processes that take part in that training, or wait for the next, would assume that it has ended.
            is_of_job = before.began > job_start()
            self._announces = not (is_of_job and (before.ended or before.max_steps != spec.max_steps))

    def train(self, listeners: Sequence[CheckpointSaverListener], *, starts_input_over: bool) -> TrainingResult | None:
        """Write the status of the training to the file and train; if the training fails, write that to the file, too.

        If a chief was killed after the end of its training, no step is left to take, and only the job has to be
        finished.
        """
        config = self._estimator.config
        step = self.latest_step()
        self._write()
        if self._status.over_at is not None:
            logger.info("Training had ended when this process was killed; it takes no further step.")
            strategy_of(config).dismiss(config, is_over=True)
            return None
        hooks = tuple(self._spec.hooks or ())
        if config.num_ps_replicas:
            hooks = (*hooks, _EndHook(self._announce_end))
        try:
            return self._estimator.job.train(
                self._spec.input_fn,
                hooks,
                listeners,
                max_steps=self._spec.max_steps,
                starts_input_over=starts_input_over,
            )
        except (Exception, SystemExit) as error:
            if not (isinstance(error, SystemExit) and error.code == RESTART_ME):
                # Without a new checkpoint there is nothing to evaluate, and the next training begins its input anew.
                is_new = isinstance(error, SystemExit) or self.unfinished or self.latest_step() != step
                # If the status cannot be written, raise the error of the training, which matters more.
                with suppress(CheckpointError):
                    if not self._is_replaced():
                        self._write(failed=True, unfinished=self._status.unfinished and is_new)
            raise

    def evaluate_later(self, *, now: int | None = None) -> None:
        """Write that evaluations and exports are still to be made, and which checkpoint is being evaluated `now`."""
        self._write(unfinished=True, evaluating=now)

    def end(self) -> None:
        """Write to the status file that the training, its last evaluation and its exports are complete."""
        files.remove_tree(files.join(self._estimator.model_dir, _MARKER))
        over_at = self._status.over_at or time.time()
        self._write(over_at=over_at, ended=True, unfinished=False, evaluating=None)

    def latest_step(self) -> int | None:
        """Return the step of the latest checkpoint, or None if there is none."""
        latest = self._estimator.latest_checkpoint()
        return None if latest is None else checkpoint_step(files.basename(latest))

    def _announce_end(self) -> None:
        # Wait for the last checkpoint first: after the announcement the parameter servers exit, and from then on
        # training can resume only from a checkpoint.
        self._estimator.job.wait_for_checkpoint()
        self._write(over_at=time.time())

    def _is_replaced(self) -> bool:
        """Return whether another chief trains in this one's place, as after the lease was lost on an object store."""
        with suppress(CheckpointError):
            there = read_status(self._estimator.model_dir)
            return there is not None and there.run != self._status.run
        return False

    def _write(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)
        if self._announces:
            write_status(self._estimator.model_dir, self._status)


def _marked(model_dir: str) -> tuple[bool, int | None]:
    """Return what the marker of an earlier version says: whether there is one, and which evaluation it names."""
    try:
        return True, checkpoint_step(f"model.ckpt-{files.read_text(files.join(model_dir, _MARKER))}")
    except UnicodeDecodeError:
        return True, None
    except OSError:
        return False, None


class _EndHook(Hook):
    """Hook that calls a function at the end of training, after all other hooks, unless training was preempted."""

    every_n_steps = None
    after_saving = True

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce

    def end(self, context: RunContext) -> None:
        if not context.preempted:
            self._announce()
