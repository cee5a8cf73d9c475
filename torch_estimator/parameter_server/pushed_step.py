"""The step of who trains on parameters that are elsewhere: gradients, ready to be sent, and no update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_estimator.distributed.gradient_message import Layout, MessageTooSmall, SendingStep


class PushedStep(SendingStep):
    """Computes gradients, adds up those of repeated rows, clips them, and puts them into a message."""

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Fills the message.

        Raises:
            MessageTooSmall: It is too small.
        """
        loss, dense, mentions = self.differentiate(features, labels, weights)
        with torch.no_grad():
            clipped = self.clipped(dense, mentions)
            dense = [None if one is None else one.values for one in clipped[: len(dense)]]
            mentions = [
                None if touched is None or one is None else (touched[0], one.values.reshape(touched[1].shape))
                for touched, one in zip(mentions, clipped[len(dense) :], strict=True)
            ]
            if not self.layout.holds(Layout.of(dense, mentions)):
                raise MessageTooSmall(loss.detach(), dense, mentions)
            self.packing.pack(self.message, loss, dense, mentions)
        return loss.detach(), []
