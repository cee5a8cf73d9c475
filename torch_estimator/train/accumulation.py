"""Gradient accumulation in the training step: sums of gradients, and when an optimizer is due.

A step always adds its gradients to the sums, and may do so in compiled code. Whether an update is due depends on a
count, so it is decided in Python after the step, and the update runs in Python.

The sums are state of companions of the optimizers, and the number of batches in them is a setting of the optimizers'
groups. So checkpoints hold both, and a training that ends between two updates goes on exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from torch_estimator.feature_column.table import tables_of
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.companions import companions_of
from torch_estimator.optim.gradient_accumulation import COUNT, GradientSums
from torch_estimator.train.sparse_update import SparseGrad, SparseUpdate

Gradients = tuple[list[Tensor | None], list[SparseGrad | None]]
"""Gradients of dense parameters and of tables; None for none."""


def mask_rows(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Give the sums of tables that are updated by rows a mask of the rows with a gradient."""
    tables = [one.weight for one in tables_of(module)]
    for optimizer in optimizers:
        for sums in companions_of([optimizer]):
            if isinstance(sums, GradientSums) and isinstance(optimizer, Optimizer):
                for weight in tables:
                    if weight in sums.state:
                        sums.state[weight]["touched"] = torch.zeros_like(weight.detach(), dtype=torch.uint8)


class Accumulation:
    """Sums of the gradients of several batches, for the optimizers that update once for all of them.

    An optimizer is ``in`` this object if it accumulates. `dense` holds the parameters that get a dense gradient, each
    with its optimizer; `tables` those that are updated by rows. With `averages`, the gradients of the batches are
    averaged, instead of summed.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        dense: Sequence[tuple[nn.Parameter, torch.optim.Optimizer]],
        tables: Sequence[SparseUpdate],
        *,
        averages: bool,
    ) -> None:
        self._sums = {
            optimizer: sums
            for optimizer in optimizers
            for sums in companions_of([optimizer])
            if isinstance(sums, GradientSums)
        }
        self._dense = dense
        self._tables = tables
        self._averages = averages

    def __bool__(self) -> bool:
        return bool(self._sums)

    def __contains__(self, optimizer: object) -> bool:
        return optimizer in self._sums

    def add(self, dense: Sequence[Tensor | None], sparse: Sequence[SparseGrad | None]) -> Gradients:
        """Add the gradients of a batch to the sums; return both lists, with None for the gradients that were added."""
        for (parameter, optimizer), gradient in zip(self._dense, dense, strict=True):
            if optimizer in self._sums and gradient is not None:
                sums = self._sums[optimizer]
                sums.update(parameter, gradient, sums.state[parameter], {})
        for update, rows in zip(self._tables, sparse, strict=True):
            if update.optimizer in self._sums and rows is not None:
                state = self._sums[update.optimizer].state[update.table.weight]
                update.add_rows(state["sum"], state["touched"], rows)
        return (
            [None if one in self else gradient for (_, one), gradient in zip(self._dense, dense, strict=True)],
            [None if one.optimizer in self else rows for one, rows in zip(self._tables, sparse, strict=True)],
        )

    def batches_left(self) -> int:
        """Return after how many batches the next optimizer is due."""
        left: int = min(sums.batches - one.param_groups[0][COUNT] for one, sums in self._sums.items())
        return max(1, left)

    def count(self, batches: int) -> list[torch.optim.Optimizer]:
        """Count batches whose gradients were added; return the optimizers that are due now."""
        for optimizer in self._sums:
            for group in optimizer.param_groups:
                group[COUNT] += batches
        return [one for one, sums in self._sums.items() if one.param_groups[0][COUNT] >= sums.batches]

    def take(self, due: Collection[torch.optim.Optimizer]) -> Gradients:
        """Return the sums or means of the gradients of the optimizers that are due, and begin new sums for these.

        A parameter has None if no batch has given it a gradient, so that its optimizer leaves it alone.
        """
        # Take the scale from the count instead of from `k`, which may have changed since the sums were begun.
        scales = {one: 1.0 / one.param_groups[0][COUNT] if self._averages else 1.0 for one in due}
        dense: list[Tensor | None] = []
        for parameter, optimizer in self._dense:
            dense.append(None)
            if optimizer in scales:
                state = self._sums[optimizer].state[parameter]
                if state["touched"]:
                    dense[-1] = state["sum"] * scales[optimizer]
                    state["sum"].zero_()
                    state["touched"].zero_()
        sparse: list[SparseGrad | None] = []
        for update in self._tables:
            sparse.append(None)
            if update.optimizer in scales:
                state = self._sums[update.optimizer].state[update.table.weight]
                rows = state["touched"][:, 0].nonzero().flatten()
                if len(rows):
                    sparse[-1] = rows, state["sum"][rows] * scales[update.optimizer]
                    state["sum"][rows] = 0
                    state["touched"][rows] = 0
        for optimizer in due:
            for group in optimizer.param_groups:
                group[COUNT] = 0
        return dense, sparse
