"""Hooks: objects that a run (training, evaluation or prediction) calls before and after its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_estimator.checkpoint.variables import named_variables
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.summary.event_writer import EventWriter, EventWriters
from torch_estimator.summary.recorder import Summary

# Methods of tf.estimator's session hooks, and the methods that replace them. A class that still defines an old method
# is rejected, because that method would never be called.
_SESSION_HOOK_METHODS = {"after_create_session": "begin", "before_run": "before_step", "after_run": "after_step"}


class Hook:
    """Base class of hooks; override the methods you need.

    The attributes below decide at which steps `before_step` and `after_step` are called. Set them on the class, in
    ``__init__`` or in ``begin``. A hook costs nothing in the steps between.

    Attributes:
        first_step: First step at which the hook is called; a run's steps are counted from 1.
        every_n_steps: Number of steps from one call to the next. With None (and no ``every_secs``) there are no calls.
        every_secs: Number of seconds from one call to the next, instead of steps.
        clock: Function that returns the time for ``every_secs``, in seconds.
        after_saving: Whether `after_step` is called after the step's checkpoint is saved and, in
            ``train_and_evaluate``, evaluated. A change of the hook's state in it is part of the next checkpoint, or of
            the last one.

    >>> class EverySecondStep(te.Hook):
    ...     every_n_steps = 2
    ...
    ...     def after_step(self, context):
    ...         print(f"step {context.global_step}: loss {context.loss:.1f}")
    >>> estimator = te.BaselineRegressor("memory://Hook", optimizer=te.optim.SGD(lr=0.25))
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=5, hooks=[EverySecondStep()])
    step 1: loss 4.0
    step 3: loss 0.2
    step 5: loss 0.0
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
        """Whether `before_step` has to be called. If not, a compiled program may run several steps in one call."""
        return type(self).before_step is not Hook.before_step

    def begin(self, context: RunContext) -> None:
        """Prepare for the run; called once, before the first step.

        Args:
            context: State of the run.
        """

    def before_step(self, context: RunContext) -> None:
        """Prepare for a step; called right before the step.

        Args:
            context: State of the run.
        """

    def after_step(self, context: RunContext) -> None:
        """Handle a finished step; in training, ``context.global_step`` already counts the step.

        Args:
            context: State of the run.
        """

    def end(self, context: RunContext) -> None:
        """Finish the run; called once after the last step and its checkpoint, but not if a step raised an exception.

        Args:
            context: State of the run.
        """

    def state(self) -> dict[str, Any] | None:
        """Return this hook's state for checkpoints, a dict that JSON can represent; None (the default) for no state.

        The state is requested after the `after_step` of a step whose checkpoint is saved.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the hook from the state saved in the checkpoint that training resumes from; called before `begin`.

        If there are several hooks of one class, their states are assigned in the order of the hooks.

        Args:
            state: What `state` returned.
        """


class CheckpointSaverListener:
    """Base class of listeners that are called before and after each checkpoint; override the methods you need.

    Attributes:
        reads_checkpoint: Whether `after_save` reads the checkpoint. If True, training waits until it is written. Set it
            to False to let training continue while the checkpoint is being written.

    >>> class Announce(te.CheckpointSaverListener):
    ...     reads_checkpoint = False
    ...
    ...     def after_save(self, global_step):
    ...         print("saved step", global_step)
    >>> estimator = te.BaselineRegressor("memory://CheckpointSaverListener")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=5, saving_listeners=[Announce()])
    saved step 0
    saved step 5
    """

    reads_checkpoint: bool = True

    def begin(self) -> None:
        """Prepare for the run; called once, before the first step."""

    def before_save(self, global_step: int) -> None:
        """Prepare for the checkpoint of ``global_step``.

        Args:
            global_step: Global step of the checkpoint.
        """

    def after_save(self, global_step: int) -> bool | None:
        """Handle the saved checkpoint of ``global_step``; return True to stop training.

        Args:
            global_step: Global step of the checkpoint.
        """
        return None

    def end(self, global_step: int) -> None:
        """Finish the run; called once, after the last checkpoint.

        Args:
            global_step: Global step at which the run ended.
        """


