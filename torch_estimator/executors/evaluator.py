"""Role of the evaluator: evaluate and export the checkpoints that the chief saves; end after the last checkpoint."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence

from torch_estimator import activity, files
from torch_estimator.checkpoint.checkpoint import checkpoint_paths
from torch_estimator.checkpoint.index import checkpoint_step, hold_checkpoint
from torch_estimator.cluster.process_start import job_start, process_start
from torch_estimator.errors import ClusterError, InvalidValueError, UserError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.evaluation import ContinuousEvalListener, Outcome, SpecEvaluator
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.hooks.tracking import send_rest
from torch_estimator.runs.training_status import TrainingStatus, read_status, status_path
from torch_estimator.specs import EvalSpec, TrainSpec

logger = logging.getLogger("torch_estimator")

_LOOK_EVERY_SECS = 1.0
_LOG_EVERY_SECS = 600.0
# A chief that is started together with the evaluator needs some seconds before it announces its training.
_GRACE_SECS = 10.0
_CHIEF_HINT = "see whether the chief runs and has the same model_dir"


def run_evaluator(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> list[Outcome] | None:
    """Evaluate until training is over; return each spec's last outcome, or None if a spec has no outcome."""
    task = estimator.config.task
    if task.id:
        raise InvalidValueError(
            f"A job has one evaluator, but {task.source} says that this process is {task}; start evaluator 0 only."
        )
    outcomes = Evaluator(estimator, train_spec.max_steps, eval_specs, continuous_eval_listener).run()
    send_rest(train_spec.hooks or (), estimator.model_dir)
    return outcomes


class Evaluator:
    """Evaluator process: waits for checkpoints and evaluates them, until training is over.

    A restarted evaluator does not repeat an evaluation that was complete.

    Training is over at global step `max_steps`, which the chief's ``max_steps`` replaces once it is known. `clock`
    returns monotonic seconds.
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
        self._reader = StatusReader(self._model_dir, max_steps, clock)
        self._waits = WaitLogger("The evaluator", clock)
        self._step_before = self._latest()[0]
        self._has_sign = False

    @activity.doing("evaluating")
    def run(self) -> list[Outcome] | None:
        """Evaluate until training is over; return each spec's last outcome, or None if a spec has no outcome."""
        try:
            self._evaluate_all()
        finally:
            self._waits.reset()
        activity.note_end("training is over")
        outcomes = [one.outcome for one in self._specs]
        return None if None in outcomes else outcomes  # type: ignore[return-value]  # checked just before

    def _evaluate_all(self) -> None:
        self._record.claim()
        for one in self._specs:
            one.complete_record()
            done = self._record.of(one.spec.name)
            if done is not None:
                self._unless_removed(one.catch_up, done.checkpoint_path)
        while True:
            self._record.claim()
            # Read the status before looking up the latest checkpoint: if the status says that training has ended, that
            # checkpoint is the last one.
            training = self._training()
            if training is not None and self._is_left_to_chief(training):
                break
            ended = training if training is not None and training.ended else None
            step, latest = self._latest()
            # If no newer checkpoint will come, there is no reason to wait for `throttle_secs`.
            is_idle = training is not None and (training.ended or training.failed)
            due = [one for one in self._specs if step is not None and self._is_due(one, step, is_idle)]
            if due and latest is not None and step is not None:
                if not self._evaluate(due, step, latest, final=ended is not None or self._is_last(step)):
                    break
            elif ended is not None or (step is not None and self._is_last(step)):
                self._finish(ended)
                break
            else:
                self._wait(training, step)

    def _latest(self) -> tuple[int | None, str | None]:
        latest = self._estimator.latest_checkpoint()
        return None if latest is None else checkpoint_step(files.basename(latest)), latest

    def _training(self) -> TrainingStatus | None:
        training = self._reader.read(self._record)
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
                status_path(self._model_dir),
            )
        return training

    def _is_left_to_chief(self, training: TrainingStatus) -> bool:
        """Return whether the chief evaluates, because its TF_CONFIG lists no evaluator; if so, log a warning."""
        # A training that began before this evaluator may have been started without an evaluator. Its chief may be
        # restarted soon with a TF_CONFIG that lists the evaluator, so wait for that.
        is_known = self._estimator.config.task.has_evaluator
        if not training.evaluates or (is_known and self._reader.had_begun(training)):
            return False
        logger.warning(
            "Worker 0 evaluates and exports, since the cluster of its TF_CONFIG names neither a chief nor an "
            "evaluator, or it has none; nothing is left to do here. Name one of them there to have an evaluator "
            "evaluate."
        )
        return True

    def _is_last(self, step: int) -> bool:
        earlier = self._reader.earlier
        is_in_doubt = earlier is not None and not earlier.ended
        return self._max_steps is not None and step >= self._max_steps and not is_in_doubt

    def _is_due(self, one: SpecEvaluator, step: int, is_idle: bool) -> bool:
        if one.last_step == step:
            return False
        if is_idle or self._is_last(step):
            return True
        return self._clock() >= self._started + one.spec.start_delay_secs and one.is_due(step)

    def _evaluate(self, due: Sequence[SpecEvaluator], step: int, path: str, *, final: bool) -> bool:
        """Evaluate one checkpoint for all specs in `due`; return False if the listener asks to stop."""
        self._waits.reset()
        if not self._listener.before_eval():
            logger.info("The continuous_eval_listener asked to stop before an evaluation.")
            return False
        hold_checkpoint(self._model_dir, files.basename(path))
        for one in due:
            self._unless_removed(functools.partial(one.evaluate, step, path, final=final), path)
        hold_checkpoint(self._model_dir, None)
        if not self._listener.after_eval():
            logger.info("The continuous_eval_listener asked to stop after an evaluation.")
            return False
        return True

    def _unless_removed(self, action: Callable[[], None], path: str) -> None:
        """Run an action on a checkpoint; if it fails because training has removed the checkpoint, log a warning."""
        try:
            action()
        except (UserError, OSError):
            # Some files of a checkpoint that is being removed may still exist, but the index no longer names it.
            named = map(files.basename, checkpoint_paths(self._model_dir))
            if files.exists(path) and files.basename(path) in named:
                raise
            logger.warning(
                "Checkpoint %s was removed before it was evaluated and exported; going on with the newest.", path
            )

    def _finish(self, ended: TrainingStatus | None) -> None:
        for one in self._specs:
            if one.outcome is not None:
                one.finish()
        if ended is not None:
            self._record.finish(ended.run)
        logger.info("Training is over, and its last checkpoint is evaluated.")

    def _wait(self, training: TrainingStatus | None, step: int | None) -> None:
        earlier = self._reader.earlier
        news = step is not None and (earlier is None or step != self._step_before)
        self._has_sign = self._has_sign or training is not None or news
        # Once there is a sign of the training, wait without a deadline, since checkpoints can be hours apart.
        most_secs = None if self._has_sign else self._estimator.config.session_creation_timeout_secs
        if training is not None and training.failed:
            most_secs = self._estimator.config.session_creation_timeout_secs
            self._waits.wait("the chief to be started again after an error", "see its log", most_secs=most_secs)
        elif step is None:
            self._waits.wait(f"the first checkpoint in {self._model_dir}", _CHIEF_HINT, most_secs=most_secs)
        elif any(one.last_step != step for one in self._specs):
            self._waits.wait("start_delay_secs or throttle_secs of EvalSpec to pass", "there is a checkpoint")
        elif earlier is not None and not self._has_sign:
            what = f"a training after the one recorded in {status_path(self._model_dir)}"
            targets = f"its max_steps: {earlier.max_steps}; this evaluator's: {self._spec_max_steps}"
            self._waits.wait(f"{what} ({targets})", _CHIEF_HINT, most_secs=most_secs)
        else:
            what = f"a checkpoint after that of step {step} in {self._model_dir}"
            self._waits.wait(what, _CHIEF_HINT)
        # Until these seconds have passed, it waits for nobody.
        is_early = step is not None and any(one.last_step != step for one in self._specs)
        chief = [] if is_early else [self._estimator.config.task.name_of_rank(0)]
        with activity.waiting(lambda: chief):
            self._sleep(_LOOK_EVERY_SECS)


