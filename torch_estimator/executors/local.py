"""Role of a process that both trains and evaluates: train, evaluate after checkpoints, export at the end."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch_estimator import files
from torch_estimator.checkpoint.index import checkpoint_step
from torch_estimator.errors import CheckpointError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.announced_training import AnnouncedTraining
from torch_estimator.executors.evaluation import ContinuousEvalListener, Outcome, SpecEvaluator
from torch_estimator.executors.roles import check_saves_checkpoints
from torch_estimator.hooks.hook import CheckpointSaverListener
from torch_estimator.specs import EvalSpec, TrainSpec
from torch_estimator.strategies.default import strategy_of
from torch_estimator.train.loop import StopReason

logger = logging.getLogger("torch_estimator")

_UNFINISHED = "train_and_evaluate.unfinished"


def run_local(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> list[Outcome] | None:
    """Train, evaluate and export in one process; return each spec's last outcome, or None if a spec has no outcome."""
    check_saves_checkpoints(estimator.config)
    # While this file exists, the last evaluation and export are not complete. A restarted process does them, even if
    # max_steps is reached or the input has ended.
    unfinished = files.join(estimator.model_dir, _UNFINISHED)
    interrupted = files.exists(unfinished)
    training = AnnouncedTraining(estimator, train_spec, evaluates=True, announces=bool(estimator.config.cluster_spec))
    interrupted_step = _interrupted_evaluation(unfinished) if interrupted else None
    step = _latest_step(estimator)
    if not interrupted and train_spec.max_steps is not None and step is not None and step >= train_spec.max_steps:
        logger.info("Nothing to do: max_steps=%d is reached by the checkpoint of step %d.", train_spec.max_steps, step)
        strategy_of(estimator.config).dismiss(estimator.config)
        training.end()
        return None
    evaluators = [SpecEvaluator(estimator, spec, train_spec.max_steps) for spec in eval_specs]
    listener = _EvaluationListener(estimator, evaluators, continuous_eval_listener, unfinished, interrupted_step)
    try:
        listeners = (*(train_spec.saving_listeners or ()), listener)
        result = training.train(listeners, starts_input_over=not interrupted)
    except Exception:
        if not interrupted and _latest_step(estimator) == step:
            # This run has saved no checkpoint, so no evaluation is left to do. Remove the file.
            files.remove_tree(unfinished)
        raise
    finished = not listener.vetoed and _finish(estimator, evaluators, continuous_eval_listener)
    files.remove_tree(unfinished)
    training.end()
    if finished and result is not None:
        _log_early_end(result.reason, _latest_step(estimator), train_spec.max_steps)
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


def _mark_unfinished(unfinished: str, model_dir: str, *, evaluating: int | None = None) -> None:
    """Write the file that says the job is unfinished, with the step of the checkpoint that is being evaluated."""
    try:
        files.makedirs(model_dir)
        files.write_atomic(unfinished, b"" if evaluating is None else b"%d" % evaluating)
    except OSError as error:
        raise CheckpointError(
            f"model_dir {model_dir} cannot be written: {files.reason(error)}; use another model_dir."
        ) from error


def _interrupted_evaluation(unfinished: str) -> int | None:
    """Return the step of the checkpoint whose evaluation was interrupted, as the file says; None if there is none."""
    try:
        return checkpoint_step(f"model.ckpt-{files.read_text(unfinished)}")
    except UnicodeDecodeError:
        return None


def _finish(
    estimator: Estimator, evaluators: Sequence[SpecEvaluator], continuous_eval_listener: ContinuousEvalListener
) -> bool:
    """Evaluate and export the last checkpoint as the final model; return False if the listener refuses."""
    step = _latest_step(estimator)
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
        unfinished: str,
        interrupted_step: int | None,
    ) -> None:
        self.vetoed = False
        self._unfinished = unfinished
        self._estimator = estimator
        self._evaluators = evaluators
        self._listener = continuous_eval_listener
        self._interrupted_step = interrupted_step
        self._is_first_save = True

    def begin(self) -> None:
        # Write the file only now, because `begin` runs after the input was opened. A job that cannot open its input
        # must not leave the file behind, because the next run would assume that an evaluation was interrupted.
        _mark_unfinished(self._unfinished, self._estimator.model_dir, evaluating=self._interrupted_step)

    def after_save(self, global_step: int) -> bool:
        if self._is_first_save:
            self._is_first_save = False
            if global_step != self._interrupted_step:
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
        _mark_unfinished(self._unfinished, self._estimator.model_dir, evaluating=global_step)
        for evaluator in due:
            evaluator.evaluate(global_step, latest)
        _mark_unfinished(self._unfinished, self._estimator.model_dir)
        if not self._listener.after_eval():
            logger.info("The continuous_eval_listener asked to stop after an evaluation.")
            return True
        return False


def _latest_step(estimator: Estimator) -> int | None:
    latest = estimator.latest_checkpoint()
    return None if latest is None else checkpoint_step(files.basename(latest))
