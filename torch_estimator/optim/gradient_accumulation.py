"""Gradient accumulation, as a setting of optimizers: add up the gradients of several batches, then update once.

The training step adds up the gradients, and updates when an optimizer is due; see `torch_estimator.train.accumulation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.base import Group, ParamsT, State
from torch_estimator.optim.companions import SUM, TOUCHED, Companion, accompany, companions_of
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, Trainer, check_factory, optimizers_of

COUNT = "accumulated_batches"
"""Setting of an optimizer's parameter groups: how many batches are in the sums."""


class GradientSums(Companion):
    """Sums of the gradients of an optimizer's parameters, for updates of `batches` batches each."""

    slot_names: ClassVar[dict[str, str]] = {"sum": SUM, "touched": TOUCHED}

    def __init__(self, params: ParamsT, batches: int) -> None:
        super().__init__(params, {})
        self.batches = batches

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return a sum of zeros, and a 0-dimensional zero that says that there is no gradient in it."""
        weights = param.detach()
        return {"sum": torch.zeros_like(weights), "touched": torch.zeros((), dtype=torch.uint8, device=weights.device)}

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Add a gradient to the sum."""
        state["sum"].add_(grad)
        state["touched"].fill_(1)


@dataclass(frozen=True, slots=True)
class _Accumulated:
    """Optimizer factory that calls `factory` and makes the sums for each optimizer that `factory` returns."""

    factory: OptimizerFactory
    batches: int

    def __call__(self, named: NamedParameters) -> Trainer | Sequence[Trainer]:
        made = self.factory(named)
        for optimizer in optimizers_of(made):
            for sums in companions_of([optimizer]):
                if isinstance(sums, GradientSums):
                    raise InvalidValueError(
                        f"{type(optimizer).__name__} accumulates the gradients of {sums.batches} batches already; "
                        "call accumulate once."
                    )
            if accompany(optimizer, lambda params: GradientSums(params, self.batches)):
                for group in optimizer.param_groups:
                    group[COUNT] = 0
        return made


def accumulate(optimizer: OptimizerFactory, k: int) -> OptimizerFactory:
    """Wrap an optimizer so that it updates the model once in `k` batches, with the gradients of all of them.

    If the loss is a mean, the gradients are averaged, else they are added up, as in a training with several processes.
    So the update is that of one batch with the rows of all `k`, up to rounding; batches with a mean loss must have
    equal numbers of rows for that. Rows of tables that no batch has looked up are not updated.

    The global step counts batches, so ``steps``, schedules and hooks count batches too. Checkpoints hold the sums: a
    training that ends between two updates goes on exactly. Gradients are clipped after they have been added up, apart
    from those of optimizers that do not accumulate.

    Several processes that train in step update once in `k` batches of each. Parameter servers do not accumulate. A
    compiled step computes and adds up the gradients; the updates run in Python.

    Args:
        optimizer: An unbound optimizer, a class, or a function from named parameters to optimizers or schedules.
        k: Number of batches of an update, at least 1.

    Returns:
        A function that takes the same arguments as `optimizer`.

    Raises:
        InvalidTypeError: `optimizer` cannot be called with parameters, or `k` is not a whole number.
        InvalidValueError: `k` is below 1.

    >>> def trained(optimizer, batch, steps):
    ...     torch.manual_seed(0)
    ...     rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    ...     data = te.data.Dataset.from_arrays(rows, labels=rows).batch(batch)
    ...     estimator = te.Estimator.from_module(
    ...         torch.nn.Linear(1, 1), loss=torch.nn.MSELoss(), optimizer=optimizer, model_dir=f"memory://of_{batch}"
    ...     )
    ...     return estimator.train(lambda: data.repeat(), steps=steps).get_variable_value("weight")
    >>> small = trained(te.optim.accumulate(te.optim.SGD(lr=0.01), 4), batch=2, steps=12)
    >>> np.allclose(small, trained(te.optim.SGD(lr=0.01), batch=8, steps=3))
    True
    """
    check_factory(optimizer)
    if isinstance(k, bool) or not isinstance(k, int):
        raise InvalidTypeError(f"k, the number of batches of an update, must be a whole number, but got {k!r}.")
    if k < 1:
        raise InvalidValueError(f"k, the number of batches of an update, must be at least 1, but got {k}.")
    return _Accumulated(optimizer, k)
