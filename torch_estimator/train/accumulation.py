"""Gradient accumulation in the training step: sums of gradients, and when an optimizer is due.

The sums are state of the optimizers, and the number of batches in them is a setting of their groups. So checkpoints
hold both, and a training that ends between two updates goes on exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.table import Table
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.gradient_accumulation import COUNT, SUM, TOUCHED, accumulations_of
from torch_estimator.train.sparse_update import SparseGrad, SparseUpdate


def make_sums(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], task: Task) -> None:
    """Add the sums of gradients, as zeros, to the state of the optimizers that accumulate.

    Optimizers of `torch.optim` make their state at their first update, and they must not find any before it. Their sums
    are therefore added with the first batch, and removed with each update.

    Raises:
        InvalidValueError: An optimizer accumulates, but several processes train.
    """
    accumulating = accumulations_of(optimizers)
    if accumulating and (task.num_workers > 1 or task.num_ps):
        processes = f"{task.num_workers} processes" + (f" and {task.num_ps} parameter servers" if task.num_ps else "")
        raise InvalidValueError(
            f"te.optim.accumulate works in a training of one process, but {processes} train here; leave it out, or "
            "train in one process. Processes in step add up the gradients of all their batches already."
        )
    tables = {one.weight for one in module.modules() if isinstance(one, Table)}
    for optimizer in accumulating:
        if isinstance(optimizer, Optimizer):
            for parameter, state in optimizer.state.items():
                state[SUM] = torch.zeros_like(parameter.detach())
                if parameter in tables:
                    state[TOUCHED] = torch.zeros_like(state[SUM], dtype=torch.uint8)


class Accumulation:
    """Sums of the gradients of several batches, for the optimizers that update once for all of them.

    Args:
        optimizers: The optimizers of the step.
        dense: The parameters that get a dense gradient, each with its optimizer.
        tables: The tables that are updated by rows.
        averages: Whether the gradients of the batches are averaged, instead of summed.

    Attributes:
        waiting: Optimizers whose update is not due after the last batch.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        dense: Sequence[tuple[nn.Parameter, torch.optim.Optimizer]],
        tables: Sequence[SparseUpdate],
        *,
        averages: bool,
    ) -> None:
        self._batches = accumulations_of(optimizers)
        self._dense = dense
        self._tables = tables
        self._averages = averages
        self.waiting: set[torch.optim.Optimizer] = set()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(
        self, dense: Sequence[Tensor | None], sparse: Sequence[SparseGrad | None]
    ) -> tuple[list[Tensor | None], list[SparseGrad | None]]:
        """Add the gradients of a batch to the sums; return the gradients to update with now.

        Args:
            dense: The gradients of the parameters with a dense gradient; None for none.
            sparse: The gradients of the tables.

        Returns:
            Both lists, with None for an optimizer that waits for more batches, and the sum or mean for one that does
            not. Gradients of optimizers that do not accumulate are unchanged.
        """
        counts = {one: one.param_groups[0][COUNT] + 1 for one in self._batches}
        self.waiting = {one for one, batches in self._batches.items() if counts[one] < batches}
        # Take the scale from the count instead of from `k`, which may have changed since the sums were begun.
        scales = {one: 1.0 / count if self._averages else 1.0 for one, count in counts.items()}
        due_dense = [
            self._of_parameter(parameter, optimizer, gradient, scales[optimizer]) if optimizer in scales else gradient
            for (parameter, optimizer), gradient in zip(self._dense, dense, strict=True)
        ]
        due_sparse = [
            self._of_table(update, gradient, scales[update.optimizer]) if update.optimizer in scales else gradient
            for update, gradient in zip(self._tables, sparse, strict=True)
        ]
        for one, count in counts.items():
            for group in one.param_groups:
                group[COUNT] = count if one in self.waiting else 0
        return due_dense, due_sparse

    def _of_parameter(
        self, parameter: nn.Parameter, optimizer: torch.optim.Optimizer, gradient: Tensor | None, scale: float
    ) -> Tensor | None:
        state: dict[str, Any] = optimizer.state[parameter]
        if isinstance(optimizer, Optimizer):
            total: Tensor = state[SUM]
            if gradient is not None:
                total.add_(gradient)
            if optimizer in self.waiting:
                return None
            due = total * scale
            total.zero_()
            return due
        # A parameter that no batch has given a gradient has no sum, so that its optimizer leaves it alone.
        summed: Tensor | None = state.pop(SUM, None)
        if gradient is not None:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            summed = dense.clone() if summed is None else summed.add_(dense)
        if summed is None or optimizer not in self.waiting:
            return None if summed is None else summed.mul_(scale)
        state[SUM] = summed
        return None

    def _of_table(self, update: SparseUpdate, gradient: SparseGrad | None, scale: float) -> SparseGrad | None:
        state = update.optimizer.state[update.table.weight]
        total, touched = state[SUM], state[TOUCHED]
        if gradient is not None:
            update.add_rows(total, touched, gradient)
        if update.optimizer in self.waiting:
            return None
        rows = touched[:, 0].nonzero().flatten()
        due = total[rows] * scale
        total[rows] = 0
        touched[rows] = 0
        return (rows, due) if len(rows) else None
