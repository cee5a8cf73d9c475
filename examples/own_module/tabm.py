"""TabM: an ensemble of networks that share nearly all of their weights.

Gorishniy, Kotelnikov, Babenko: "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling" (ICLR 2025).
Nothing here knows of estimators: it is what a user brings along.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class EnsembleLinear(nn.Module):
    """One linear layer for all members, with a scale of its inputs, of its outputs and a bias for each of them."""

    def __init__(self, inputs: int, outputs: int, members: int, *, first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(outputs, inputs), a=5**0.5))
        # The first scale makes the members different; the others start as one common network.
        scale = torch.randint(0, 2, (members, inputs)) * 2.0 - 1.0 if first else torch.ones(members, inputs)
        self.input_scale = nn.Parameter(scale)
        self.output_scale = nn.Parameter(torch.ones(members, outputs))
        self.bias = nn.Parameter(torch.zeros(members, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """float32 ``[N, members, inputs]`` -> ``[N, members, outputs]``."""
        return (inputs * self.input_scale) @ self.weight.T * self.output_scale + self.bias


class TabM(nn.Module):
    """Numbers in, one logit per member out.

    Args:
        inputs: Numbers per row.
        hidden_units: Outputs of each hidden layer.
        members: Networks in the ensemble.
        dropout: Probability of dropping a hidden unit while training.
    """

    def __init__(self, inputs: int, hidden_units: Sequence[int], *, members: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.members = members
        self.dropout = nn.Dropout(dropout)
        widths = [inputs, *hidden_units]
        self.hidden = nn.ModuleList(
            EnsembleLinear(before, after, members, first=place == 0)
            for place, (before, after) in enumerate(itertools.pairwise(widths))
        )
        self.logits = nn.Parameter(torch.zeros(members, widths[-1]))
        self.bias = nn.Parameter(torch.zeros(members))

    def forward(self, inputs: Tensor) -> Tensor:
        """float32 ``[N, inputs]`` -> logits ``[N, members]``."""
        hidden = inputs.unsqueeze(1).expand(-1, self.members, -1)
        for layer in self.hidden:
            hidden = self.dropout(torch.relu(layer(hidden)))
        return (hidden * self.logits).sum(-1) + self.bias


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over members of each one's own cross entropy; labels are 0 or 1, ``[N]`` or ``[N, 1]``."""
    targets = labels.reshape(-1, 1).float().expand_as(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets)


def predictions(logits: Tensor) -> dict[str, Tensor]:
    """The ensemble's answer: the mean of its members' probabilities, ``[N, 1]``."""
    return {"probability": torch.sigmoid(logits).mean(1, keepdim=True)}
