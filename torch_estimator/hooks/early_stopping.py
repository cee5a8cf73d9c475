"""Early stopping: hooks that end training when evaluation results meet a condition."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext, check_estimator
from torch_estimator.hooks.schedule import check_number
from torch_estimator.summary.scalar_reader import Results, ScalarReader

logger = logging.getLogger("torch_estimator")

_DEFAULT_SECS = 60


def make_early_stopping_hook(
    estimator: Any,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = _DEFAULT_SECS,
    run_every_steps: int | None = None,
) -> Hook:
    """Return a hook that ends training when ``should_stop_fn`` returns True.

    The function is called before the first step, and then either every ``run_every_secs`` seconds or at every global
    step that is a multiple of ``run_every_steps``, after the checkpoint of that step is saved and evaluated. The
    decision to stop is saved in the checkpoint, so training does not continue when it is started again with the hook.

    Args:
        estimator: The Estimator that is trained.
        should_stop_fn: Function without arguments that returns whether to stop.
        run_every_secs: Seconds between calls.
        run_every_steps: Steps between calls, instead of seconds. A job that is killed and resumed then stops at the
            same step as an uninterrupted one.

    Raises:
        InvalidTypeError: ``estimator`` is not an Estimator, or ``should_stop_fn`` is not callable.
        InvalidValueError: None or both of ``run_every_secs`` and ``run_every_steps`` are given.

    >>> import time
    >>> end = time.monotonic() + 3600
    >>> estimator = te.BaselineRegressor("memory://make_early_stopping_hook")
    >>> hook = te.make_early_stopping_hook(estimator, lambda: time.monotonic() > end, run_every_steps=100)
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=5, hooks=[hook])
    """
    check_estimator(estimator)
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
    """Return a hook that ends training once a metric of an evaluation is higher than a threshold.

    Args:
        estimator: The Estimator that is trained.
        metric_name: Name of a metric of the evaluations, for instance ``"accuracy"``.
        threshold: Threshold of the metric. A value equal to it does not end training.
        eval_dir: Directory of the evaluations' event files; None for ``estimator.eval_dir()``. For an `EvalSpec` with a
            name it is ``estimator.eval_dir(name)``.
        min_steps: Evaluations before this global step are ignored.
        run_every_secs: Seconds between checks; see `make_early_stopping_hook`.
        run_every_steps: Steps between checks; see `make_early_stopping_hook`.

    Raises:
        InvalidValueError: An argument is out of range. During training: there are evaluations, but none has the metric.

    >>> config = te.RunConfig("memory://stop_if_higher_hook", save_checkpoints_steps=10)
    >>> estimator = te.BaselineRegressor(config=config, optimizer=te.optim.SGD(lr=0.25))
    >>> hook = te.stop_if_higher_hook(estimator, "prediction/mean", 1.9, run_every_steps=10)
    >>> data = {"x": [1.0]}, [2.0]
    >>> metrics, _ = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=1000, hooks=[hook]),
    ...     te.EvalSpec(lambda: data, throttle_secs=0),
    ... )
    >>> metrics["global_step"] < 1000
    True
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
    """Return a hook that ends training once a metric of an evaluation is lower than a threshold.

    The arguments are those of `stop_if_higher_hook`.

    Args:
        estimator: The Estimator that is trained.
        metric_name: Name of a metric of the evaluations, for instance ``"loss"``.
        threshold: Threshold of the metric. A value equal to it does not end training.
        eval_dir: Directory of the evaluations' event files; None for ``estimator.eval_dir()``. For an `EvalSpec`
            with a name it is ``estimator.eval_dir(name)``.
        min_steps: Evaluations before this global step are ignored.
        run_every_secs: Seconds between checks; see `make_early_stopping_hook`.
        run_every_steps: Steps between checks; see `make_early_stopping_hook`.

    Raises:
        InvalidValueError: An argument is out of range. During training: there are evaluations, but none has the
            metric.

    >>> config = te.RunConfig("memory://stop_if_lower_hook", save_checkpoints_steps=10)
    >>> estimator = te.BaselineRegressor(config=config, optimizer=te.optim.SGD(lr=0.25))
    >>> hook = te.stop_if_lower_hook(estimator, "loss", 0.1, run_every_steps=10)
    >>> data = {"x": [1.0]}, [2.0]
    >>> metrics, _ = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=1000, hooks=[hook]),
    ...     te.EvalSpec(lambda: data, throttle_secs=0),
    ... )
    >>> metrics["global_step"] < 1000
    True
    """
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
    """Return a hook that ends training once a metric has not exceeded its highest value for a number of steps.

    The number of steps is ``max_steps_without_increase``; the other arguments are those of `stop_if_higher_hook`.

    Args:
        estimator: The Estimator that is trained.
        metric_name: Name of a metric of the evaluations, for instance ``"loss"``.
        max_steps_without_increase: Number of steps without a higher value after which training ends.
        eval_dir: Directory of the evaluations' event files; None for ``estimator.eval_dir()``. For an `EvalSpec`
            with a name it is ``estimator.eval_dir(name)``.
        min_steps: Evaluations before this global step are ignored.
        run_every_secs: Seconds between checks; see `make_early_stopping_hook`.
        run_every_steps: Steps between checks; see `make_early_stopping_hook`.

    Raises:
        InvalidValueError: An argument is out of range. During training: there are evaluations, but none has the
            metric.

    >>> config = te.RunConfig("memory://stop_if_no_increase_hook", save_checkpoints_steps=10)
    >>> estimator = te.BaselineRegressor(config=config, optimizer=te.optim.SGD(lr=0.25))
    >>> hook = te.stop_if_no_increase_hook(estimator, "prediction/mean", 30, run_every_steps=10)
    >>> data = {"x": [1.0]}, [2.0]
    >>> metrics, _ = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=1000, hooks=[hook]),
    ...     te.EvalSpec(lambda: data, throttle_secs=0),
    ... )
    >>> metrics["global_step"] < 1000
    True
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
    """Return a hook that ends training once a metric has not fallen below its lowest value for a number of steps.

    The number of steps is ``max_steps_without_decrease``; the other arguments are those of `stop_if_higher_hook`.

    Args:
        estimator: The Estimator that is trained.
        metric_name: Name of a metric of the evaluations, for instance ``"loss"``.
        max_steps_without_decrease: Number of steps without a lower value after which training ends.
        eval_dir: Directory of the evaluations' event files; None for ``estimator.eval_dir()``. For an `EvalSpec`
            with a name it is ``estimator.eval_dir(name)``.
        min_steps: Evaluations before this global step are ignored.
        run_every_secs: Seconds between checks; see `make_early_stopping_hook`.
        run_every_steps: Steps between checks; see `make_early_stopping_hook`.

    Raises:
        InvalidValueError: An argument is out of range. During training: there are evaluations, but none has the
            metric.

    >>> config = te.RunConfig("memory://stop_if_no_decrease_hook", save_checkpoints_steps=10)
    >>> estimator = te.BaselineRegressor(config=config, optimizer=te.optim.SGD(lr=0.25))
    >>> hook = te.stop_if_no_decrease_hook(estimator, "loss", 30, run_every_steps=10)
    >>> data = {"x": [1.0]}, [2.0]
    >>> metrics, _ = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=1000, hooks=[hook]),
    ...     te.EvalSpec(lambda: data, throttle_secs=0),
    ... )
    >>> metrics["global_step"] < 1000
    True
    """
    rule = NoImprovement(Metric(metric_name, higher_is_better=False, min_steps=min_steps), max_steps_without_decrease)
    return _metric_hook(estimator, rule, eval_dir, run_every_secs, run_every_steps)


def read_eval_metrics(eval_dir: str) -> Results:
    """Return the results of the evaluations in a directory: a dict from global step to a dict of metrics.

    Args:
        eval_dir: Path or URL of the directory with the event files.

    >>> estimator = te.BaselineRegressor("memory://read_eval_metrics")
    >>> data = {"x": [1.0]}, [2.0]
    >>> metrics = estimator.train(lambda: data, steps=3).evaluate(lambda: data)
    >>> te.read_eval_metrics(estimator.eval_dir())[3]["label/mean"]
    2.0
    """
    return ScalarReader(eval_dir).results()


class _EarlyStoppingHook(Hook):
    """Hook that calls a function to decide whether to stop, and saves the decision in checkpoints."""

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
            self._decide(context)
            return
        # Decide at global steps that are multiples of `every_n_steps`, so that a resumed run decides at the same steps
        # as an uninterrupted one. If training resumes at such a step, decide now, because the job may have been killed
        # between saving that step and deciding.
        over = context.global_step % self.every_n_steps
        self.first_step = self.every_n_steps - over
        if not over:
            self._decide(context)

    def after_step(self, context: RunContext) -> None:
        self._decide(context)

    def end(self, context: RunContext) -> None:
        if isinstance(self._should_stop, _RuleCheck):
            self._should_stop.warn_if_no_results()

    def state(self) -> dict[str, Any] | None:
        return None if self._stopped_at is None else {"stopped_at": self._stopped_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stopped_at = state.get("stopped_at")

    def _decide(self, context: RunContext) -> None:
        if self._should_stop():
            logger.info("Early stopping ends training at global step %d.", context.global_step)
            self._stopped_at = context.global_step
            context.request_stop()


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric that a rule for early stopping reads from the results of evaluations at `min_steps` and later."""

    name: str
    higher_is_better: bool
    min_steps: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidTypeError(f"metric_name must be a string, but got {self.name!r}.")
        if not isinstance(self.min_steps, numbers.Real) or not self.min_steps >= 0:
            raise InvalidValueError(f"min_steps must not be negative, but got {self.min_steps!r}.")

    def better(self, value: float, than: float) -> bool:
        """Return whether ``value`` is strictly better than ``than``."""
        return value > than if self.higher_is_better else value < than

    def values(self, results: Results, eval_dir: str) -> Iterator[tuple[int, float]]:
        """Yield the global step and the metric's value of each evaluation from `min_steps` on."""
        known = {name for metrics in results.values() for name in metrics}
        if known and self.name not in known:
            raise InvalidValueError(
                f"Early stopping looks for the metric {self.name!r}, but the evaluations in {eval_dir} have only "
                f"{', '.join(sorted(known))}; give one of these as metric_name."
            )
        for step, metrics in results.items():
            if step >= self.min_steps and self.name in metrics:
                yield step, metrics[self.name]


