"""Writes summaries: what the model says, and what functions give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_estimator import summary
from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.second_or_step_timer import check_seconds_or_steps
from torch_estimator.summary.recorder import Summary, recording

SummaryFn = Callable[[RunContext], Mapping[str, Any] | None]


class SummarySaverHook(Hook):
    """Writes summaries every so many steps or seconds, the first time at the run's first step.

    Training has one of its own that writes the loss and what the model says with `torch_estimator.summary`, every
    `RunConfig.save_summary_steps`; give one to an evaluation to have the model's summaries there, too.

    Args:
        save_steps: Steps from one time to the next; give this or ``save_secs``.
        save_secs: Seconds from one time to the next.
        output_dir: Where they go; None for the run's own directory.
        summaries: One function or several of the `RunContext` after the step, each returning a dict from tag to a
            number, or to an array or tensor, which is shown as a histogram. They may call `torch_estimator.summary`
            themselves, for images for instance, and then return None.
        of_model: Whether to write the model's own; None for where no ``summaries`` are given.

    Raises:
        InvalidValueError: Where not exactly one of ``save_steps`` and ``save_secs`` is given.
        InvalidTypeError: Where ``summaries`` are not functions.
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
        self._model_is_silent = False

    def begin(self, context: RunContext) -> None:
        self._model_is_silent = False

    @property
    def wants_before_step(self) -> bool:
        return self._of_model and not self._model_is_silent

    def before_step(self, context: RunContext) -> None:
        if self.wants_before_step:
            context.observe = True

    def after_step(self, context: RunContext) -> None:
        said = context.summaries if self._of_model else []
        if context.compiled and not said:
            # Looking at a compiled step costs a forward pass, in vain where the model has nothing to say.
            self._model_is_silent = True
        with recording() as given:
            for function in self._functions:
                _record(function(context))
        taken = {one.tag for one in said}
        together: list[Summary] = [*said, *(one for one in given if one.tag not in taken)]
        context.summary_writer(self._output_dir).summaries(together, context.global_step)

    def end(self, context: RunContext) -> None:
        context.summary_writer(self._output_dir).flush()


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
