"""State of a replica between two steps, which replicas hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from torch_estimator.distributed.peer_recovery import Snapshot
from torch_estimator.strategy import CheckpointContent
from torch_estimator.train.optimizers import NUMBERS
from torch_estimator.train.training import Training


class ReplicaState:
    """What this replica holds, as it is between two steps.

    Args:
        training: The training of this replica.
        state: Returns what a checkpoint holds beside tensors.
    """

    def __init__(self, training: Training, state: Callable[[], Mapping[str, Any]]) -> None:
        self._training = training
        self._state = state
        # Of the checkpoint that the training began with.
        self._begun = {} if training.checkpoint is None else training.checkpoint.state
        self._buffers = self._cloned()

    def begin_step(self) -> None:
        """Keep the buffers, which a forward pass may change and a step that is never taken must not have changed."""
        if self._buffers:
            self._buffers = self._cloned()

    def snapshot(self, step: int, loss: float, positions: Tensor | None) -> Snapshot:
        """Return all of it, as after the last step taken.

        Args:
            step: That step.
            loss: Its loss.
            positions: The positions of all replicas' inputs, ``[replicas, bytes]``; None before the first step.
        """
        variables = {
            name: self._buffers.get(one.data_ptr(), one) for name, one in self._training.model.variables().items()
        }
        state = self._begun if positions is None else self._state()
        return Snapshot(step, loss, self._training.last_step, variables, self._training.slots(), state, positions)

    def content(self, step: int, loss: float, positions: Tensor | None) -> CheckpointContent:
        """Return what a checkpoint of the last step taken holds; see `snapshot`."""
        saved = self.snapshot(step, loss, positions).as_checkpoint("")
        return CheckpointContent(variables=saved.variables, slots=saved.slots, state=saved.state)

    def take_over(self, snapshot: Snapshot) -> None:
        """Take over the state after one more step, which the others have taken without this replica."""
        training = self._training
        training.model.restore(snapshot.as_checkpoint(""), training.optimizers)
        training.restore_numbers(snapshot.state[NUMBERS])
        training.schedules.advance()

    def _cloned(self) -> dict[int, Tensor]:
        buffers = self._training.model.module.buffers()
        return {buffer.data_ptr(): buffer.clone() for buffer in buffers if buffer.numel()}