@dataclass(frozen=True, slots=True)
class Threshold:
    """Rule for early stopping: stop once an evaluation had a value better than ``threshold``."""

    metric: Metric
    threshold: float

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, numbers.Real) or math.isnan(self.threshold):
            raise InvalidValueError(f"threshold must be a number, but got {self.threshold!r}.")

    def reason_to_stop(self, results: Results, eval_dir: str) -> str | None:
        """Return why training must stop, as text for the log, or None if it may continue."""
        # Round the threshold to float32, because event files round metrics to float32. A metric of 0.8 becomes
        # 0.800000012 there. It must not count as higher than a threshold of 0.8.
        with np.errstate(over="ignore"):
            threshold = float(np.float32(self.threshold))
        for step, value in self.metric.values(results, eval_dir):
            if self.metric.better(value, threshold):
                relation = "higher" if self.metric.higher_is_better else "lower"
                return f"{self.metric.name} was {value:g} at step {step}, {relation} than {self.threshold:g}"
        return None


@dataclass(frozen=True, slots=True)
class NoImprovement:
    """Rule for early stopping: stop once the metric has not improved on its best value for ``max_steps`` steps.

    Any value is better than NaN. The rule also applies to earlier parts of the history: training stops even if the
    metric has improved again after such a period.
    """

    metric: Metric
    max_steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, numbers.Real) or not self.max_steps > 0:
            word = "increase" if self.metric.higher_is_better else "decrease"
            raise InvalidValueError(f"max_steps_without_{word} must be positive, but got {self.max_steps!r}.")

    def reason_to_stop(self, results: Results, eval_dir: str) -> str | None:
        """Return why training must stop, as text for the log, or None if it may continue."""
        best: tuple[int, float] | None = None
        for step, value in self.metric.values(results, eval_dir):
            if best is None or self.metric.better(value, best[1]) or (math.isnan(best[1]) and not math.isnan(value)):
                best = (step, value)
            if step - best[0] >= self.max_steps:
                word = "increase" if self.metric.higher_is_better else "decrease"
                return (
                    f"{self.metric.name} did not {word} within {self.max_steps} steps: it was {best[1]:g} at step "
                    f"{best[0]} and {value:g} at step {step}"
                )
        return None


