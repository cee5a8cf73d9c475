"""The two halves of a step that replicas take together: before and after they tell each other their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_estimator.distributed.packing import CODE, Layout, Packing
from torch_estimator.train.row_update import Mentions
from torch_estimator.train.step import TrainStep

STEPS = 1.0
"""The code of a replica that has a batch."""


class NoRoom(Exception):
    """A message is too small for a batch; holds what should have gone into it.

    Args:
        loss: Of the batch.
        dense: As `TrainStep.differentiate` returns them.
        mentions: As `TrainStep.differentiate` returns them.
    """

    def __init__(self, loss: Tensor, dense: Sequence[Tensor | None], mentions: Sequence[Mentions | None]) -> None:
        super().__init__("a message of another size is needed")
        self.loss = loss
        self.dense = dense
        self.mentions = mentions

    @property
    def needed(self) -> Layout:
        """What there should be room for."""
        return Layout.of(self.dense, self.mentions)


class SendingStep(TrainStep):
    """Computes gradients and puts them into a message; updates nothing.

    Args:
        layout: Of the message.

    Attributes:
        layout: Of the message.
        message: As a `Packing` makes it.
    """

    def __init__(self, *args: Any, layout: Layout, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layout = layout
        self.packing = Packing(self, layout)
        self.message = self.packing.message()

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Fills the message.

        Raises:
            NoRoom: It is too small.
        """
        loss, dense, mentions = self.differentiate(features, labels, weights)
        with torch.no_grad():
            if not self.layout.holds(Layout.of(dense, mentions)):
                raise NoRoom(loss.detach(), dense, mentions)
            self.packing.pack(self.message, loss, dense, mentions)
        return loss.detach(), []

    def finish(self, loss: Tensor, left: Sequence[Tensor | None]) -> Tensor:
        """Returns the loss; the other half moves schedules on."""
        return loss

    def update_left(self, left: Sequence[Tensor | None]) -> None:
        """There is nothing to update."""

    def assign(self, left: Sequence[Tensor | None]) -> None:
        """There is nothing to update with."""

    def scratch(self) -> list[Tensor]:
        """The message, too, is written and never read."""
        return [*super().scratch(), self.message]


class ReceivingStep(TrainStep):
    """Takes the messages of all replicas, ``[replicas, size]``, for a batch; updates parameters and optimizer state.

    Args:
        layout: Of the messages.
        averages: Whether losses are averaged over the replicas, not added up.

    Attributes:
        packing: Takes messages apart.
    """

    def __init__(self, *args: Any, layout: Layout, averages: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.packing = Packing(self, layout)
        self._averages = averages

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Updates what can be updated in a graph; see `TrainStep.compute`."""
        with torch.no_grad():
            # A graph is only ever given what has all of them.
            missing = () if torch.compiler.is_compiling() else self.packing.missing(features)
            loss, dense, mentions = self.packing.unpack(features, self._scale(features), missing)
            return loss, self.apply(dense, mentions)

    def check_loss(self, loss: Tensor) -> None:
        """Check nothing: each replica has checked the loss of its batch."""

    def loss(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """The loss of all replicas."""
        return self.packing.unpack(features, self._scale(features))[0]

    def _scale(self, messages: Tensor) -> Tensor | float:
        if not self._averages:
            return 1.0
        return 1.0 / (messages[:, CODE] == STEPS).sum()
