"""Ends training once its evaluations say so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.early_stopping_rules import Metric, NoImprovement, Threshold
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.second_or_step_timer import check_number
from torch_estimator.summary.evaluation_reader import EvaluationReader, Results

logger = logging.getLogger("torch_estimator")

_DEFAULT_SECS = 60


def make_early_stopping_hook(
    estimator: Any,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = _DEFAULT_SECS,
    run_every_steps: int | None = None,
) -> Hook:
    """A hook that ends training when ``should_stop_fn`` says so.

    It is asked before the first step and then every so many seconds, or at every global step that ``run_every_steps``
    divides, after the checkpoint of that step is saved and evaluated. What it decides is part of the checkpoint:
    training that is started again does not go on.

    Args:
        estimator: What is trained.
        should_stop_fn: Returns whether to stop.
        run_every_secs: Seconds from one time to the next.
        run_every_steps: Steps from one time to the next, instead of seconds; a job that is killed and resumed then
            stops where it would have stopped.

    Raises:
        InvalidTypeError: Where ``estimator`` is not an Estimator or ``should_stop_fn`` not a function.
        InvalidValueError: Where none, or both, of ``run_every_secs`` and ``run_every_steps`` are given.
    """
    _check_estimator(estimator)
    if not callable(should_stop_fn):
        raise InvalidTypeError(f"should_stop_fn must be a function, but got {should_stop_fn!r}.")
    return _EarlyStoppingHook(should_stop_fn, run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator: Any,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = _DEFAULT_SECS,
    run_every_steps: int | None = None,
) -> Hook:
    """Ends training once an evaluation's metric is higher than ``threshold``; see `make_early_stopping_hook`.

    Args:
        estimator: What is trained.
        metric_name: A metric of the evaluations, ``"accuracy"`` for instance.
        threshold: A metric that equals it does not end training.
        eval_dir: Where the evaluations write; None for ``estimator.eval_dir()``. For an `EvalSpec` with a name it is
            ``estimator.eval_dir(name)``.
        min_steps: Evaluations of earlier steps do not count.
        run_every_secs: See `make_early_stopping_hook`.
        run_every_steps: See `make_early_stopping_hook`.

    Raises:
        InvalidValueError: At a look, where there are evaluations, but none has the metric.
    """
    rule = Threshold(Metric(metric_name, higher_is_better=True, min_steps=min_steps), threshold)
    return _metric_hook(estimator, rule, eval_dir, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Any,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = _DEFAULT_SECS,
    run_every_steps: int | None = None,
) -> Hook:
    """Ends training once an evaluation's metric is lower than ``threshold``; see `stop_if_higher_hook`."""
    rule = Threshold(Metric(metric_name, higher_is_better=False, min_steps=min_steps), threshold)
    return _metric_hook(estimator, rule, eval_dir, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Any,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = _DEFAULT_SECS,
    run_every_steps: int | None = None,
) -> Hook:
    """Ends training once a metric has not risen above its highest value for ``max_steps_without_increase`` steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    rule = NoImprovement(Metric(metric_name, higher_is_better=True, min_steps=min_steps), max_steps_without_increase)
    return _metric_hook(estimator, rule, eval_dir, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Any,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = _DEFAULT_SECS,
    run_every_steps: int | None = None,
) -> Hook:
    """Ends training once a metric has not fallen below its lowest value for ``max_steps_without_decrease`` steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    rule = NoImprovement(Metric(metric_name, higher_is_better=False, min_steps=min_steps), max_steps_without_decrease)
    return _metric_hook(estimator, rule, eval_dir, run_every_secs, run_every_steps)


def read_eval_metrics(eval_dir: str) -> Results:
    """The metrics of the evaluations in ``eval_dir``, a path or URL: global step -> metric -> value, steps in order."""
    return EvaluationReader(eval_dir).results()


