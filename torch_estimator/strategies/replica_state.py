"""State of one replica after its last complete step, available even in the middle of the next step.

A replica notices that another one is lost during an exchange, that is, in the middle of a step. By then, the forward
pass may have changed buffers, such as the statistics of batch normalisation, and the input and the random generators
have advanced. But the replica must save, or send to a replacement, the state after the last complete step. For
parameters and optimizer state that is the current state, since they change only after the exchange. Buffers are copied
before each step. The input cursors are those of the last complete exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from torch_estimator.distributed.peer_recovery import Snapshot
from torch_estimator.strategy import CheckpointContent
from torch_estimator.train.optimizers import NUMBERS
from torch_estimator.train.training import Training


class ReplicaState:
    """State of one replica after its last complete step, for checkpoints and for replacements of lost replicas.

    `state` returns the parts of a checkpoint that are not tensors.
    """

    def __init__(self, training: Training, state: Callable[[], Mapping[str, Any]]) -> None:
        self._training = training
        self._state = state
        self._state_at_start = {} if training.checkpoint is None else training.checkpoint.state
        # Copies of the buffers by memory address. `snapshot` looks them up by address, because the variables there are
        # views of the module's tensors, that is, other objects on the same memory.
        self._buffers = self._copied_buffers()

    def begin_step(self) -> None:
        """Copy the buffers of the module. Called before each forward pass, since it may change them."""
        if self._buffers:
            self._buffers = self._copied_buffers()

    def snapshot(self, step: int, loss: float, cursors: Tensor | None) -> Snapshot:
        """Return the state after the last complete step, with that step's loss.

        `cursors` are the input cursors of all replicas, ``[replicas, bytes]``; None before the first step.
        """
        variables = {
            name: self._buffers.get(one.data_ptr(), one) for name, one in self._training.model.variables().items()
        }
        state = self._state_at_start if cursors is None else self._state()
        return Snapshot(step, loss, self._training.last_step, variables, self._training.slots(), state, cursors)

    def content(self, step: int, loss: float, cursors: Tensor | None) -> CheckpointContent:
        """Return the content of a checkpoint of the last complete step; the arguments are those of `snapshot`."""
        saved = self.snapshot(step, loss, cursors).as_checkpoint("")
        return CheckpointContent(variables=saved.variables, slots=saved.slots, state=saved.state)

    def take_over(self, snapshot: Snapshot) -> None:
        """Load the state of another replica (the leader), which has completed one step more than this replica."""
        training = self._training
        training.model.restore(snapshot.as_checkpoint(""), training.optimizers)
        training.restore_numbers(snapshot.state[NUMBERS])
        training.schedules.advance()

    def _copied_buffers(self) -> dict[int, Tensor]:
        buffers = self._training.model.module.buffers()
        return {buffer.data_ptr(): buffer.clone() for buffer in buffers if buffer.numel()}
