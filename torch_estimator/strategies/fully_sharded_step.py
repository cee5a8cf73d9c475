"""The training step of a process that holds some rows of each parameter; see `fully_sharded.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.sharded_tensors import own
from torch_estimator.distributed.errors import PeerLost, short_reason
from torch_estimator.errors import InvalidValueError
from torch_estimator.optim.base import Optimizer
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.row_update import Mentions
from torch_estimator.train.step import TrainStep

# Words in the errors of torch for a lost connection, which have no type of their own.
_CONNECTION_ERRORS = ("gloo", "NCCL", "Connection closed", "Connection reset")


class ShardedStep(TrainStep):
    """Takes one step together with the other processes, which have to take theirs at the same time.

    Attributes:
        scale: Factor of the loss, before its gradients are averaged over the processes.
    """

    scale = 1.0

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Take one step; return the loss of this process's batch, computed before the update.

        Raises:
            PeerLost: Another process is gone.
            InvalidValueError: A parameter is used where it is not gathered.
        """
        try:
            return super().__call__(features, labels, weights)
        except RuntimeError as error:
            text = str(error)
            if isinstance(error, torch.distributed.DistError) or any(one in text for one in _CONNECTION_ERRORS):
                raise PeerLost(
                    f"Another process of the cluster was lost in the middle of a step ({short_reason(error)}); "
                    "see its log, and start all of them again: training goes on from the last checkpoint."
                ) from error
            if "mixed torch.Tensor and DTensor" in text:
                raise InvalidValueError(
                    "A parameter is used outside of the forward pass of its unit, where it is not gathered; give "
                    "FullyShardedStrategy units that use their parameters themselves."
                ) from error
            raise

    def differentiate(
        self, features: Any, labels: Any, weights: Tensor | None
    ) -> tuple[Tensor, list[Tensor | None], list[Mentions | None]]:
        """Compute gradients as `TrainStep.differentiate` does: of this process's rows, averaged over all processes."""
        loss = self.loss(features, labels, weights)
        self.check_loss(loss)
        (loss * self.scale).backward()  # type: ignore[no-untyped-call]
        dense = [parameter.grad for parameter in self.dense]
        for parameter in self.dense:
            parameter.grad = None
        return loss, dense, []

    def update(self, optimizer: Optimizer, parameter: Tensor, gradient: Tensor, group: LiveGroup) -> None:
        """Update this process's rows. Update rules treat every element by itself, so they need no other rows."""
        state = {key: own(value) for key, value in optimizer.state[parameter].items()}
        optimizer.update(own(parameter), own(gradient), state, group.values)
        optimizer.advance(state, group.values)
