"""The evaluator's role: follow the checkpoints that others save, evaluate and export them, and end with the last."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import checkpoint_paths
from torch_estimator.checkpoint.index import checkpoint_step, hold_checkpoint
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.continuous_eval_listener import ContinuousEvalListener
from torch_estimator.executors.evaluation import Outcome, SpecEvaluator
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.executors.status_reader import TrainingWatch
from torch_estimator.executors.training_status import TrainingState, training_state_path
from torch_estimator.executors.wait_logger import Patience
from torch_estimator.specs import EvalSpec, TrainSpec

logger = logging.getLogger("torch_estimator")

_LOOK_EVERY_SECS = 1.0
_CHIEF_HINT = "see whether the chief runs and has the same model_dir"


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
        max_steps: Global step at which training is over, or None; what the chief says of it counts more.
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
        self._spec_max_steps = self._max_steps = max_steps
        self._followed: str | None = None
        self._listener = listener
        self._clock = clock
        self._sleep = sleep
        self._record = EvaluationRecord(self._model_dir)
        self._specs = [SpecEvaluator(estimator, spec, None, clock, self._record) for spec in specs]
        self._started = clock()
        self._watch = TrainingWatch(self._model_dir, max_steps, clock)
        self._patience = Patience("The evaluator", clock)
        self._step_before = self._latest()[0]
        self._has_sign = False

    def run(self) -> list[Outcome] | None:
        """Returns the last outcome of each spec, or None where one has none."""
        self._record.keep_place()
        for one in self._specs:
            one.take_note()
            done = self._record.of(one.spec.name)
            if done is not None:
                self._safely(one.catch_up, done.checkpoint_path)
        while True:
            self._record.keep_place()
            # Asked before the latest checkpoint is looked up, which then is the last one.
            training = self._training()
            if training is not None and self._is_left_to_chief(training):
                break
            ended = training if training is not None and training.ended else None
            step, latest = self._latest()
            # Nothing newer is about to come then.
            rests = training is not None and (training.ended or training.failed)
            due = [one for one in self._specs if step is not None and self._is_due(one, step, rests)]
            if due and latest is not None and step is not None:
                if not self._evaluate(due, step, latest, final=ended is not None or self._is_last(step)):
                    break
            elif ended is not None or (step is not None and self._is_last(step)):
                self._finish(ended)
                break
            else:
                self._wait(training, step)
        outcomes = [one.outcome for one in self._specs]
        return None if None in outcomes else outcomes  # type: ignore[return-value]  # checked just before

    def _latest(self) -> tuple[int | None, str | None]:
        latest = self._estimator.latest_checkpoint()
        return None if latest is None else checkpoint_step(files.basename(latest)), latest

    def _training(self) -> TrainingState | None:
        training = self._watch.look(self._record)
        if training is None or training.run == self._followed:
            return training
        self._followed, self._max_steps = training.run, training.max_steps
        self._record.follow(training.run, self._spec_max_steps)
        if training.max_steps != self._spec_max_steps:
            logger.warning(
                "TrainSpec has max_steps=%s here, but max_steps=%s where training goes on, as %s says; following that "
                "training to its end.",
                self._spec_max_steps,
                training.max_steps,
                training_state_path(self._model_dir),
            )
        return training

    def _is_left_to_chief(self, training: TrainingState) -> bool:
        """Where nobody but this process knows that there is an evaluator."""
        # What was begun by others before may be begun again by those who know.
        is_known = self._estimator.config._task.has_evaluator
        if not training.evaluates or (is_known and self._watch.is_of_before(training)):
            return False
        logger.warning(
            "Worker 0 evaluates and exports, since the cluster of its TF_CONFIG names neither a chief nor an "
            "evaluator; nothing is left to do here. Name one of them there to have an evaluator evaluate."
        )
        return True

    def _is_last(self, step: int) -> bool:
        earlier = self._watch.earlier
        is_in_doubt = earlier is not None and not earlier.ended
        return self._max_steps is not None and step >= self._max_steps and not is_in_doubt

    def _is_due(self, one: SpecEvaluator, step: int, rests: bool) -> bool:
        if one.last_step == step:
            return False
        if rests or self._is_last(step):
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
        self._patience.over()
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

    def _wait(self, training: TrainingState | None, step: int | None) -> None:
        earlier = self._watch.earlier
        news = step is not None and (earlier is None or step != self._step_before)
        self._has_sign = self._has_sign or training is not None or news
        # Checkpoints may be hours apart, but those who train say at once that they do.
        most_secs = None if self._has_sign else self._estimator.config.session_creation_timeout_secs
        if training is not None and training.failed:
            most_secs = self._estimator.config.session_creation_timeout_secs
            self._patience.wait("the chief to be started again after an error", "see its log", most_secs=most_secs)
        elif step is None:
            self._patience.wait(f"the first checkpoint in {self._model_dir}", _CHIEF_HINT, most_secs=most_secs)
        elif any(one.last_step != step for one in self._specs):
            self._patience.wait("start_delay_secs or throttle_secs of EvalSpec to pass", "there is a checkpoint")
        elif earlier is not None and not self._has_sign:
            path = training_state_path(self._model_dir)
            what = f"a training after the one that {path} tells of, of max_steps={earlier.max_steps}"
            self._patience.wait(f"{what} (here: {self._spec_max_steps})", _CHIEF_HINT, most_secs=most_secs)
        else:
            what = f"a checkpoint after that of step {step} in {self._model_dir}"
            self._patience.wait(what, _CHIEF_HINT)
        self._sleep(_LOOK_EVERY_SECS)