class _EarlyStoppingHook(Hook):
    """Asks a function whether to stop, and remembers the answer."""

    after_saving = True

    def __init__(
        self, should_stop: Callable[[], bool], run_every_secs: float | None, run_every_steps: int | None
    ) -> None:
        secs, steps = _seconds_or_steps(run_every_secs, run_every_steps)
        self.every_secs = secs
        self.every_n_steps = steps
        self._should_stop = should_stop
        self._stopped_at: int | None = None

    def begin(self, context: RunContext) -> None:
        if self._stopped_at is not None:
            logger.info(
                "Early stopping ended this training at global step %d; without its hook it goes on.", self._stopped_at
            )
            context.request_stop()
            return
        if self.every_n_steps is None:
            self._look(context)
            return
        # By global steps, so that a resumed run looks when an undisturbed one would have: also right here, if the kill
        # came between a checkpoint and the look at its evaluation.
        over = context.global_step % self.every_n_steps
        self.first_step = self.every_n_steps - over
        if not over:
            self._look(context)

    def after_step(self, context: RunContext) -> None:
        self._look(context)

    def end(self, context: RunContext) -> None:
        if isinstance(self._should_stop, _Judge):
            self._should_stop.warn_if_there_was_nothing()

    def state(self) -> dict[str, Any] | None:
        return None if self._stopped_at is None else {"stopped_at": self._stopped_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stopped_at = state.get("stopped_at")

    def _look(self, context: RunContext) -> None:
        if self._should_stop():
            logger.info("Early stopping ends training at global step %d.", context.global_step)
            self._stopped_at = context.global_step
            context.request_stop()


class _Judge:
    """Applies a rule to the evaluations in a directory."""

    def __init__(self, rule: Threshold | NoImprovement, eval_dir: str) -> None:
        self._rule = rule
        self._evaluations = EvaluationReader(eval_dir)
        self._seen = False

    def warn_if_there_was_nothing(self) -> None:
        """Says so where evaluations went elsewhere, as those of an `EvalSpec` with a name do."""
        eval_dir = self._evaluations.eval_dir
        if not self._seen and not files.exists(eval_dir):
            others = [name for name in files.listdir(files.parent(eval_dir)) if name.startswith("eval_")]
            if others:
                logger.warning(
                    "Early stopping found no evaluations in %s, but there are some in %s beside it; give its eval_dir, "
                    "for instance estimator.eval_dir(name).",
                    eval_dir,
                    ", ".join(others),
                )

    def __call__(self) -> bool:
        results = self._evaluations.results()
        self._seen = self._seen or bool(results)
        reason = self._rule.reason_to_stop(results, self._evaluations.eval_dir)
        if reason is not None:
            logger.info("Requesting early stopping: %s.", reason)
        return reason is not None


def _metric_hook(
    estimator: Any,
    rule: Threshold | NoImprovement,
    eval_dir: str | None,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> Hook:
    _check_estimator(estimator)
    judge = _Judge(rule, eval_dir or estimator.eval_dir())
    return make_early_stopping_hook(estimator, judge, run_every_secs, run_every_steps)


def _check_estimator(estimator: object) -> None:
    from torch_estimator.estimator import Estimator

    if not isinstance(estimator, Estimator):
        raise InvalidTypeError(f"estimator must be an Estimator, but got {estimator!r}.")


def _seconds_or_steps(secs: float | None, steps: int | None) -> tuple[float | None, int | None]:
    if steps is not None and secs == _DEFAULT_SECS:
        # The default of the one does not contradict the other, which was given.
        secs = None
    if (secs is None) == (steps is None):
        raise InvalidValueError(
            f"Give one of run_every_secs and run_every_steps, but got run_every_secs={secs}, run_every_steps={steps}."
        )
    if steps is not None:
        check_number("run_every_steps", steps, whole=True)
    if secs is not None:
        check_number("run_every_secs", secs, whole=False)
    if steps is not None and steps < 1:
        raise InvalidValueError(f"run_every_steps must be 1 or more, but got {steps}.")
    if secs is not None and not secs >= 0:
        raise InvalidValueError(f"run_every_secs must not be negative, but got {secs}.")
    return secs, None if steps is None else int(steps)
