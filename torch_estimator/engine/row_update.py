"""The update of those rows of a table that a batch touched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_estimator.engine.live_group import LiveGroup
from torch_estimator.feature_column.table import Table
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.clipping import Gradient

Gathered = list[tuple[Table, Tensor, Tensor]]
"""What tables record in a forward pass: the table, the ids, and the rows gathered for them."""


class RowUpdate:
    """Updates one table.

    Args:
        table: The table.
        optimizer: Holds its weight.
        group: Of the optimizer, with the weight in it.
        shared: Whether `gradient` is to tell shares.
    """

    def __init__(self, table: Table, optimizer: Optimizer, group: LiveGroup, *, shared: bool) -> None:
        self.table = table
        self.optimizer = optimizer
        self._group = group
        # Sums of gradients of the rows in the current batch; every other entry is stale and never read.
        self._sums = torch.zeros_like(table.weight.detach()).view(-1)
        self._counts = torch.zeros_like(self._sums) if shared else None
        self._padding = self._sums.shape[0] - table.weight.shape[1]

    def gradient(self, gathered: Gathered, gradients: Sequence[Tensor | None]) -> Gradient | None:
        """Adds up the gradients of repeated rows; None where the batch touched none."""
        mine = [
            (ids.reshape(-1), gradient.reshape(-1))
            for (table, ids, _), gradient in zip(gathered, gradients, strict=True)
            if table is self.table and gradient is not None
        ]
        if not mine:
            return None
        ids = torch.cat([ids for ids, _ in mine]) if len(mine) > 1 else mine[0][0]
        gradient = torch.cat([g for _, g in mine]) if len(mine) > 1 else mine[0][1]
        elements = self._elements(ids)
        # index_select, index_fill_ and scatter_ on one dimension take a tenth of the time of indexing with brackets.
        self._sums.index_fill_(0, elements, 0.0)
        self._sums.index_add_(0, elements, gradient)
        return Gradient(self._sums.index_select(0, elements), self._share(elements), elements)

    def apply(self, gradient: Gradient) -> None:
        """Lets the optimizer see the rows, and writes them back."""
        elements = gradient.elements
        assert elements is not None
        weight = self.table.weight.detach().view(-1)
        rows = weight.index_select(0, elements)
        whole = self.optimizer.state[self.table.weight]
        state = {
            key: value.view(-1).index_select(0, elements) if value.shape == self.table.weight.shape else value
            for key, value in whole.items()
        }
        self.optimizer.update(rows, gradient.values, state, self._group.values)
        self.optimizer.advance(state, self._group.values)
        # Rows met several times are written several times, each time with the same value. What gathers in the
        # optimizer's state of the padding row is never used.
        weight.scatter_(0, elements, rows.masked_fill_(elements >= self._padding, 0.0))
        for key, value in whole.items():
            if value.shape == self.table.weight.shape:
                value.view(-1).scatter_(0, elements, state[key])

    def _elements(self, ids: Tensor) -> Tensor:
        """Positions of the rows' elements in the flattened table: a scatter in one dimension adds up in order."""
        dim = self.table.weight.shape[1]
        if dim == 1:
            return ids
        return (ids.unsqueeze(1) * dim + torch.arange(dim, device=ids.device)).reshape(-1)

    def _share(self, elements: Tensor) -> Tensor | None:
        if self._counts is None:
            return None
        self._counts.index_fill_(0, elements, 0.0)
        self._counts.index_add_(0, elements, torch.ones_like(elements, dtype=self._counts.dtype))
        return torch.where(elements >= self._padding, 0.0, 1.0 / self._counts.index_select(0, elements))
