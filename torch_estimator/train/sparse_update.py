"""Sparse updates: in each step, update only those rows of an embedding table that the batch looked up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_estimator.feature_column.table import Table
from torch_estimator.optim.base import Optimizer, filled_like
from torch_estimator.optim.clipping import Gradient
from torch_estimator.optim.companions import companions_of
from torch_estimator.optim.gradient_accumulation import GradientSums
from torch_estimator.train.live_group import LiveGroup

Gathered = list[tuple[Table, Tensor, Tensor]]
"""Lookups of one forward pass, recorded by tables: for each lookup the table, the ids, and the rows of these ids."""

SparseGrad = tuple[Tensor, Tensor]
"""Sparse gradient: ids of rows, int64 ``[lookups]``, and their gradients, float32 ``[lookups, dim]``."""


class SparseUpdate:
    """Sparse update of one embedding table by its optimizer.

    With `shared`, `gradient` also returns the share of each lookup: 1 / n for a row that the batch looks up n times.
    Clipping by norm needs it, to count each row once. `before_change` is called in Python steps with each tensor of the
    shape of the table, and with the positions of its elements that are about to be changed.
    """

    not_in_fingerprint = ("_places",)

    def __init__(self, table: Table, optimizer: Optimizer, group: LiveGroup, *, shared: bool) -> None:
        self.table = table
        self.optimizer = optimizer
        self.before_change: Callable[[Tensor, Tensor], None] | None = None
        self._group = group
        # For a table on parameter servers: the places in its block of the lookups of the last batch.
        self._places: Tensor | None = None
        # Sums of the gradients of the rows in the current batch. All other rows hold old numbers, which are never read.
        self._sums = filled_like(table.weight if table.block is None else table.block.values, 0.0)
        self._counts = filled_like(self._sums, 0.0) if shared else None

    @property
    def group(self) -> dict[str, Any]:
        """Settings of the table's parameter group."""
        return self._group.values

    @property
    def scratch(self) -> list[Tensor]:
        """Buffers for temporary results of an update; the next update does not use their content.

        The block of a table on parameter servers is among them, as it is written anew before each step.
        """
        block = self.table.block
        of_batch = [] if block is None else [block.values, block.positions]
        return [*of_batch, self._sums, *([] if self._counts is None else [self._counts])]

    def changed_by_rows(self) -> list[Tensor]:
        """Return the tensors of which a step changes only the rows that its batch looks up."""
        weight = self.table.weight
        sums = [one for one in companions_of([self.optimizer]) if isinstance(one, GradientSums)]
        states = [state for one in (self.optimizer, *sums) for state in one.state.get(weight, {}).values()]
        found = [weight, *(state for state in states if isinstance(state, Tensor) and state.shape == weight.shape)]
        return [one for one in found if not one.is_meta]

    def sparse_gradient(self, gathered: Gathered, gradients: Sequence[Tensor | None]) -> SparseGrad | None:
        """Return the sparse gradient of this table: the id and the gradient of each lookup; ids may repeat.

        `gathered` holds the lookups of all tables; a gradient is None if the loss does not depend on the rows of that
        lookup. Return None if the table gets no gradient.

        Of a table on parameter servers all lookups are returned, because all must be those whose rows were pulled. One
        without a gradient has ``~id`` in place of its id, and zeros.
        """
        dim, block = self.table.dim, self.table.block
        mine = [
            (ids.reshape(-1), gradient.reshape(-1, dim))
            if gradient is not None
            else (~ids.reshape(-1), torch.zeros_like(rows).reshape(-1, dim))
            for (table, ids, rows), gradient in zip(gathered, gradients, strict=True)
            if table is self.table and (gradient is not None or block is not None)
        ]
        if not mine:
            return None
        ids = torch.cat([ids for ids, _ in mine]) if len(mine) > 1 else mine[0][0]
        if block is not None:
            # A model that looks up more rows than were found out before is noticed by the ids of its gradients.
            places = block.positions[: len(ids)]
            missing = places.new_full((len(ids) - len(places),), len(block.positions))
            self._places = torch.cat([places, missing]) if len(missing) else places
        return ids, torch.cat([g for _, g in mine]) if len(mine) > 1 else mine[0][1]

    def gradient(self, ids: Tensor, gradient: Tensor) -> Gradient:
        """Add up the gradients, ``[lookups, dim]``, of equal ids; every occurrence of an id gets the sum."""
        dim = self.table.dim
        places = ids if self._places is None else self._places
        rows = _TracedRows(places) if torch.compiler.is_compiling() else _Elements(places, dim)
        return Gradient(rows.added_up(self._sums, gradient), self._share(rows), rows)

    def add_rows(self, total: Tensor, touched: Tensor, gradient: SparseGrad) -> None:
        """Add the gradient of a batch to a sum ``[rows + 1, dim]``, and set its rows of a mask of this shape to 1."""
        ids, values = gradient
        rows = _TracedRows(ids) if torch.compiler.is_compiling() else _Elements(ids, self.table.dim)
        self._announce([total, touched], rows)
        rows.add_to(total, touched, values)

    def apply(self, gradient: Gradient) -> None:
        """Update the rows that a gradient belongs to: copy the rows and their state, update both, write them back."""
        touched = gradient.rows
        assert isinstance(touched, _Elements | _TracedRows)
        weight = self.table.weight.detach()
        whole = self.optimizer.state[self.table.weight]
        self._announce([self.table.weight, *(one for one in whole.values() if one.shape == weight.shape)], touched)
        rows = touched.of(weight)
        state = {key: touched.of(value) if value.shape == weight.shape else value for key, value in whole.items()}
        self.optimizer.update(rows, gradient.values, state, self._group.values)
        self.optimizer.advance(state, self._group.values)
        # Repeated rows need no special case: such a row is written several times, with the same value each time.
        # The padding row must stay zero, so set it to zero here. Its optimizer state is never used.
        touched.write(weight, rows.masked_fill_(touched.are(self.table.rows), 0.0))
        for key, value in whole.items():
            if value.shape == weight.shape:
                touched.write(value, state[key])

    def _announce(self, tensors: Sequence[Tensor], rows: _Elements | _TracedRows) -> None:
        if self.before_change is not None and isinstance(rows, _Elements):
            for tensor in tensors:
                self.before_change(tensor, rows.at)

    def _share(self, rows: _Elements | _TracedRows) -> Tensor | None:
        if self._counts is None:
            return None
        counts = rows.added_up(self._counts, torch.ones_like(rows.of(self._counts)))
        return torch.where(rows.are(len(self._sums) - 1), 0.0, 1.0 / counts)