class RunContext:
    """State of a run (training, evaluation or prediction). Hooks read it, and can set attributes such as `observe`.

    Attributes:
        global_step: Steps since the very first start of the job, including the last step of this run.
        module: Module of the run.
        mode: Kind of the run: ``"train"``, ``"eval"`` or ``"infer"``.
        model_dir: Directory of the job, or None.
        output_dir: Directory for summaries of the run: ``model_dir``, or the directory of the evaluation.
        observe: Set this to True in ``before_step`` to run the forward pass of the next step in Python, so that forward
            hooks and `torch_estimator.summary` are called. A compiled step remains compiled: an additional forward pass
            without effects runs before it.
        compiled: Whether observing a step costs such an additional forward pass.
        optimizers: Optimizers of the training, in the order in which they were made; empty outside training. A hook may
            change the settings of their groups, such as ``lr``. Checkpoints contain the change.
        summaries: Summaries that the model recorded in the last step, if it was observed.
        fail_on_nan_loss: Whether a loss or a trained variable of NaN or infinity raises an error; if False, it only
            ends training.
        damaged: Whether there was such a loss or variable, in which case the current weights must not be saved.
        preempted: Whether SIGTERM or Ctrl-C has asked the process to stop.
        interrupted: Whether the signal was Ctrl-C; training then ends with KeyboardInterrupt.

    >>> class Watch(te.Hook):
    ...     def after_step(self, context):
    ...         bias = context.variables()["baseline/bias"]
    ...         context.summary_writer().scalar("bias", bias.item(), context.global_step)
    ...         print(context.mode, context.global_step, context.learning_rates)
    ...         if context.loss < 1.0:
    ...             context.request_stop()
    >>> estimator = te.BaselineRegressor("memory://RunContext", optimizer=te.optim.SGD(lr=0.25))
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=100, hooks=[Watch()])
    train 1 [0.25]
    train 2 [0.25]
    train 3 [0.25]
    """

    def __init__(
        self,
        *,
        global_step: int,
        module: nn.Module | None = None,
        mode: ModeKeys = ModeKeys.TRAIN,
        model_dir: str | None = None,
        output_dir: str | None = None,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        writers: EventWriters | None = None,
        compiled: bool = False,
    ) -> None:
        self.global_step = global_step
        self.module = module
        self.mode = mode
        self.model_dir = model_dir
        self.output_dir = output_dir or model_dir
        self.observe = False
        self.compiled = compiled
        self.summaries: list[Summary] = []
        self.fail_on_nan_loss = True
        self.damaged = False
        self.stop_requested = False
        self.preempted = False
        self.interrupted = False
        self.loss_tensor: torch.Tensor | float | None = None
        self.optimizers = tuple(optimizers)
        self._writers = writers or EventWriters()

    @property
    def loss(self) -> float:
        """Loss of the last step. Reading this property waits until the GPU has computed the loss."""
        if self.loss_tensor is None:
            raise RuntimeError("There is no loss before the first step.")
        return float(self.loss_tensor)

    @property
    def learning_rates(self) -> list[float]:
        """Learning rate of each parameter group of each optimizer in the next step; empty outside training.

        In ``after_step``, schedules have already been advanced.
        """
        return [rate for optimizer in self.optimizers for rate in _learning_rates(optimizer)]

    def variables(self) -> dict[str, torch.Tensor]:
        """Return the module's parameters and buffers by their names in checkpoints, without copying them."""
        return named_variables(self.module) if self.module is not None else {}

    def summary_writer(self, output_dir: str | None = None) -> EventWriter:
        """Return the run's writer of summaries into a directory, by default `output_dir`. The run closes the writer.

        Args:
            output_dir: Path or URL of the directory; None for `output_dir` of the run.

        Raises:
            InvalidValueError: There is no directory.
        """
        directory = output_dir or self.output_dir
        if not directory:
            raise InvalidValueError("This run has no directory for summaries of its own; give the hook an output_dir.")
        return self._writers.writer(directory)

    def request_stop(self) -> None:
        """Ask the run to end after the current step."""
        self.stop_requested = True


def _learning_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    groups = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    own = getattr(optimizer, "learning_rate", None)
    return groups if groups or own is None else [float(own)]


def checked_hooks(hooks: Iterable[Hook] | None) -> tuple[Hook, ...]:
    """Return hooks as a tuple, after a check that each of them is a `Hook`."""
    checked = _as_tuple("hooks", hooks)
    for hook in checked:
        if not isinstance(hook, Hook):
            raise InvalidTypeError(f"hooks must be instances of torch_estimator.Hook, but got {hook!r}.")
    return checked


def checked_listeners(listeners: Iterable[CheckpointSaverListener] | None) -> tuple[CheckpointSaverListener, ...]:
    """Return listeners as a tuple, after a check that each of them is a `CheckpointSaverListener`."""
    checked = _as_tuple("saving_listeners", listeners)
    for listener in checked:
        if not isinstance(listener, CheckpointSaverListener):
            raise InvalidTypeError(
                f"saving_listeners must be instances of torch_estimator.CheckpointSaverListener, but got {listener!r}."
            )
    return checked


def _as_tuple(name: str, values: Iterable[Any] | None) -> tuple[Any, ...]:
    if values is not None and not isinstance(values, Iterable):
        raise InvalidTypeError(f"{name} must be a list, but got {values!r}.")
    return tuple(values or ())


def check_estimator(estimator: object) -> None:
    """Check that the argument ``estimator`` of a hook is an Estimator: that it has the method ``eval_dir``.

    The class itself cannot be imported here, because the module of Estimator imports hooks.
    """
    if isinstance(estimator, type) or not callable(getattr(estimator, "eval_dir", None)):
        raise InvalidTypeError(f"estimator must be an Estimator, but got {estimator!r}.")