class _RuleCheck:
    """Callable for `make_early_stopping_hook`: return whether a rule says to stop, from evaluations in a directory."""

    def __init__(self, rule: Threshold | NoImprovement, eval_dir: str) -> None:
        self._rule = rule
        self._evaluations = ScalarReader(eval_dir)
        self._has_results = False

    def warn_if_no_results(self) -> None:
        """Log a warning if the directory has no evaluations, but another directory ``eval_<name>`` has some."""
        eval_dir = self._evaluations.logdir
        if not self._has_results and not files.exists(eval_dir):
            others = [name for name in files.listdir(files.parent(eval_dir)) if name.startswith("eval_")]
            if others:
                logger.warning(
                    "Early stopping found no evaluations in %s, but there are some in %s of the same directory; "
                    "give its eval_dir, for instance estimator.eval_dir(name).",
                    eval_dir,
                    ", ".join(others),
                )

    def __call__(self) -> bool:
        results = self._evaluations.results()
        self._has_results = self._has_results or bool(results)
        reason = self._rule.reason_to_stop(results, self._evaluations.logdir)
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
    check_estimator(estimator)
    check = _RuleCheck(rule, eval_dir or estimator.eval_dir())
    return make_early_stopping_hook(estimator, check, run_every_secs, run_every_steps)


def _seconds_or_steps(secs: float | None, steps: int | None) -> tuple[float | None, int | None]:
    if steps is not None and secs == _DEFAULT_SECS:
        # If the user gave run_every_steps, the default of run_every_secs is ignored.
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
