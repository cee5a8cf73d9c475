"""Gradient accumulation, as a setting of optimizers: add up the gradients of several batches, then update once.

The training step looks up this setting of its optimizers. `torch_estimator.train.accumulation` adds up the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, Trainer, check_factory, optimizers_of

SUM = "accumulated"
"""Key of the sum of gradients in the state of a parameter."""

TOUCHED = "accumulated_rows"
"""Key, in the state of a table, of the mask of the rows that have a gradient in the sum."""

COUNT = "accumulated_batches"
"""Setting of an optimizer's parameter groups: how many batches are in the sums."""

# Maps each optimizer to the number of batches of an update, because torch's optimizers cannot store it.
_BATCHES: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()


def accumulations_of(optimizers: Iterable[torch.optim.Optimizer]) -> dict[torch.optim.Optimizer, int]:
    """Return the optimizers that accumulate gradients, each with the number of batches of an update."""
    return {one: _BATCHES[one] for one in optimizers if one in _BATCHES}


def is_accumulated(slot: str) -> bool:
    """Return whether the name of an optimizer's variable in a checkpoint is that of a sum of gradients."""
    return slot.endswith((f"/{SUM}", f"/{TOUCHED}"))


@dataclass(frozen=True, slots=True)
class _Accumulated:
    """Optimizer factory that calls `factory` and registers the number of batches for each optimizer that it makes."""

    factory: OptimizerFactory
    batches: int

    def __call__(self, named: NamedParameters) -> Trainer | Sequence[Trainer]:
        made = self.factory(named)
        for optimizer in optimizers_of(made):
            if optimizer in _BATCHES:
                raise InvalidValueError(
                    f"{type(optimizer).__name__} accumulates the gradients of {_BATCHES[optimizer]} batches already; "
                    "call accumulate once."
                )
            _BATCHES[optimizer] = self.batches
            for group in optimizer.param_groups:
                group[COUNT] = 0
        return made


def accumulate(optimizer: OptimizerFactory, k: int) -> OptimizerFactory:
    """Wrap an optimizer so that it updates the model once in `k` batches, with the gradients of all of them.

    If the loss is a mean, the gradients are averaged, else they are added up, as in a training with several processes.
    So the update is that of one batch with the rows of all `k`, up to rounding; batches with a mean loss must have
    equal numbers of rows for that. Rows of tables that no batch has looked up are not updated.

    The global step counts batches, so ``steps``, schedules and hooks count batches too. Checkpoints hold the sums: a
    training that ends between two updates goes on exactly. Gradients are clipped after they have been added up.

    The steps run in Python, without compilation. Training with several processes is refused, because their gradients
    are added up already.

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
