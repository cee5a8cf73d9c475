"""The tensor half of a linear model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.layouts import LINEAR_IDS, LINEAR_NUMERIC, LinearLayout
from torch_estimator.feature_column.pooling import pool, presence
from torch_estimator.feature_column.table import Piece, Table

VARIABLE_SCOPE = "linear/linear_model"


class LinearModel(nn.Module):
    """Sum of a weight per id, a weighted sum of numbers, and a bias; all start at zero.

    The weights of a column with several ids in a row are combined by `sparse_combiner`, those of different columns are
    added up. Where ids have weights of their own, the model's are multiplied by them.

    The weights of all categorical columns are one `Table` with pieces
    ``linear/linear_model/<column>/weights``. The weights of a numeric column are the parameter
    ``<column>.weights`` ``[width, units]``, the bias is ``bias_weights`` ``[units]``.

    Args:
        layout: Of `FeatureTransform.linear`.
        units: Number of outputs.
        sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``; see `pool`.
    """

    def __init__(self, layout: LinearLayout, units: int, sparse_combiner: Combiner = "sum") -> None:
        super().__init__()
        self.layout = layout
        self.units = units
        self.sparse_combiner = sparse_combiner
        self._table = _table(layout, units) if layout.variables else None
        for placed in layout.numeric:
            # add_module would refuse columns named like a method, "type" for instance.
            self._modules[placed.name] = _NumericWeights(placed.stop - placed.start, units)
        self.bias_weights = nn.Parameter(torch.zeros(units))

    def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Logits, float32 ``[N, units]``."""
        logits: torch.Tensor = self.bias_weights
        if self._table is not None:
            for part in self._categorical(self._table, features):
                logits = logits + part
        if self.layout.numeric:
            weights = self._numeric_weights()
            precise = not self.training and self.units == 1
            product = precise_column if precise else torch.addmm
            logits = logits + product(torch.zeros_like(self.bias_weights), features[LINEAR_NUMERIC], weights)
        return logits

    def _categorical(self, table: Table, features: Mapping[str, torch.Tensor]) -> Iterator[torch.Tensor]:
        """Logits of the columns with a fixed number of ids together, and of each other one, float32 ``[N, units]``."""
        layout = self.layout
        if layout.categorical:
            rows = table(features[LINEAR_IDS])
            several = [one for one in layout.categorical if one.stop - one.start > 1]
            if self.sparse_combiner == "sum" or not several:
                yield rows.sum(1)
            else:
                sizes = [one.stop - one.start for one in layout.categorical]
                weights = presence(features[LINEAR_IDS], layout.rows)
                for mine, counted in zip(torch.split(rows, sizes, 1), torch.split(weights, sizes, 1), strict=True):
                    yield pool(mine, counted, self.sparse_combiner) if mine.shape[1] > 1 else mine[:, 0]
        for bag in layout.bags:
            ids = features[bag.feature]
            weights = presence(ids, bag.padding) if bag.weights is None else features[bag.weights]
            yield pool(table(ids), weights, self.sparse_combiner)

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
        [Piece(name=f"{VARIABLE_SCOPE}/{one.name}/weights", rows=one.rows) for one in layout.variables],
        units,
    )
