"""Role of a process that both trains and evaluates: train, evaluate after checkpoints, export at the end."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch_estimator.checkpoint.checkpoint import is_reached
from torch_estimator.estimator import Estimator
from torch_estimator.executors.announced_training import AnnouncedTraining
from torch_estimator.executors.evaluation import ContinuousEvalListener, Outcome, SpecEvaluator
from torch_estimator.executors.roles import check_saves_checkpoints
from torch_estimator.hooks.hook import CheckpointSaverListener
from torch_estimator.specs import EvalSpec, TrainSpec
from torch_estimator.strategies.default import strategy_of
from torch_estimator.train.loop import StopReason

logger = logging.getLogger("torch_estimator")


def run_local(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> list[Outcome] | None:
    """Train, evaluate and export in one process; return each spec's last outcome, or None if a spec has no outcome."""
    check_saves_checkpoints(estimator.config)
    training = AnnouncedTraining(estimator, train_spec, evaluates=True)
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
        continuous_eval_listener.after_eval()
    return True


class _EvaluationListener(CheckpointSaverListener):
    """Listener that evaluates each new checkpoint, at most once in ``throttle_secs``.

    The checkpoint that training starts from is evaluated only if an evaluation of it was interrupted.
    """

    # False although `after_save` reads the checkpoints that it evaluates, because it waits for those by itself. So
    # training does not wait for the checkpoints that are not evaluated.
    reads_checkpoint = False

    def __init__(
        self,
        estimator: Estimator,
        evaluators: Sequence[SpecEvaluator],
        continuous_eval_listener: ContinuousEvalListener,
        training: AnnouncedTraining,
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
            if global_step != self._training.evaluating:
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
        if not self._listener.after_eval():
            logger.info("The continuous_eval_listener asked to stop after an evaluation.")
            return True
        return False
