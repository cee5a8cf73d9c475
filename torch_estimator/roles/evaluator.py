"""The evaluator's role: follow the checkpoints that others save, evaluate and export them, and end with the last."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence

from torch_estimator import files
from torch_estimator.engine.checkpoint import checkpoint_paths
from torch_estimator.engine.checkpoint_index import checkpoint_step, hold_checkpoint
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.estimator import Estimator
from torch_estimator.roles.continuous_eval_listener import ContinuousEvalListener
from torch_estimator.roles.evaluation import Outcome, SpecEvaluator
from torch_estimator.roles.evaluation_record import EvaluationRecord
from torch_estimator.roles.training_state import TrainingState, read_training_state
from torch_estimator.specs import EvalSpec, TrainSpec

logger = logging.getLogger("torch_estimator")

_LOOK_EVERY_SECS = 1.0
_SAY_EVERY_SECS = 600.0

# For a chief that is started together with the evaluator to say that another training begins.
_GRACE_SECS = 10.0


def run_evaluator(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> list[Outcome] | None:
    """Evaluates until training is over; returns the last outcome of each spec, or None where one has none."""
    task = estimator.config._task
    if task.id:
        raise InvalidValueError(
            f"A job has one evaluator, but {task.source} says that this process is {task}; start evaluator 0 only."
        )
    return Evaluator(estimator, train_spec.max_steps, eval_specs, continuous_eval_listener).run()


class Evaluator:
    """Evaluates each checkpoint at most once, also over restarts.

    Args:
        estimator: What to evaluate.
        max_steps: Global step at which training is over, or None.
        specs: How to evaluate.
        listener: Asked around evaluations whether to go on.
        clock: Seconds that only go forward.
        sleep: Lets so many of them pass.
    """

    def __init__(
        self,
        estimator: Estimator,
        max_steps: int | None,
        specs: Sequence[EvalSpec],
        listener: ContinuousEvalListener,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._estimator = estimator
        self._model_dir = estimator.model_dir
        self._max_steps = max_steps
        self._listener = listener
        self._clock = clock
        self._sleep = sleep
        self._record = EvaluationRecord(self._model_dir)
        self._specs = [SpecEvaluator(estimator, spec, max_steps, clock, self._record) for spec in specs]
        self._started = self._said_at = clock()
        before = read_training_state(self._model_dir)
        self._ended_before = before.run if before is not None and before.ended else None

    def run(self) -> list[Outcome] | None:
        """Returns the last outcome of each spec, or None where one has none."""
        for one in self._specs:
            done = self._record.of(one.spec.name)
            if done is not None:
                self._safely(one.catch_up, done.checkpoint_path)
        while True:
            # Asked before the latest checkpoint is looked up, which then is the last one.
            ended = self._ended_training()
            latest = self._estimator.latest_checkpoint()
            step = None if latest is None else checkpoint_step(files.basename(latest))
            due = [one for one in self._specs if step is not None and self._is_due(one, step, ended is not None)]
            if due and latest is not None and step is not None:
                if not self._evaluate(due, step, latest, final=ended is not None):
                    break
            elif ended is not None or (step is not None and self._is_last(step)):
                self._finish(ended)
                break
            else:
                self._say_what_is_missing(step)
                self._sleep(_LOOK_EVERY_SECS)
        outcomes = [one.outcome for one in self._specs]
        return None if None in outcomes else outcomes  # type: ignore[return-value]  # checked just before

    def _ended_training(self) -> TrainingState | None:
        """The training that has ended, unless it is an earlier one whose end has been dealt with."""
        state = read_training_state(self._model_dir)
        if state is None or not state.ended or state.max_steps != self._max_steps:
            return None
        if state.run == self._record.finished:
            return None
        if state.run == self._ended_before and self._clock() < self._started + _GRACE_SECS:
            return None
        return state

    def _is_last(self, step: int) -> bool:
        return self._max_steps is not None and step >= self._max_steps

    def _is_due(self, one: SpecEvaluator, step: int, ended: bool) -> bool:
        if one.last_step == step:
            return False
        if ended or self._is_last(step):
            return True
        return self._clock() >= self._started + one.spec.start_delay_secs and one.is_due(step)

    def _evaluate(self, due: Sequence[SpecEvaluator], step: int, path: str, *, final: bool) -> bool:
        """Returns whether to go on."""
        if not self._listener.before_eval():
            logger.info("The continuous_eval_listener asked to stop before an evaluation.")
            return False
        hold_checkpoint(self._model_dir, files.basename(path))
        for one in due:
            self._safely(functools.partial(one.evaluate, step, path, final=final), path)
        hold_checkpoint(self._model_dir, None)
        self._said_at = self._clock()
        if not self._listener.after_eval():
            logger.info("The continuous_eval_listener asked to stop after an evaluation.")
            return False
        return True

    def _safely(self, action: Callable[[], None], path: str) -> None:
        """Goes on with a newer checkpoint where the one at hand was removed meanwhile."""
        try:
            action()
        except (UserError, OSError):
            # What is being removed is partly there, but not named any more.
            named = map(files.basename, checkpoint_paths(self._model_dir))
            if files.exists(path) and files.basename(path) in named:
                raise
            logger.warning(
                "Checkpoint %s was removed before it was evaluated and exported; going on with the newest.", path
            )

    def _finish(self, ended: TrainingState | None) -> None:
        for one in self._specs:
            if one.outcome is not None:
                one.finish()
        if ended is not None:
            self._record.finish(ended.run)
        logger.info("Training is over, and its last checkpoint is evaluated.")

    def _say_what_is_missing(self, step: int | None) -> None:
        now = self._clock()
        if step is None and self._said_at == self._started:
            logger.info("There is no checkpoint in %s yet; waiting for the chief's first one.", self._model_dir)
            self._said_at = now + 1e-9
        elif now >= self._said_at + _SAY_EVERY_SECS:
            self._said_at = now
            logger.warning(
                "There has been no %s in %s for %d s; see whether the chief runs and has the same model_dir.",
                "checkpoint" if step is None else f"checkpoint after that of step {step}",
                self._model_dir,
                _SAY_EVERY_SECS,
            )
