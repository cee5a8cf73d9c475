"""The training step of a process that holds some rows of each parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.sharded_tensors import to_local
from torch_estimator.distributed.lost import PeerLost, reason
from torch_estimator.errors import InvalidValueError
from torch_estimator.optim.base import Optimizer
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.row_update import Mentions
from torch_estimator.train.step import TrainStep

_LOST = ("gloo", "NCCL", "Connection closed", "Connection reset")


class ShardedStep(TrainStep):
    """Takes its step together with the other processes, which must take theirs at the same time.

    Attributes:
        scale: Of the loss, before its gradients are averaged over the processes.
    """

    scale = 1.0

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Takes one step and returns the loss of this process' batch before it.

        Raises:
            PeerLost: Another process is gone.
            InvalidValueError: A parameter is used where it is not gathered.
        """
        try:
            return super().__call__(features, labels, weights)
        except RuntimeError as error:
            text = str(error)
            if isinstance(error, torch.distributed.DistError) or any(one in text for one in _LOST):
                raise PeerLost(
                    f"Another process of the cluster was lost in the middle of a step ({reason(error)}); "
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
        """As `TrainStep.differentiate`; the gradients are the averages over the processes, of the own rows."""
        loss = self.loss(features, labels, weights)
        self.check_loss(loss)
        (loss * self.scale).backward()  # type: ignore[no-untyped-call]
        dense = [parameter.grad for parameter in self.dense]
        for parameter in self.dense:
            parameter.grad = None
        return loss, dense, []

    def update(self, optimizer: Optimizer, parameter: Tensor, gradient: Tensor, group: LiveGroup) -> None:
        """As `TrainStep.update`: rules treat every element by itself, so the own rows are all they need."""
        state = {key: to_local(value) for key, value in optimizer.state[parameter].items()}
        optimizer.update(to_local(parameter), to_local(gradient), state, group.values)
        optimizer.advance(state, group.values)
