"""The base of all hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.run_context import RunContext

__all__ = ["Hook", "RunContext"]

# What tf.estimator's session hooks had: a hook that was ported half must not stay silent.
_SESSION_HOOK_METHODS = {"after_create_session": "begin", "before_run": "before_step", "after_run": "after_step"}


class Hook:
    """Something told while a run goes on; override what you need.

    When it is told of steps is set on the class, in ``__init__`` or in ``begin``. In between, a hook costs nothing.

    Attributes:
        first_step: The run's step, counted from 1, at which `before_step` and `after_step` are called first.
        every_n_steps: How many steps later they are called again; None for never, if ``every_secs`` is None, too.
        every_secs: Instead: how many seconds after the last time they are called again.
        clock: Gives these seconds.
        after_saving: Whether it is told of a step after the step's checkpoint is saved and, in ``train_and_evaluate``,
            evaluated. What it changes of its state is then part of the next checkpoint, or of the last.

    >>> class Weights(Hook):
    ...     every_n_steps = 50
    ...     def after_step(self, context: RunContext) -> None:
    ...         print(context.global_step, context.loss)
    """

    first_step: int = 1
    every_n_steps: int | None = 1
    every_secs: float | None = None
    clock: Callable[[], float] = time.monotonic
    after_saving: bool = False

    def __init_subclass__(cls) -> None:
        for name, ours in _SESSION_HOOK_METHODS.items():
            if name in vars(cls):
                raise InvalidTypeError(f"{cls.__name__}.{name} would never be called; a Hook has {ours} instead.")

    @property
    def wants_before_step(self) -> bool:
        """Whether `before_step` is to be called now; where it is not, several steps may be taken at once."""
        return type(self).before_step is not Hook.before_step

    def begin(self, context: RunContext) -> None:
        """Called once, before the first step."""

    def before_step(self, context: RunContext) -> None:
        """Called before a step."""

    def after_step(self, context: RunContext) -> None:
        """Called after a step; ``context.global_step`` counts it."""

    def end(self, context: RunContext) -> None:
        """Called once after the last step, when its checkpoint is saved; not where a step raised."""

    def state(self) -> dict[str, Any] | None:
        """What training's checkpoints keep of the hook, as JSON: asked after the `after_step` of a step that is saved.

        None, the default, keeps nothing.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Called before `begin` with what `state` returned, where training goes on from a checkpoint that keeps it.

        The states of several hooks of one class are told apart by their order.
        """
