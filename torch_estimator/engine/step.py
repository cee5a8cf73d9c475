"""The training step: one function from batch to loss that also updates parameters and optimizer state in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.table import Table
from torch_estimator.optim.base import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator

Group = dict[str, Any]
LossFn = Callable[[nn.Module, Any, Any, Tensor | None], Tensor]


class TrainStep:
    """Forward, loss, backward and update as one function, so that it runs eagerly or compiled as a whole.

    Tables are updated in the rows a batch touches and nowhere else: the step differentiates the gathered rows, adds up
    the gradients of repeated ids through a scratch buffer, and lets the optimizer see those rows only. An
    optimizer that cannot work on rows (any of `torch.optim`) gets the table's dense gradient instead.

    Args:
        module: The model.
        loss_fn: ``loss_fn(module, features, labels, weights)`` -> scalar.
        optimizers: Together hold every trainable parameter of the module, each once.
    """

    def __init__(self, module: nn.Module, loss_fn: LossFn, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.module = module
        self.optimizers = tuple(optimizers)
        self._loss_fn = loss_fn
        by_parameter = _group_of_each_parameter(module, self.optimizers)
        self._tables = [
            _RowUpdate(table, *by_parameter[table.weight])
            for table in module.modules()
            if isinstance(table, Table)
            and table.weight in by_parameter
            and isinstance(by_parameter[table.weight][0], Optimizer)
        ]
        in_rows = {update.table.weight for update in self._tables}
        self._dense = [parameter for parameter in by_parameter if parameter not in in_rows]
        self._dense_groups = [by_parameter[parameter] for parameter in self._dense]
        self._left = [p for p, (optimizer, _) in by_parameter.items() if not isinstance(optimizer, Optimizer)]
        self._other_optimizers = [o for o in self.optimizers if not isinstance(o, Optimizer)]

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Takes one step and returns the loss before it, detached."""
        return self.finish(*self.compute(features, labels, weights))

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """All of a step that can be compiled; returns the loss and the gradients left to optimizers of `torch.optim`.

        Those wrap their `step` in what cannot be part of a graph.
        """
        gathered: list[tuple[Table, Tensor, Tensor]] = []
        with self._recording(gathered):
            loss = self.loss(features, labels, weights)
        leaves = [*self._dense, *(rows for _, _, rows in gathered)]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch.no_grad():
            for update in self._tables:
                update.apply(gathered, gradients[len(self._dense) :])
            left = self._update_dense(gradients)
        return loss.detach(), left

    def loss(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """The loss of a batch, and nothing else of a step."""
        return self._loss_fn(self.module, features, labels, weights)

    def finish(self, loss: Tensor, left: Sequence[Tensor | None]) -> Tensor:
        """Lets the optimizers of `torch.optim` use what `compute` left to them; returns the loss."""
        for parameter, gradient in zip(self._left, left, strict=True):
            parameter.grad = gradient
        for other in self._other_optimizers:
            other.step()
            other.zero_grad(set_to_none=True)
        return loss

    @contextmanager
    def _recording(self, gathered: list[tuple[Table, Tensor, Tensor]]) -> Iterator[None]:
        for update in self._tables:
            update.table.recorder = gathered
        try:
            yield
        finally:
            for update in self._tables:
                update.table.recorder = None

    def _update_dense(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        left: list[Tensor | None] = []
        for parameter, (optimizer, group), gradient in zip(
            self._dense, self._dense_groups, gradients[: len(self._dense)], strict=True
        ):
            if not isinstance(optimizer, Optimizer):
                left.append(gradient)
            elif gradient is not None:
                state = optimizer.state[parameter]
                optimizer.update(parameter, gradient, state, group)
                optimizer.advance(state, group)
        return left


class _RowUpdate:
    """Updates the rows of one table that a batch touched."""

    def __init__(self, table: Table, optimizer: Optimizer, group: Group) -> None:
        self.table = table
        self._optimizer = optimizer
        self._group = group
        # Sums of gradients of the rows in the current batch; every other entry is stale and never read.
        self._sums = torch.zeros_like(table.weight.detach()).view(-1)

    def apply(self, gathered: list[tuple[Table, Tensor, Tensor]], gradients: Sequence[Tensor | None]) -> None:
        mine = [
            (ids, gradient)
            for (table, ids, _), gradient in zip(gathered, gradients, strict=True)
            if table is self.table and gradient is not None
        ]
        if not mine:
            return
        ids = torch.cat([ids.reshape(-1) for ids, _ in mine]) if len(mine) > 1 else mine[0][0].reshape(-1)
        gradient = torch.cat([g.reshape(-1) for _, g in mine]) if len(mine) > 1 else mine[0][1].reshape(-1)
        self._apply(self._elements(ids), gradient)

    def _elements(self, ids: Tensor) -> Tensor:
        """Positions of the rows' elements in the flattened table: a scatter in one dimension adds up in order."""
        dim = self.table.weight.shape[1]
        if dim == 1:
            return ids
        return (ids.unsqueeze(1) * dim + torch.arange(dim, device=ids.device)).reshape(-1)

    def _apply(self, elements: Tensor, gradient: Tensor) -> None:
        weight = self.table.weight.detach().view(-1)
        padding = weight.shape[0] - self.table.weight.shape[1]
        self._sums[elements] = 0.0
        self._sums.index_add_(0, elements, gradient)
        rows = weight[elements]
        whole = self._optimizer.state[self.table.weight]
        state = {
            key: value.view(-1)[elements] if value.shape == self.table.weight.shape else value
            for key, value in whole.items()
        }
        self._optimizer.update(rows, self._sums[elements], state, self._group)
        self._optimizer.advance(state, self._group)
        # Rows met several times are written several times, each time with the same value. What gathers in the
        # optimizer's state of the padding row is never used.
        weight[elements] = torch.where(elements >= padding, 0.0, rows)
        for key, value in whole.items():
            if value.shape == self.table.weight.shape:
                value.view(-1)[elements] = state[key]


def _group_of_each_parameter(
    module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> dict[nn.Parameter, tuple[Any, Group]]:
    held: dict[nn.Parameter, tuple[Any, Group]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in held:
                    raise InvalidValueError(
                        "A parameter is held by two optimizers; give each parameter to one of them."
                    )
                held[parameter] = (optimizer, group)
    names = {parameter: name for name, parameter in module.named_parameters()}
    for parameter in held:
        if parameter not in names:
            raise InvalidValueError("An optimizer holds a parameter that is not one of the module's.")
    return {parameter: held[parameter] for parameter in names if parameter in held and parameter.requires_grad}