class StatusReader:
    """Reader of the status file for an evaluator. It skips the status of an `earlier` training in the directory."""

    def __init__(self, model_dir: str, max_steps: int | None, clock: Callable[[], float]) -> None:
        self.earlier: TrainingStatus | None = None
        self._model_dir = model_dir
        self._max_steps = max_steps
        self._clock = clock
        self._grace_ends = clock() + _GRACE_SECS
        self._before = read_status(model_dir)

    def read(self, record: EvaluationRecord) -> TrainingStatus | None:
        """Return the status of the training that the evaluator follows; None if the chief has not written it yet."""
        status = read_status(self._model_dir)
        is_earlier = status is not None and self._is_earlier(status, record)
        self.earlier = status if is_earlier else None
        return None if is_earlier else status

    def had_begun(self, status: TrainingStatus) -> bool:
        """Return whether the chief had already begun the training `status` when this evaluator started."""
        return self._before is not None and status.run == self._before.run

    def _is_earlier(self, status: TrainingStatus, record: EvaluationRecord) -> bool:
        is_followed = record.state.followed == (status.run, self._max_steps)
        if record.state.finished == status.run:
            # The last checkpoint of this training has been evaluated, so wait for the next training. But if a launcher
            # has restarted this evaluator after that evaluation, follow this training, so that the evaluator ends.
            return not (is_followed and job_start() < record.state.finished_at < process_start())
        if is_followed:
            return False
        if self._before is None or not self.had_begun(status):
            return False
        if status.max_steps != self._max_steps:
            # This training has another max_steps than the evaluator, so wait for the chief to begin the evaluator's
            # training. But follow this training if it was running when the evaluator started, and has since ended.
            return self._before.ended or not status.ended
        # Follow a training that had already ended only if the chief announces no new training within some seconds.
        return self._before.ended and self._clock() < self._grace_ends


class WaitLogger:
    """Log of what a process waits for: a line when a wait begins, and a warning every ten minutes.

    `name` is what the log calls the process; `clock` returns monotonic seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._what: str | None = None
        self._waiting = contextlib.ExitStack()
        self._began = self._logged = clock()

    def wait(self, what: str, hint: str, *, most_secs: float | None = None) -> None:
        """Log at intervals that the process still waits. Call this at each poll.

        A different text `what` starts a new wait; `hint` says what the user should check if the wait goes on. Raise a
        ClusterError if it has taken `most_secs`.
        """
        now = self._clock()
        if self._what is None:
            self._waiting.enter_context(activity.OTHERS)
        if what != self._what:
            self._what, self._began, self._logged = what, now, now
            logger.info("Waiting for %s.", what)
        waited = now - self._began
        if most_secs is not None and waited >= most_secs:
            raise ClusterError(
                f"{self._name} waited {most_secs:g} s (session_creation_timeout_secs of RunConfig) for {what}; {hint}."
            )
        if now >= self._logged + _LOG_EVERY_SECS:
            self._logged = now
            logger.warning("%s has waited %.0f s for %s; %s.", self._name, waited, what, hint)

    def reset(self) -> None:
        """End the current wait: the next call of `wait` begins a new wait, even if the process waits for the same."""
        self._waiting.close()
        self._what = None
