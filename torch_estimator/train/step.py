"""The training step: a function of a batch that updates parameters and optimizer state, and returns the loss."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.table import Table
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.clipping import Clipping, Gradient, clippings_of
from torch_estimator.optim.companions import companions_of
from torch_estimator.optim.moving_averages import MovingAverage
from torch_estimator.train.accumulation import Accumulation
from torch_estimator.train.foreign_parameters import check_leaves
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.optimizers import Schedules
from torch_estimator.train.sparse_update import Gathered, SparseGrad, SparseUpdate

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("torch_estimator")

LossFn = Callable[[nn.Module, Any, Any, Tensor | None], Tensor]


class TrainStep:
    """Forward pass, loss, backward pass and update as one function, which can run in Python or be compiled as a whole.

    A table is updated sparsely: only the rows that the batch looked up. The step differentiates with respect to the
    gathered rows, adds up the gradients of repeated ids, and lets the optimizer update these rows. Optimizers of
    `torch.optim` cannot update single rows, so they get the dense gradient of the table.

    Args:
        module: The model.
        loss_fn: ``loss_fn(module, features, labels, weights)`` -> scalar.
        optimizers: The optimizers. Each trainable parameter of the module is in one of them, and only there.
        schedules: The schedules, which every step advances.
        averages: Whether the loss of several batches is the mean of their losses, for optimizers that accumulate.

    Attributes:
        dense: Parameters that get a dense gradient.
        tables: The sparse update of each table that gets one.
        owned_groups: Each parameter group, with the optimizer it belongs to; without those of accumulating optimizers,
            which never update in compiled code.
        other_optimizers: The optimizers of `torch.optim` that do not accumulate. Their ``step`` cannot be part of a
            compiled graph.
        accumulation: The sums of gradients of optimizers that update once for several batches; false if none does.
        rounds: Whether the step computes gradients, whose rounding an update may enlarge.
    """

    rounds = True

    def __init__(
        self,
        module: nn.Module,
        loss_fn: LossFn,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        schedules: Schedules | None = None,
        averages: bool = True,
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
            SparseUpdate(table, optimizer, group, shared=optimizer in shared)
            for table in module.modules()
            if isinstance(table, Table) and table.weight in by_parameter
            for optimizer, group in [by_parameter[table.weight]]
            if isinstance(optimizer, Optimizer)
        ]
        for table in (update.table for update in self.tables):
            if table.weight._backward_hooks or table.weight._post_accumulate_grad_hooks:
                raise InvalidValueError(
                    f"The table of {table.pieces[0].name!r} has a hook for its gradient, but training computes "
                    "gradients of looked-up rows only, for which it is not called; train the table with an optimizer "
                    "of torch.optim, or change the gradients in an optimizer of your own."
                )
        in_rows = {update.table.weight for update in self.tables}
        self.dense = [parameter for parameter in by_parameter if parameter not in in_rows]
        self._dense_groups = [by_parameter[parameter] for parameter in self.dense]
        self._torch_parameters = [one for one, (owner, _) in by_parameter.items() if not isinstance(owner, Optimizer)]
        owned = [(one, owner) for one, (owner, _) in zip(self.dense, self._dense_groups, strict=True)]
        self._moving_averages = [
            (averages, parameter, LiveGroup(group), by_parameter[parameter][0])
            for averages in companions_of(self.optimizers)
            if isinstance(averages, MovingAverage)
            for group in averages.param_groups
            for parameter in group["params"]
            if parameter in by_parameter
        ]
        self.accumulation = Accumulation(self.optimizers, owned, self.tables, averages=averages)
        updating = [one for one in self.optimizers if one not in self.accumulation]
        self.other_optimizers = [one for one in updating if not isinstance(one, Optimizer)]
        self.owned_groups = [(owner, group) for owner, group in self.owned_groups if owner not in self.accumulation]
        # Each clipping gets the indices of its gradients in the list of all gradients: of `dense`, then of `tables`.
        owners = [*(optimizer for optimizer, _ in self._dense_groups), *(update.optimizer for update in self.tables)]
        self._clippings = [
            (clipping, [place for place, owner in enumerate(owners) if owner in clipped])
            for clipping, clipped in clippings.items()
        ]

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Take one training step; return the batch's loss before the update, detached."""
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
        """Run the part of a step that can be compiled: all except optimizers of `torch.optim` and schedules.

        Return the loss, and the gradients for the optimizers of `torch.optim`. `finish` runs these optimizers, because
        their ``step`` cannot be part of a graph.
        """
        loss, dense, sparse = self.differentiate(features, labels, weights)
        with torch.no_grad():
            left = self.apply(dense, sparse)
        return loss.detach(), left

    def differentiate(
        self, features: Any, labels: Any, weights: Tensor | None
    ) -> tuple[Tensor, list[Tensor | None], list[SparseGrad | None]]:
        """Return the loss, the gradient of each parameter in `dense`, and the sparse gradient of each of `tables`.

        A gradient is None if the loss does not depend on the parameter.
        """
        gathered: Gathered = []
        with self.recording(gathered):
            loss = self.loss(features, labels, weights)
        self.check_loss(loss)
        leaves = [*self.dense, *(rows for _, _, rows in gathered)]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        of_dense, of_rows = gradients[: len(self.dense)], gradients[len(self.dense) :]
        hooked = map(_after_hooks, self.dense, of_dense)
        dense: list[Tensor | None] = [
            None if gradient is None else _readable(gradient, optimizer)
            for gradient, (optimizer, _) in zip(hooked, self._dense_groups, strict=True)
        ]
        return loss, dense, [update.sparse_gradient(gathered, of_rows) for update in self.tables]

    def check_loss(self, loss: Tensor) -> None:
        """Check that the loss depends on parameters of the module, and on no other parameters.

        The second check walks the whole autograd graph, which can take longer than a step. So it is made only for the
        first loss, and for the next one after `check_again`.
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
        """Make `check_loss` search the next loss for parameters outside of the module again."""
        self._is_checked = False

    def update(self, optimizer: Optimizer, parameter: Tensor, gradient: Tensor, group: LiveGroup) -> None:
        """Update one parameter of `dense` with an optimizer of this package."""
        state = optimizer.state[parameter]
        optimizer.update(parameter, gradient, state, group.values)
        optimizer.advance(state, group.values)

    def apply(self, dense: Sequence[Tensor | None], sparse: Sequence[SparseGrad | None]) -> list[Tensor | None]:
        """Use the gradients that `differentiate` has returned: add them to sums, or clip them and update parameters.

        Return the gradients for optimizers of `torch.optim`; see `compute`.
        """
        if self.accumulation:
            dense, sparse = self.accumulation.add(dense, sparse)
        return self._clip_and_update(dense, sparse)

    def _clip_and_update(
        self, dense: Sequence[Tensor | None], sparse: Sequence[SparseGrad | None]
    ) -> list[Tensor | None]:
        given = self.clipped(dense, sparse)
        for update, gradient in zip(self.tables, given[len(dense) :], strict=True):
            if gradient is not None:
                update.apply(gradient)
        return self._update_dense(given[: len(dense)])

    def clipped(self, dense: Sequence[Tensor | None], sparse: Sequence[SparseGrad | None]) -> list[Gradient | None]:
        """Return all gradients clipped: those of `dense`, then those of `tables`, with repeated rows added up."""
        given = [
            *(None if gradient is None else Gradient(gradient) for gradient in dense),
            *(
                None if touched is None else update.gradient(*touched)
                for update, touched in zip(self.tables, sparse, strict=True)
            ),
        ]
        for clipping, places in self._clippings:
            _clip(clipping, given, places)
        return given

    def loss(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Return the loss of a batch, without updating anything."""
        return self._loss_fn(self.module, features, labels, weights)

    def finish(self, loss: Tensor, left: Sequence[Tensor | None]) -> Tensor:
        """Complete a step after `compute`: run the optimizers of `torch.optim`, and do what `end` does."""
        self.update_left(left)
        self.end()
        return loss

    def end(self, steps: int = 1, *, advances: bool = True) -> None:
        """Complete one or several steps in Python: update with sums of gradients if that is due; advance the schedules.

        An update may be due only after the last of the steps. With `advances`, the schedules advance by one step.
        """
        if self.accumulation and (due := self.accumulation.count(steps)):
            with torch.no_grad():
                self._run_of_torch(self._clip_and_update(*self.accumulation.take(due)), due)
            self._average(due)
        if advances:
            self.schedules.advance()

    def warn_of_thawed(self) -> None:
        """Warn if a hook has unfrozen parameters, because they are not trained."""
        thawed = [name for name, parameter in self._frozen if parameter.requires_grad]
        if thawed:
            self._frozen = []
            logger.warning(
                "%s may be trained now (requires_grad), but is not: what is trained is settled when training begins.",
                ", ".join(thawed),
            )

    def update_left(self, left: Sequence[Tensor | None]) -> None:
        """Run the optimizers of `torch.optim` on the gradients that `compute` returned, and update the averages."""
        self._run_of_torch(left, self.other_optimizers)
        self.average()

    def average(self) -> None:
        """Update the moving averages of the weights that are updated in every step; called after their update."""
        self._average([one for one in self.optimizers if one not in self.accumulation])

    def _average(self, owners: Collection[torch.optim.Optimizer]) -> None:
        with torch.no_grad():
            for averages, parameter, group, owner in self._moving_averages:
                if owner in owners:
                    self.update(averages, parameter, parameter, group)

    def _run_of_torch(self, left: Sequence[Tensor | None], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.assign(left)
        for other in optimizers:
            if not isinstance(other, Optimizer):
                other.step()
        self.assign([None] * len(left))

    def assign(self, left: Sequence[Tensor | None]) -> None:
        """Set ``grad`` of the parameters in `other_optimizers` to the gradients that `compute` returned."""
        for parameter, gradient in zip(self._torch_parameters, left, strict=True):
            parameter.grad = None if gradient is None else _laid_out(gradient, parameter)

    @property
    def groups(self) -> list[LiveGroup]:
        """Settings of the parameter groups of all optimizers."""
        return [group for _, group in self.owned_groups]

    def use_tensors(self, *, of_torch: bool) -> list[Tensor]:
        """Replace optimizer settings that may change, such as the learning rate, by tensors; return the tensors.

        With `of_torch`, do the same for optimizers of `torch.optim`.
        """
        return [
            tensor
            for optimizer, group in self.owned_groups
            if of_torch or isinstance(optimizer, Optimizer)
            for tensor in group.use_tensors()
        ]

    def scratch(self) -> list[Tensor]:
        """Return the buffers that a step uses for temporary results, outside of the module and the optimizers."""
        return [tensor for update in self.tables for tensor in update.scratch]

    def results(self) -> list[tuple[str, Tensor]]:
        """Return the tensors outside of the module and the optimizers in which a step leaves results, with names."""
        return []

    @contextmanager
    def recording(self, gathered: Gathered) -> Iterator[None]:
        """While the body runs, let tables with sparse updates append each of their lookups to `gathered`."""
        for update in self.tables:
            update.table.recorder = gathered
            if update.table.block is not None:
                update.table.block.at = 0
        try:
            yield
        finally:
            for update in self.tables:
                update.table.recorder = None
                if update.table.block is not None:
                    update.table.block.at = 0

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


def _after_hooks(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return a gradient after the hooks of `register_post_accumulate_grad_hook`, which autograd.grad does not call."""
    if gradient is None or not parameter._post_accumulate_grad_hooks:
        return gradient
    parameter.grad = gradient.clone()
    with torch.no_grad():
        for hook in tuple(parameter._post_accumulate_grad_hooks.values()):
            hook(parameter)
    gradient, parameter.grad = parameter.grad, None
    return gradient


def _readable(gradient: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """Return a gradient in a form that its optimizer accepts. For optimizers of this package, make it dense."""
    return gradient.to_dense() if gradient.is_sparse and isinstance(optimizer, Optimizer) else gradient


def _laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with the strides of its parameter, as ``backward`` leaves it.

    Fused optimizers of `torch.optim` read both element by element as they lie in memory. The gradient of a sum, for
    instance, has one element in memory.
    """
    if gradient.layout != torch.strided or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def _clip(clipping: Clipping, gradients: list[Gradient | None], places: Sequence[int]) -> None:
    """Clip the gradients at some places of a list together, and replace them in the list."""
    present = [(place, one) for place in places for one in [gradients[place]] if one is not None]
    if present:
        for (place, gradient), values in zip(present, clipping([one for _, one in present]), strict=True):
            gradients[place] = gradient._replace(values=values)
