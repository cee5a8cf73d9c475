"""What a replica holds, as it is between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.variables import named_slots
from torch_estimator.distributed.group import Group
from torch_estimator.distributed.input_cursors import encoded
from torch_estimator.distributed.peer_recovery import Snapshot
from torch_estimator.train.model import Model
from torch_estimator.train.optimizer_numbers import NUMBERS, OptimizerNumbers
from torch_estimator.train.schedules import Schedules


class Place:
    """What a replica would hand to others, and takes from them.

    Args:
        model: In training.
        optimizers: Its.
        schedules: Theirs.
        numbers: Theirs.
        position: Where the input stands, without the state of torch's generator.
        state: What else a checkpoint keeps, by now.
        begun: The same, of the checkpoint that training began with.
        agree: Compares with the others what must be the same.
        save: Saves a snapshot as a checkpoint.
        evaluate: Shares the evaluation that the chief has called the others to.
        last_step: To end at, or None.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[torch.optim.Optimizer],
        schedules: Schedules,
        numbers: OptimizerNumbers,
        *,
        position: Callable[[], Mapping[str, Any]],
        state: Callable[[], Mapping[str, Any]],
        begun: Mapping[str, Any],
        agree: Callable[[Group], None],
        save: Callable[[Snapshot], None],
        evaluate: Callable[[Group], None],
        last_step: int | None,
    ) -> None:
        self.agree = agree
        self.save = save
        self.evaluate = evaluate
        self._model = model
        self._optimizers = optimizers
        self._schedules = schedules
        self._numbers = numbers
        self._where = position
        self._state = state
        self._begun = begun
        self._last_step = last_step
        self._buffers = self._cloned()

    def begin_step(self) -> None:
        """Keeps what a forward pass changes, and a step that is never taken must not have changed."""
        if self._buffers:
            self._buffers = self._cloned()

    def position(self) -> bytes:
        """Where this replica is."""
        return encoded(self._where())

    def snapshot(self, step: int, loss: float, positions: Tensor | None) -> Snapshot:
        """Returns all of it, as after the last step taken."""
        variables = {name: self._buffers.get(one.data_ptr(), one) for name, one in self._model.variables().items()}
        slots = named_slots(self._model.module, self._optimizers)
        state = self._begun if positions is None else self._state()
        return Snapshot(step, loss, self._last_step, variables, slots, state, positions)

    def take_over(self, snapshot: Snapshot) -> None:
        """Takes over the step after the last one taken, which the others have taken without this one."""
        self._model.restore(snapshot.as_checkpoint(""), self._optimizers)
        self._numbers.restore(snapshot.state[NUMBERS])
        self._schedules.advance()

    def _cloned(self) -> dict[int, Tensor]:
        return {buffer.data_ptr(): buffer.clone() for buffer in self._model.module.buffers() if buffer.numel()}
