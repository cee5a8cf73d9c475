"""`InMemoryEvaluatorHook`: evaluation of the model inside its training process, without checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch_estimator.checkpoint.variables import averaged_variables
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext, check_estimator, checked_hooks
from torch_estimator.hooks.schedule import check_number, check_seconds_or_steps


class InMemoryEvaluatorHook(Hook):
    """Hook that evaluates the current weights before the first step, every ``every_n_iter`` steps, and at the end.

    The evaluation copies the weights, or their moving averages (`te.optim.moving_average`), into a second module, so
    that it changes neither buffers nor random states of the training. Results are written as summaries into
    ``estimator.eval_dir(name)``.

    Args:
        estimator: The Estimator that is trained.
        input_fn: Function that returns the evaluation data.
        steps: Number of batches to evaluate, or None for all.
        hooks: Hooks of the evaluations.
        name: Name that distinguishes several evaluations, or None.
        every_n_iter: Training steps from one evaluation to the next.

    Raises:
        InvalidTypeError: ``estimator`` is not an Estimator, or another argument is of the wrong type.
        InvalidValueError: A number is not positive.

    >>> estimator = te.BaselineRegressor("memory://InMemoryEvaluatorHook")
    >>> hook = te.InMemoryEvaluatorHook(estimator, lambda: ({"x": [1.0]}, [2.0]), every_n_iter=5)
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=10, hooks=[hook])
    >>> list(te.read_eval_metrics(estimator.eval_dir()))
    [0, 5, 10]
    """

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        check_estimator(estimator)
        if not callable(input_fn):
            raise InvalidTypeError(f"input_fn must be callable, such as lambda: dataset, but got {input_fn!r}.")
        if steps is not None:
            check_number("steps", steps, whole=False)
            if not steps > 0:
                raise InvalidValueError(f"steps must be positive, but got {steps}.")
            if not float(steps).is_integer():
                raise InvalidValueError(f"steps must be a whole number, but got {steps}.")
        check_seconds_or_steps("InMemoryEvaluatorHook", every_n_iter=every_n_iter)
        self.every_n_steps = self.first_step = every_n_iter
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = checked_hooks(hooks)
        self._name = name
        self._model: Any = None
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
        assert context.module is not None
        self._model = self._estimator.job.evaluate_live(
            self._model,
            {**context.variables(), **averaged_variables(context.module, context.optimizers)},
            self._input_fn,
            global_step=context.global_step,
            steps=self._steps,
            hooks=self._hooks,
            events=context.summary_writer(eval_dir),
        )
        self._evaluated_step = context.global_step
