"""Evaluates the model within its training, without checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.second_or_step_timer import check_seconds_or_steps

if TYPE_CHECKING:
    from torch_estimator.estimator import Estimator
    from torch_estimator.specs import InputFn
    from torch_estimator.train.model import Model


class InMemoryEvaluatorHook(Hook):
    """Evaluates the model being trained before the first step, every so many steps, and at the end.

    The weights of that moment are evaluated in a module of their own, so that neither random states nor buffers of the
    one in training change. Results are written as summaries to ``estimator.eval_dir(name)``.

    Args:
        estimator: The one that is trained.
        input_fn: Returns the evaluation data.
        steps: Batches to evaluate, or None for all.
        hooks: Told while an evaluation runs.
        name: Distinguishes several evaluations.
        every_n_iter: Steps of training from one evaluation to the next.

    Raises:
        InvalidTypeError: Where ``estimator`` is not an Estimator, or another argument is of the wrong type.
        InvalidValueError: Where a number is not positive.
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        from torch_estimator import specs
        from torch_estimator.estimator import Estimator

        if not isinstance(estimator, Estimator):
            raise InvalidTypeError(f"estimator must be an Estimator, but got {estimator!r}.")
        specs.check_input_fn(input_fn)
        specs.check_positive("steps", steps)
        check_seconds_or_steps("InMemoryEvaluatorHook", every_n_iter=every_n_iter)
        self.every_n_steps = self.first_step = every_n_iter
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = specs.checked_hooks(hooks)
        self._name = name
        self._model: Model | None = None
        self._evaluated_step: int | None = None

    def begin(self, context: RunContext) -> None:
        self._model = None
        self._evaluate(context)

    def after_step(self, context: RunContext) -> None:
        self._evaluate(context)

    def end(self, context: RunContext) -> None:
        if context.global_step != self._evaluated_step and not context.damaged:
            self._evaluate(context)
        self._model = None

    def _evaluate(self, context: RunContext) -> None:
        eval_dir = self._estimator.eval_dir(self._name)
        self._model = self._estimator._evaluate_live(
            self._model,
            context.variables(),
            self._input_fn,
            global_step=context.global_step,
            steps=self._steps,
            hooks=self._hooks,
            events=context.summary_writer(eval_dir),
        )
        self._evaluated_step = context.global_step