class _Elements:
    """Rows of a table for steps in Python, addressed by the positions of their elements in the flattened table.

    On one dimension, index_select, index_add_ and scatter_ take a tenth of the time of indexing with brackets. They
    also add up in a fixed order, so that results are reproducible.
    """

    def __init__(self, ids: Tensor, dim: int) -> None:
        self._dim = dim
        self.at = ids if dim == 1 else (ids.unsqueeze(1) * dim + torch.arange(dim, device=ids.device)).reshape(-1)

    def of(self, table: Tensor) -> Tensor:
        return table.view(-1).index_select(0, self.at)

    def write(self, table: Tensor, values: Tensor) -> None:
        table.view(-1).scatter_(0, self.at, values)

    def added_up(self, scratch: Tensor, values: Tensor) -> Tensor:
        """Return, for each element, the sum of the values of all occurrences of that element."""
        sums = scratch.view(-1)
        sums.index_fill_(0, self.at, 0.0)
        sums.index_add_(0, self.at, values.reshape(-1))
        return sums.index_select(0, self.at)

    def add_to(self, total: Tensor, touched: Tensor, values: Tensor) -> None:
        """Add the values of all occurrences of each element to a sum, and set these elements of a mask to 1."""
        total.view(-1).index_add_(0, self.at, values.reshape(-1))
        touched.view(-1).index_fill_(0, self.at, 1)

    def are(self, row: int) -> Tensor:
        """Return a mask of the elements that belong to ``row``, the last row of the table."""
        return self.at >= row * self._dim


class _TracedRows:
    """Rows of a table for compiled steps, addressed by row ids.

    A compiled graph runs index_put_ on the table in place. For the operations of `_Elements` it would copy the whole
    table.
    """

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids

    def of(self, table: Tensor) -> Tensor:
        return table[self._ids]

    def write(self, table: Tensor, values: Tensor) -> None:
        table.index_put_((self._ids,), values)

    def added_up(self, scratch: Tensor, values: Tensor) -> Tensor:
        scratch.index_put_((self._ids,), torch.zeros((), dtype=scratch.dtype, device=scratch.device))
        scratch.index_put_((self._ids,), values, accumulate=True)
        return scratch[self._ids]

    def add_to(self, total: Tensor, touched: Tensor, values: Tensor) -> None:
        total.index_put_((self._ids,), values, accumulate=True)
        touched.index_put_((self._ids,), torch.ones((), dtype=touched.dtype, device=touched.device))

    def are(self, row: int) -> Tensor:
        return (self._ids == row).unsqueeze(1)
