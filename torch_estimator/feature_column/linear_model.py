"""The tensor half of a linear model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from torch_estimator.feature_column.layouts import LINEAR_IDS, LINEAR_NUMERIC, LinearLayout
from torch_estimator.feature_column.table import Piece, Table

VARIABLE_SCOPE = "linear/linear_model"


class LinearModel(nn.Module):
    """Sum of a weight per id, a weighted sum of numbers, and a bias; all start at zero.

    The weights of all categorical columns are one `Table` with pieces
    ``linear/linear_model/<column>/weights``. The weights of a numeric column are the parameter
    ``<column>.weights`` ``[width, units]``, the bias is ``bias_weights`` ``[units]``.

    Args:
        layout: Of `FeatureTransform.linear`.
        units: Number of outputs.
    """

    def __init__(self, layout: LinearLayout, units: int) -> None:
        super().__init__()
        self.layout = layout
        self.units = units
        self._table = _table(layout, units) if layout.categorical else None
        for placed in layout.numeric:
            # add_module would refuse columns named like a method, "type" for instance.
            self._modules[placed.name] = _NumericWeights(placed.stop - placed.start, units)
        self.bias_weights = nn.Parameter(torch.zeros(units))

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Logits, float32 ``[N, units]``."""
        logits: torch.Tensor = self.bias_weights
        if self._table is not None:
            logits = logits + self._table(features[LINEAR_IDS]).sum(1)
        if self.layout.numeric:
            weights = self._numeric_weights()
            precise = not self.training and self.units == 1
            product = precise_column if precise else torch.addmm
            logits = logits + product(torch.zeros_like(self.bias_weights), features[LINEAR_NUMERIC], weights)
        return logits

    def _numeric_weights(self) -> torch.Tensor:
        modules = (self._modules[placed.name] for placed in self.layout.numeric)
        weights: list[torch.Tensor] = [m.weights for m in modules if isinstance(m, _NumericWeights)]
        return torch.cat(weights) if len(weights) > 1 else weights[0]


class _NumericWeights(nn.Module):
    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(width, units))


def precise_column(bias: torch.Tensor, inputs: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """``bias + inputs @ kernel`` for one output column, float32 ``[N, 1]``, summed up in float64.

    In float32 each library, and torch itself at another batch size, sums such a column in another order: with inputs
    as large as unscaled dollars probabilities then differ by 4e-5, where an export must agree within 1e-5.
    """
    return torch.addmm(bias.double(), inputs.double(), kernel.double()).float()


def _table(layout: LinearLayout, units: int) -> Table:
    return Table(
        [Piece(name=f"{VARIABLE_SCOPE}/{placed.name}/weights", rows=placed.rows) for placed in layout.categorical],
        units,
    )
