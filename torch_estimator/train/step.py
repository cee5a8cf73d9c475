"""The training step: one function from batch to loss that also updates parameters and optimizer state in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.table import Table
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.clipping import Clipping, Gradient, clippings_of
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.loss_leaves import check_leaves
from torch_estimator.train.row_update import Gathered, Mentions, RowUpdate
from torch_estimator.train.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("torch_estimator")

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
        schedules: Moved on by every step.

    Attributes:
        dense: The parameters that are updated whole.
        tables: The updates of tables of which only the rows that a batch touches are.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_fn: LossFn,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        schedules: Schedules | None = None,
    ) -> None:
        self.module = module
        self.optimizers = tuple(optimizers)
        self._loss_fn = loss_fn
        self.schedules = schedules or Schedules(())
        self._is_checked = False
        self.owned_groups: list[tuple[torch.optim.Optimizer, LiveGroup]] = []
        by_parameter = self._group_of_each_parameter()
        self._frozen = [(name, one) for name, one in module.named_parameters() if not one.requires_grad]
        clippings = clippings_of(self.optimizers)
        shared = {one for clipping, clipped in clippings.items() if clipping.needs_share for one in clipped}
        self.tables = [
            RowUpdate(table, optimizer, group, shared=optimizer in shared)
            for table in module.modules()
            if isinstance(table, Table) and table.weight in by_parameter
            for optimizer, group in [by_parameter[table.weight]]
            if isinstance(optimizer, Optimizer)
        ]
        in_rows = {update.table.weight for update in self.tables}
        self.dense = [parameter for parameter in by_parameter if parameter not in in_rows]
        self._dense_groups = [by_parameter[parameter] for parameter in self.dense]
        self._left = [p for p, (optimizer, _) in by_parameter.items() if not isinstance(optimizer, Optimizer)]
        self.other_optimizers = [o for o in self.optimizers if not isinstance(o, Optimizer)]
        # Gradients are in this order: those of `dense`, then those of `tables`.
        owners = [*(optimizer for optimizer, _ in self._dense_groups), *(update.optimizer for update in self.tables)]
        self._clippings = [
            (clipping, [place for place, owner in enumerate(owners) if owner in clipped])
            for clipping, clipped in clippings.items()
        ]

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Takes one step and returns the loss before it, detached."""
        try:
            computed = self.compute(features, labels, weights)
        except RuntimeError as error:
            if any(not parameter.requires_grad for parameter in self.dense):
                raise InvalidValueError(
                    "A parameter was frozen (requires_grad_(False)) while it is trained; freeze it before training, or "
                    "give it a learning rate of 0."
                ) from error
            raise
        return self.finish(*computed)

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """All of a step that can be compiled; returns the loss and the gradients left to optimizers of `torch.optim`.

        Those wrap their `step` in what cannot be part of a graph.
        """
        loss, dense, mentions = self.differentiate(features, labels, weights)
        with torch.no_grad():
            left = self.apply(dense, mentions)
        return loss.detach(), left

    def differentiate(
        self, features: Any, labels: Any, weights: Tensor | None
    ) -> tuple[Tensor, list[Tensor | None], list[Mentions | None]]:
        """Returns the loss, the gradient of each parameter of `dense`, and those of the rows of each of `tables`.

        None is the gradient of what the loss does not depend on.
        """
        gathered: Gathered = []
        with self.recording(gathered):
            loss = self.loss(features, labels, weights)
        self.check_loss(loss)
        leaves = [*self.dense, *(rows for _, _, rows in gathered)]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        of_dense, of_rows = gradients[: len(self.dense)], gradients[len(self.dense) :]
        dense: list[Tensor | None] = [
            None if gradient is None else _readable(gradient, optimizer)
            for gradient, (optimizer, _) in zip(of_dense, self._dense_groups, strict=True)
        ]
        return loss, dense, [update.mentions(gathered, of_rows) for update in self.tables]

    def check_loss(self, loss: Tensor) -> None:
        """Raise where no parameter would get a gradient, or a parameter that is not the module's would.

        The second check walks the whole graph, which would take longer than some steps, so only the first loss is
        checked, and the first one after `check_again`.
        """
        if not loss.requires_grad:
            raise InvalidValueError(
                "The loss does not depend on any parameter that is trained; is it computed from the model's outputs, "
                "without detach() or numpy in between?"
            )
        if not torch.compiler.is_compiling() and not self._is_checked:
            check_leaves(loss, self.module)
            self._is_checked = True

    def check_again(self) -> None:
        """Have `check_loss` look at the whole graph of the next loss."""
        self._is_checked = False

    def update(self, optimizer: Optimizer, parameter: Tensor, gradient: Tensor, group: LiveGroup) -> None:
        """Updates a parameter that is updated whole."""
        state = optimizer.state[parameter]
        optimizer.update(parameter, gradient, state, group.values)
        optimizer.advance(state, group.values)

    def apply(self, dense: Sequence[Tensor | None], mentions: Sequence[Mentions | None]) -> list[Tensor | None]:
        """Clips gradients as `differentiate` returns them and updates what they are of; returns those left over."""
        given = self.clipped(dense, mentions)
        for update, gradient in zip(self.tables, given[len(dense) :], strict=True):
            if gradient is not None:
                update.apply(gradient)
        return self._update_dense(given[: len(dense)])

    def clipped(self, dense: Sequence[Tensor | None], mentions: Sequence[Mentions | None]) -> list[Gradient | None]:
        """Gradients as `differentiate` returns them, those of repeated rows added up, clipped; first the dense ones."""
        given = [
            *(None if gradient is None else Gradient(gradient) for gradient in dense),
            *(
                None if touched is None else update.gradient(*touched)
                for update, touched in zip(self.tables, mentions, strict=True)
            ),
        ]
        for clipping, places in self._clippings:
            _clip(clipping, given, places)
        return given

    def loss(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """The loss of a batch, and nothing else of a step."""
        return self._loss_fn(self.module, features, labels, weights)

    def finish(self, loss: Tensor, left: Sequence[Tensor | None]) -> Tensor:
        """Lets optimizers of `torch.optim` use what `compute` left to them, moves schedules on, returns the loss."""
        self.update_left(left)
        self.schedules.advance()
        return loss

    def warn_of_thawed(self) -> None:
        """Warn of parameters that a hook has unfrozen, which has no effect."""
        thawed = [name for name, parameter in self._frozen if parameter.requires_grad]
        if thawed:
            self._frozen = []
            logger.warning(
                "%s may be trained now (requires_grad), but is not: what is trained is settled when training begins.",
                ", ".join(thawed),
            )

    def update_left(self, left: Sequence[Tensor | None]) -> None:
        """Lets optimizers of `torch.optim` use what `compute` left to them."""
        self.assign(left)
        for other in self.other_optimizers:
            other.step()
        self.assign([None] * len(left))

    def assign(self, left: Sequence[Tensor | None]) -> None:
        """Makes what `compute` left the parameters' ``grad``."""
        for parameter, gradient in zip(self._left, left, strict=True):
            parameter.grad = gradient

    @property
    def groups(self) -> list[LiveGroup]:
        """The settings of all optimizers, group by group."""
        return [group for _, group in self.owned_groups]

    def use_tensors(self, *, of_torch: bool) -> list[Tensor]:
        """Makes tensors of the settings that may move; see `LiveGroup.use_tensors`.

        Args:
            of_torch: Whether to do so for optimizers of `torch.optim`, too.
        """
        return [
            tensor
            for optimizer, group in self.owned_groups
            if of_torch or isinstance(optimizer, Optimizer)
            for tensor in group.use_tensors()
        ]

    def scratch(self) -> list[Tensor]:
        """Tensors that a step writes beside those of the module and the optimizers."""
        return [tensor for update in self.tables for tensor in update.scratch]

    @contextmanager
    def recording(self, gathered: Gathered) -> Iterator[None]:
        """Has the tables note what they look up."""
        for update in self.tables:
            update.table.recorder = gathered
        try:
            yield
        finally:
            for update in self.tables:
                update.table.recorder = None

    def _update_dense(self, gradients: Sequence[Gradient | None]) -> list[Tensor | None]:
        left: list[Tensor | None] = []
        for parameter, (optimizer, group), gradient in zip(self.dense, self._dense_groups, gradients, strict=True):
            if not isinstance(optimizer, Optimizer):
                left.append(None if gradient is None else gradient.values)
            elif gradient is not None:
                self.update(optimizer, parameter, gradient.values, group)
        return left

    def _group_of_each_parameter(self) -> dict[nn.Parameter, tuple[Any, LiveGroup]]:
        held: dict[nn.Parameter, tuple[Any, LiveGroup]] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                live = LiveGroup(group, of_torch=not isinstance(optimizer, Optimizer))
                self.owned_groups.append((optimizer, live))
                for parameter in group["params"]:
                    if parameter in held:
                        raise InvalidValueError(
                            "A parameter is held by two optimizers; give each parameter to one of them."
                        )
                    held[parameter] = (optimizer, live)
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        for parameter in held:
            if parameter not in names:
                raise InvalidValueError("An optimizer holds a parameter that is not one of the module's.")
        return {parameter: held[parameter] for parameter in names if parameter in held and parameter.requires_grad}


def _readable(gradient: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """A sparse gradient, as that of ``nn.Embedding(sparse=True)``, is whole for rules that change every element."""
    return gradient.to_dense() if gradient.is_sparse and isinstance(optimizer, Optimizer) else gradient


def _clip(clipping: Clipping, gradients: list[Gradient | None], places: Sequence[int]) -> None:
    """Puts clipped gradients in these places, all of them taken together."""
    present = [(place, one) for place in places for one in [gradients[place]] if one is not None]
    if present:
        for (place, gradient), values in zip(present, clipping([one for _, one in present]), strict=True):
            gradients[place] = gradient._replace(values=values)
