"""`LoggingTensorHook`: log lines with the loss, the learning rate, variables, outputs of modules, or other values."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.observable import ModuleOutputs, What, as_arrays, by_tag, check_what, value_of
from torch_estimator.hooks.schedule import check_seconds_or_steps

logger = logging.getLogger("torch_estimator")


class LoggingTensorHook(Hook):
    """Hook that logs values at regular intervals of steps or seconds, or at the end of a run.

    It works in training, evaluation and prediction.

    Args:
        tensors: Maps tags to what to log; a list uses each item as its own tag. What to log is ``"loss"``,
            ``"global_step"``, ``"learning_rate"``, the name of a variable as in checkpoints, the dotted path of a
            module (for its output in the step; Keras layers and feature columns of a network have names as well), or
            a function that takes the `RunContext`.
        every_n_iter: Steps from one line to the next; the first line is logged at the first step of the run.
        every_n_secs: Seconds from one line to the next. Give at most one of ``every_n_iter`` and ``every_n_secs``.
        at_end: Whether to log at the end as well, or only there if no interval is given. The output of a module is then
            that of the last step that was logged.
        formatter: Function that makes the line from a dict of values by tag, with tensors as numpy arrays.
        clock: Function that returns the time in seconds.
        min_log_secs: Minimum time between two lines, in seconds. If the last line was skipped for this reason, it is
            logged at the end.

    Raises:
        InvalidValueError: No or two intervals are given, or the run has nothing of a given name.
        InvalidTypeError: ``tensors`` is neither a dict nor a list, or contains something else than names and functions.

    >>> def line(values):
    ...     return ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    >>> hook = te.LoggingTensorHook({"loss": "loss", "rate": "learning_rate"}, every_n_iter=100, formatter=line)
    >>> estimator = te.BaselineRegressor("memory://LoggingTensorHook")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=200, hooks=[hook])
    """

    def __init__(
        self,
        tensors: Mapping[str, What] | Sequence[What],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        min_log_secs: float = 0.0,
    ) -> None:
        check_seconds_or_steps(
            "LoggingTensorHook", at_least_one=not at_end, every_n_iter=every_n_iter, every_n_secs=every_n_secs
        )
        self.every_n_steps = every_n_iter
        self.every_secs = every_n_secs
        self.clock = clock
        self._tensors = by_tag(tensors)
        self._at_end = at_end
        self._formatter = formatter
        self._outputs = ModuleOutputs()
        self._rates: list[float] = []
        self._min_log_secs = min_log_secs
        self._logged_at: float | None = None
        self._skipped = False

    def begin(self, context: RunContext) -> None:
        self._logged_at, self._skipped = None, False
        paths = [path for what in self._tensors.values() if (path := check_what(what, context)) is not None]
        if paths and self.every_n_steps is None and self.every_secs is None:
            raise InvalidValueError(
                f"The output of the module {paths[0]!r} belongs to a step, and which one is the last is not known "
                "before the end; give LoggingTensorHook every_n_iter or every_n_secs, too."
            )
        self._outputs = ModuleOutputs(paths)

    @property
    def wants_before_step(self) -> bool:
        return bool(self._outputs) or "learning_rate" in self._tensors.values()

    def before_step(self, context: RunContext) -> None:
        if "learning_rate" in self._tensors.values():
            self._rates = context.learning_rates
        self._outputs.watch(context)

    def after_step(self, context: RunContext) -> None:
        self._outputs.ignore()
        self._skipped = bool(
            self._min_log_secs and self._logged_at is not None and self.clock() - self._logged_at < self._min_log_secs
        )
        if not self._skipped:
            self._log(context)

    def end(self, context: RunContext) -> None:
        self._outputs.ignore()
        if (self._at_end or self._skipped) and (
            context.loss_tensor is not None or "loss" not in self._tensors.values()
        ):
            self._log(context)

    def _log(self, context: RunContext) -> None:
        values = {
            tag: as_arrays(value_of(what, context, outputs=self._outputs, rates=self._rates or context.learning_rates))
            for tag, what in self._tensors.items()
        }
        now = self.clock()
        if self._formatter is not None:
            logger.info("%s", self._formatter(values))
        else:
            took = "" if self._logged_at is None else f" ({now - self._logged_at:.3f} sec)"
            logger.info("%s%s", ", ".join(f"{tag} = {_formatted(value)}" for tag, value in values.items()), took)
        self._logged_at = now


def _formatted(value: Any) -> str:
    number = value.item() if getattr(value, "size", 0) == 1 and getattr(value, "ndim", 1) == 0 else value
    return f"{number:g}" if isinstance(number, float) else str(number)
