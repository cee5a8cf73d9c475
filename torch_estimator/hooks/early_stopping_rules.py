"""When evaluations are reason enough to end training."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.summary.evaluation_reader import Results


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of evaluations.

    Args:
        name: As in the results.
        higher_is_better: Which of two values is the better one; any is better than NaN.
        min_steps: Evaluations of earlier steps are left out.
    """

    name: str
    higher_is_better: bool
    min_steps: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidTypeError(f"metric_name must be a string, but got {self.name!r}.")
        if not isinstance(self.min_steps, numbers.Real) or not self.min_steps >= 0:
            raise InvalidValueError(f"min_steps must not be negative, but got {self.min_steps!r}.")

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` is strictly better."""
        return value > than if self.higher_is_better else value < than

    def values(self, results: Results, eval_dir: str) -> Iterator[tuple[int, float]]:
        """Step and value of each evaluation that counts; ``eval_dir`` is for the message.

        Raises:
            InvalidValueError: No evaluation has the metric.
        """
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
    """Stops once a value is better than ``threshold``, at any step."""

    metric: Metric
    threshold: float

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, numbers.Real) or math.isnan(self.threshold):
            raise InvalidValueError(f"threshold must be a number, but got {self.threshold!r}.")

    def reason_to_stop(self, results: Results, eval_dir: str) -> str | None:
        """What happened, or None."""
        # Event files hold float32: a metric of 0.8 is 0.800000012 there and still not higher than 0.8.
        with np.errstate(over="ignore"):
            threshold = float(np.float32(self.threshold))
        for step, value in self.metric.values(results, eval_dir):
            if self.metric.better(value, threshold):
                relation = "higher" if self.metric.higher_is_better else "lower"
                return f"{self.metric.name} was {value:g} at step {step}, {relation} than {self.threshold:g}"
        return None


@dataclass(frozen=True, slots=True)
class NoImprovement:
    """Stops once the best value was so many steps ago, at any point in the history."""

    metric: Metric
    max_steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, numbers.Real) or not self.max_steps > 0:
            word = "increase" if self.metric.higher_is_better else "decrease"
            raise InvalidValueError(f"max_steps_without_{word} must be positive, but got {self.max_steps!r}.")

    def reason_to_stop(self, results: Results, eval_dir: str) -> str | None:
        """What happened, or None."""
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
