"""Role of the process that saves checkpoints: the chief of a cluster, or the only process, which evaluates, too.

It writes the training's status into ``training.json``, from which evaluators and workers learn whether training goes
on. After a kill, the next process reads the file, and so continues the training and makes what is owed.
"""

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
from torch_estimator.executors.evaluation import ContinuousEvalListener, Outcome, SpecEvaluator
from torch_estimator.executors.evaluation_watch import evaluation_watch
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext
from torch_estimator.hooks.tracking import send_rest
from torch_estimator.runs.training_status import TrainingStatus, read_status, write_status
from torch_estimator.specs import EvalSpec, TrainSpec
from torch_estimator.strategies.default import strategy_of
from torch_estimator.train.loop import StopReason, TrainingResult

logger = logging.getLogger("torch_estimator")

# File of earlier versions, in place of `unfinished` and `evaluating` of the status.
_MARKER = "train_and_evaluate.unfinished"


def run_chief(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Train and save checkpoints; announce the end of the training to the evaluator."""
    logger.info("The chief trains and saves checkpoints. Only an evaluator of the cluster evaluates and exports them.")
    training = _Training(estimator, train_spec)
    training.train(train_spec.saving_listeners or (), starts_input_over=not training.interrupted)
    training.end()


def run_local(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> list[Outcome] | None:
    """Train, evaluate and export in one process; return each spec's last outcome, or None if a spec has no outcome."""
    training = _Training(estimator, train_spec, evaluates=True)
    if not training.unfinished and is_reached(estimator.model_dir, train_spec.max_steps):
        step = training.latest_step()
        logger.info("Nothing to do: max_steps=%d is reached by the checkpoint of step %d.", train_spec.max_steps, step)
        strategy_of(estimator.config).dismiss(estimator.config)
        if estimator.config.cluster_spec:
            training.end()
        return None
    evaluators = [SpecEvaluator(estimator, spec, train_spec.max_steps) for spec in eval_specs]
    listener = _EvaluationListener(estimator, evaluators, continuous_eval_listener, training)
    listeners = (*(train_spec.saving_listeners or ()), listener)
    result = training.train(listeners, starts_input_over=not training.unfinished)
    finished = not listener.vetoed and _finish(estimator, training.latest_step(), evaluators, continuous_eval_listener)
    send_rest(train_spec.hooks or (), estimator.model_dir)
    training.end()
    if finished and result is not None:
        _log_early_end(result.reason, training.latest_step(), train_spec.max_steps)
    outcomes = [evaluator.outcome for evaluator in evaluators]
    return None if None in outcomes else outcomes  # type: ignore[return-value]  # checked just before


def _log_early_end(reason: StopReason, step: int | None, max_steps: int | None) -> None:
    if step is not None and (max_steps is None or step < max_steps):
        logger.info(
            "Training ended at global step %d, %s: %s. The model of this step is the final one.",
            step,
            "without max_steps" if max_steps is None else f"before max_steps={max_steps}",
            reason.value,
        )


def _finish(
    estimator: Estimator,
    step: int | None,
    evaluators: Sequence[SpecEvaluator],
    continuous_eval_listener: ContinuousEvalListener,
) -> bool:
    """Evaluate and export the last checkpoint as the final model; return False if the listener refuses."""
    latest = estimator.latest_checkpoint()
    if step is None or latest is None:
        raise RuntimeError(f"There was no new checkpoint in {estimator.model_dir} after the training.")
    late = [evaluator for evaluator in evaluators if evaluator.last_step != step]
    if late and not continuous_eval_listener.before_eval():
        logger.info("The continuous_eval_listener asked to stop before the last evaluation.")
        return False
    for evaluator in late:
        evaluator.evaluate(step, latest, final=True)
    for evaluator in evaluators:
        evaluator.finish()
    if late:
        evaluation_watch().evaluated(step, final=True)
        continuous_eval_listener.after_eval()
    return True


class _Training:
    """One training, with its status in a file in the model directory.

    If the previous training in the directory was killed (`interrupted`), this one continues it. If an evaluation or an
    export of that training is `unfinished`, it is made here, and `evaluating` is the step of the checkpoint whose
    evaluation was interrupted, or None.
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


class _EvaluationListener(CheckpointSaverListener):
    """Listener that evaluates each new checkpoint, at most once in ``throttle_secs``.

    The checkpoint that training starts from is evaluated only if an evaluation of it was interrupted, or if the
    process's `EvaluationWatch` wants it.
    """

    # False although `after_save` reads the checkpoints that it evaluates, because it waits for those by itself. So
    # training does not wait for the checkpoints that are not evaluated.
    reads_checkpoint = False

    def __init__(
        self,
        estimator: Estimator,
        evaluators: Sequence[SpecEvaluator],
        continuous_eval_listener: ContinuousEvalListener,
        training: _Training,
    ) -> None:
        self.vetoed = False
        self._training = training
        self._estimator = estimator
        self._evaluators = evaluators
        self._listener = continuous_eval_listener
        self._is_first_save = True

    def begin(self) -> None:
        # Write this only now, because `begin` runs after the input was opened. After a job that could not open its
        # input, the next run must not assume that an evaluation was interrupted.
        self._training.evaluate_later(now=self._training.evaluating)

    def after_save(self, global_step: int) -> bool:
        if self._is_first_save:
            self._is_first_save = False
            if global_step != self._training.evaluating and not evaluation_watch().wants(global_step):
                return False
        if self._estimator.job.is_preempted:
            # SIGKILL follows SIGTERM within seconds, and an evaluation may take longer.
            return False
        if not self._listener.before_eval():
            logger.info("The continuous_eval_listener asked to stop before an evaluation.")
            self.vetoed = True
            return True
        due = [evaluator for evaluator in self._evaluators if evaluator.is_due(global_step)]
        if not due:
            logger.info("Skipping the evaluation of step %d: throttle_secs have not passed.", global_step)
            return False
        self._estimator.job.wait_for_checkpoint()
        latest = self._estimator.latest_checkpoint()
        assert latest is not None, "the checkpoint was written just now"
        self._training.evaluate_later(now=global_step)
        for evaluator in due:
            evaluator.evaluate(global_step, latest)
        self._training.evaluate_later()
        is_final = all(one.outcome is not None and one.outcome.final for one in due)
        evaluation_watch().evaluated(global_step, final=is_final)
        if not self._listener.after_eval():
            logger.info("The continuous_eval_listener asked to stop after an evaluation.")
            return True
        return False


class _EndHook(Hook):
    """Hook that calls a function at the end of training, after all other hooks, unless training was preempted."""

    every_n_steps = None
    after_saving = True

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce

    def end(self, context: RunContext) -> None:
        if not context.preempted:
            self._announce()
