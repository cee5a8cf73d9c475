"""Feature columns in front of a module that takes one matrix of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torch_estimator.feature_column.input_layer import InputLayer
from torch_estimator.feature_column.layouts import InputLayout


class ColumnsThenModule(nn.Module):
    """Gives a module what an `InputLayer` makes of feature columns.

    Args:
        layout: Of the columns.
        module: Takes float32 ``[N, width]``.

    Attributes:
        input_layer: Trained with the module.
        module: The one given.
    """

    def __init__(self, layout: InputLayout, module: nn.Module) -> None:
        super().__init__()
        self.input_layer = InputLayer(layout)
        self.module = module

    def forward(self, features: Mapping[str, Tensor]) -> Any:
        """What the module makes of the columns."""
        return self.module(self.input_layer(features))
