"""The base of all hooks, and what a hook is told with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidTypeError

if TYPE_CHECKING:
    import torch
    from torch import nn

# What tf.estimator's session hooks had: a hook that was ported half must not stay silent.
_SESSION_HOOK_METHODS = {"after_create_session": "begin", "before_run": "before_step", "after_run": "after_step"}


class RunContext:
    """Where a run stands, and the way to end it.

    Attributes:
        global_step: Steps taken since the job's very first start, this run's last one included.
        module: The module being trained or evaluated; None until the run has begun.
    """

    def __init__(self, *, global_step: int, module: nn.Module | None = None) -> None:
        self.global_step = global_step
        self.module = module
        self.stop_requested = False
        self.loss_tensor: torch.Tensor | None = None

    @property
    def loss(self) -> float:
        """Loss of the last step; reading it waits for the device."""
        if self.loss_tensor is None:
            raise RuntimeError("There is no loss before the first step.")
        return float(self.loss_tensor)

    def request_stop(self) -> None:
        """Ends the run after this step."""
        self.stop_requested = True


class Hook:
    """Something told while a run goes on; override what you need.

    Attributes:
        first_step: The run's step, counted from 1, at which `before_step` and `after_step` are called first.
        every_n_steps: How many steps later they are called again; in between the hook costs nothing.
    """

    first_step: int = 1
    every_n_steps: int = 1

    def __init_subclass__(cls) -> None:
        for name, ours in _SESSION_HOOK_METHODS.items():
            if name in vars(cls):
                raise InvalidTypeError(f"{cls.__name__}.{name} would never be called; a Hook has {ours} instead.")

    def begin(self, context: RunContext) -> None:
        """Called once, before the first step."""

    def before_step(self, context: RunContext) -> None:
        """Called before a step."""

    def after_step(self, context: RunContext) -> None:
        """Called after a step; ``context.global_step`` counts it."""

    def end(self, context: RunContext) -> None:
        """Called once after the last step; not where a step raised."""
