"""The state of one replica as it is between two steps, also while the next step is being computed.

A loss is noticed in an exchange, that is, in the middle of a step: the forward pass of the next batch may have changed
buffers already, such as the statistics of batch normalisation, and has moved the input and the random generators on.
What the replica hands over, or saves, must be the state before that. Parameters and optimizer state are only changed
after the exchange. Buffers are copied before each step. The input cursors are those of the last exchange.
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
    """State of this replica after the last step taken.

    Args:
        training: The training of this replica.
        state: Returns what a checkpoint holds besides tensors.
    """

    def __init__(self, training: Training, state: Callable[[], Mapping[str, Any]]) -> None:
        self._training = training
        self._state = state
        self._state_at_start = {} if training.checkpoint is None else training.checkpoint.state
        # By address, since the variables that `snapshot` returns are views of the module's tensors.
        self._buffers = self._copied_buffers()

    def begin_step(self) -> None:
        """Copy the buffers before the forward pass may change them."""
        if self._buffers:
            self._buffers = self._copied_buffers()

    def snapshot(self, step: int, loss: float, cursors: Tensor | None) -> Snapshot:
        """Return the state after the last step taken.

        Args:
            step: The number of that step.
            loss: The loss of that step.
            cursors: The input cursors of all replicas, ``[replicas, bytes]``; None before the first step.
        """
        variables = {
            name: self._buffers.get(one.data_ptr(), one) for name, one in self._training.model.variables().items()
        }
        state = self._state_at_start if cursors is None else self._state()
        return Snapshot(step, loss, self._training.last_step, variables, self._training.slots(), state, cursors)

    def content(self, step: int, loss: float, cursors: Tensor | None) -> CheckpointContent:
        """Return the checkpoint of the last step taken; see `snapshot`."""
        saved = self.snapshot(step, loss, cursors).as_checkpoint("")
        return CheckpointContent(variables=saved.variables, slots=saved.slots, state=saved.state)

    def take_over(self, snapshot: Snapshot) -> None:
        """Take over the state of the leader, which is one step ahead of this replica."""
        training = self._training
        training.model.restore(snapshot.as_checkpoint(""), training.optimizers)
        training.restore_numbers(snapshot.state[NUMBERS])
        training.schedules.advance()

    def _copied_buffers(self) -> dict[int, Tensor]:
        buffers = self._training.model.module.buffers()
        return {buffer.data_ptr(): buffer.clone() for buffer in buffers if buffer.numel()}
