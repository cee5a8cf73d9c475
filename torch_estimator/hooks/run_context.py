"""What a hook is told with: where a run stands, and what it may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_estimator.errors import InvalidValueError
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.summary.event_writers import EventWriters

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torch_estimator.summary.event_files import EventWriter
    from torch_estimator.summary.recorder import Summary


class RunContext:
    """Where a run stands, and the way to end it.

    Attributes:
        global_step: Steps taken since the job's very first start, this run's last one included.
        module: The module being trained, evaluated or predicted with.
        mode: Which of these the run does: ``"train"``, ``"eval"`` or ``"infer"``.
        model_dir: The job's directory; None where there is none.
        output_dir: Where summaries of the run go: ``model_dir``, or the directory of the evaluation.
        observe: A hook that wants the forward pass of the coming step to run in Python, where its own forward hooks
            and `torch_estimator.summary` see it, sets this in ``before_step``. A step that is compiled stays so; an
            extra forward pass before it, of which nothing remains, is what is seen.
        compiled: Whether observing costs such an extra pass.
        summaries: What the model said with `torch_estimator.summary` in the step just taken, where it was observed.
        fail_on_nan_loss: Whether a loss or a trained variable that is NaN or infinite raises; else it ends training.
        damaged: Whether there was such a loss or variable: the weights of now must not be saved.
        preempted: Whether SIGTERM or Ctrl-C has asked the process to end.
        interrupted: Whether it was Ctrl-C, after which training raises KeyboardInterrupt.
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
        self._optimizers = optimizers
        self._writers = writers or EventWriters()

    @property
    def loss(self) -> float:
        """Loss of the last step; reading it waits for the device."""
        if self.loss_tensor is None:
            raise RuntimeError("There is no loss before the first step.")
        return float(self.loss_tensor)

    @property
    def learning_rates(self) -> list[float]:
        """The learning rate that each parameter group of each optimizer has in the coming step; none outside training.

        In ``after_step`` a schedule has moved them on already.
        """
        return [rate for optimizer in self._optimizers for rate in _learning_rates(optimizer)]

    def variables(self) -> dict[str, torch.Tensor]:
        """The module's parameters and buffers by the names that checkpoints give them, as live views."""
        from torch_estimator.train.variables import named_variables

        return named_variables(self.module) if self.module is not None else {}

    def summary_writer(self, output_dir: str | None = None) -> EventWriter:
        """The writer of summaries into a directory, by default `output_dir`; the run closes it.

        Raises:
            InvalidValueError: Where no directory is known.
        """
        directory = output_dir or self.output_dir
        if not directory:
            raise InvalidValueError("This run has no directory for summaries of its own; give the hook an output_dir.")
        return self._writers.writer(directory)

    def request_stop(self) -> None:
        """Ends the run after this step."""
        self.stop_requested = True


def _learning_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    groups = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    own = getattr(optimizer, "learning_rate", None)
    return groups if groups or own is None else [float(own)]
