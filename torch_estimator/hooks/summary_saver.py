"""`SummarySaverHook`: summaries of the model and of functions, for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_estimator import summary
from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import check_seconds_or_steps
from torch_estimator.summary.recorder import Summary, recording

SummaryFn = Callable[[RunContext], Mapping[str, Any] | None]


class SummarySaverHook(Hook):
    """Hook that writes summaries at regular intervals of steps or seconds, starting with the first step of the run.

    Training adds such a hook itself, for the loss and the summaries that the model records with
    `torch_estimator.summary`, with the interval `RunConfig.save_summary_steps`. Give one to an evaluation to write the
    model's summaries there.

    Args:
        save_steps: Steps from one write to the next. Give either this or ``save_secs``.
        save_secs: Seconds from one write to the next.
        output_dir: Directory for the summaries; None for the run's own directory.
        summaries: Function, or list of functions, called with the `RunContext` after the step. A function returns a
            dict from tags to numbers, or to arrays and tensors, which become histograms. It may also call
            `torch_estimator.summary` itself, for images for instance, and return None.
        of_model: Whether to write the summaries that the model records; None to do so if ``summaries`` is not given.

    Raises:
        InvalidValueError: None or both of ``save_steps`` and ``save_secs`` are given.
        InvalidTypeError: ``summaries`` contains something other than functions.

    >>> def bias(context):
    ...     return {"bias": context.variables()["baseline/bias"].item()}
    >>> hook = te.SummarySaverHook(save_steps=2, summaries=bias)
    >>> estimator = te.BaselineRegressor("memory://SummarySaverHook")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=5, hooks=[hook])
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summaries: SummaryFn | Sequence[SummaryFn] | None = None,
        of_model: bool | None = None,
    ) -> None:
        check_seconds_or_steps("SummarySaverHook", save_steps=save_steps, save_secs=save_secs)
        self.every_n_steps = save_steps
        self.every_secs = save_secs
        self._output_dir = output_dir
        self._functions: tuple[SummaryFn, ...] = _functions(summaries)
        self._of_model = not self._functions if of_model is None else of_model
        self._model_has_none = False

    def begin(self, context: RunContext) -> None:
        self._model_has_none = False

    @property
    def wants_before_step(self) -> bool:
        return self._of_model and not self._model_has_none

    def before_step(self, context: RunContext) -> None:
        if self.wants_before_step:
            context.observe = True

    def after_step(self, context: RunContext) -> None:
        context.summary_writer(self._output_dir).summaries(self._summaries(context), context.global_step)

    def end(self, context: RunContext) -> None:
        context.summary_writer(self._output_dir).flush()

    def _summaries(self, context: RunContext) -> list[Summary]:
        """Return the summaries of the step just taken."""
        of_model = context.summaries if self._of_model else []
        if context.compiled and not of_model:
            # Observing a compiled step costs a forward pass, which is wasted on a model that records no summaries.
            self._model_has_none = True
        with recording() as of_functions:
            for function in self._functions:
                _record(function(context))
        taken = {one.tag for one in of_model}
        return [*of_model, *(one for one in of_functions if one.tag not in taken)]


def loss_summary(context: RunContext) -> dict[str, float]:
    """Return the loss of a training step as a summary."""
    return {"loss": context.loss}


def learning_rate_summary(context: RunContext) -> dict[str, float]:
    """Return the learning rates of the next step as summaries: one, or one for each parameter group."""
    rates = context.learning_rates
    if len(rates) == 1:
        return {"learning_rate": rates[0]}
    return {f"learning_rate_{index}": rate for index, rate in enumerate(rates)}


def _functions(summaries: SummaryFn | Sequence[SummaryFn] | None) -> tuple[SummaryFn, ...]:
    if summaries is None:
        return ()
    functions = tuple(summaries) if isinstance(summaries, Sequence) else (summaries,)
    for function in functions:
        if not callable(function):
            raise InvalidTypeError(
                f"summaries of a SummarySaverHook must be functions of the RunContext, but got {function!r}."
            )
    return functions


def _record(values: Mapping[str, Any] | None) -> None:
    if values is not None and not isinstance(values, Mapping):
        raise InvalidTypeError(f"A function of a SummarySaverHook must return a dict or None, but returned {values!r}.")
    for tag, value in (values or {}).items():
        if getattr(value, "ndim", 0):
            summary.histogram(tag, value)
        else:
            summary.scalar(tag, value)
