"""Gradient clipping by norm or by value, as a setting of optimizers.

The training step looks up the clippings of its optimizers and applies them inside the step, compiled or not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torch_estimator.optim.base import check_number
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, Trainer, check_factory, optimizers_of


class Gradient(NamedTuple):
    """Gradient of a parameter, or of the rows of an embedding table that a batch contains.

    Attributes:
        values: The gradient, in the shape of the parameter or ``[elements]``. If the batch contains a row several
            times, the whole gradient of the row is repeated each time.
        share: Fraction of each value that counts in a norm, so that the fractions of a repeated row add up to one. The
            share of the row of missing values is 0. None counts every value once.
        rows: The elements of the table that the values belong to, in the form that the table's update takes; None for a
            parameter.
    """

    values: Tensor
    share: Tensor | None = None
    rows: Any = None


class Clipping(ABC):
    """Base class of functions that clip gradients before the optimizers use them.

    `needs_share` says whether the function reads `Gradient.share`.
    """

    needs_share = False

    @abstractmethod
    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        """Return the clipped values of each gradient, in order, of all parameters that an optimizer factory got."""


class _ByNorm(Clipping):
    """Clipping that scales all gradients by one factor, so that their global norm is at most `clip_norm`."""

    needs_share = True

    def __init__(self, clip_norm: float) -> None:
        self._clip_norm = clip_norm

    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        norm = torch.stack([_squares(gradient) for gradient in gradients]).sum().sqrt()
        scale = self._clip_norm / norm.clamp(min=self._clip_norm)
        return [gradient.values * scale.to(gradient.values.dtype) for gradient in gradients]


class _EachByNorm(_ByNorm):
    """Clipping that scales each gradient by a factor of its own, so that its norm is at most `clip_norm`."""

    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        return [clipped for gradient in gradients for clipped in super(_EachByNorm, self).__call__([gradient])]


class _ByValue(Clipping):
    """Clipping that clamps every element of the gradients to ``[-clip_value, clip_value]``."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        return [gradient.values.clamp(-self._clip_value, self._clip_value) for gradient in gradients]


def _squares(gradient: Gradient) -> Tensor:
    """Return the sum of the squares of a gradient's elements, in float32."""
    values = gradient.values.float()
    squares = values * values
    return (squares if gradient.share is None else squares * gradient.share).sum()


# Maps each optimizer to its clippings in the order in which they apply, because torch's optimizers cannot store them.
_CLIPPINGS: WeakKeyDictionary[torch.optim.Optimizer, list[Clipping]] = WeakKeyDictionary()


def clippings_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[Clipping, list[torch.optim.Optimizer]]:
    """Return a dict from each clipping to the optimizers that use it, in the order in which the clippings apply."""
    held: dict[Clipping, list[torch.optim.Optimizer]] = {}
    depth: dict[Clipping, int] = {}
    for optimizer in optimizers:
        for place, clipping in enumerate(_CLIPPINGS.get(optimizer, ())):
            held.setdefault(clipping, []).append(optimizer)
            depth[clipping] = max(depth.get(clipping, 0), place)
    return {clipping: held[clipping] for clipping in sorted(held, key=depth.__getitem__)}


@dataclass(frozen=True, slots=True)
class _Clipped:
    """Optimizer factory that calls `factory` and registers a clipping for each optimizer that `factory` returns."""

    factory: OptimizerFactory
    make: Callable[[float], Clipping]
    limit: float

    def __call__(self, named: NamedParameters) -> Trainer | Sequence[Trainer]:
        made = self.factory(named)
        # Make a new clipping for each call, because a norm is taken over the parameters of one call only.
        clipping = self.make(self.limit)
        for optimizer in optimizers_of(made):
            _CLIPPINGS.setdefault(optimizer, []).append(clipping)
        return made


def clip_gradients_by_norm(optimizer: OptimizerFactory, clip_norm: float, *, each: bool = False) -> OptimizerFactory:
    """Wrap an optimizer so that it scales its gradients down to a global norm of at most `clip_norm`.

    The formula is that of `tf.clip_by_global_norm`.

    The norm is taken over all parameters of one call of `optimizer`. In a wide and deep model, each half therefore has
    its own norm. It is the norm of the whole gradient, even if only some rows of a table have a gradient.

    Args:
        optimizer: An unbound optimizer, a class, or a function from named parameters to optimizers or schedules.
        clip_norm: Greatest norm, greater than 0.
        each: Whether each parameter's gradient has a norm of its own, as Keras's ``clipnorm``. The embeddings of one
            dimension are one parameter.

    Returns:
        A function that takes the same arguments as `optimizer`.

    Raises:
        InvalidTypeError: `optimizer` cannot be called with parameters, or `clip_norm` is not a number.
        InvalidValueError: `clip_norm` is not greater than 0.

    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> estimator = te.Estimator.from_module(
    ...     net,
    ...     loss=torch.nn.MSELoss(),
    ...     optimizer=te.optim.clip_gradients_by_norm(te.optim.SGD(lr=1.0), 0.5),
    ...     model_dir="memory://clip_gradients_by_norm",
    ... )
    >>> estimator = estimator.train(lambda: (np.ones((2, 1), np.float32), np.full(2, 100.0)), steps=1)
    >>> round(estimator.get_variable_value("weight").item() - net.weight.item(), 4)
    0.5
    """
    check_factory(optimizer)
    check_number("clip_norm", clip_norm, above=0.0)
    return _Clipped(optimizer, _EachByNorm if each else _ByNorm, clip_norm)


def clip_gradients_by_value(optimizer: OptimizerFactory, clip_value: float) -> OptimizerFactory:
    """Wrap an optimizer so that it clamps every element of its gradients to ``[-clip_value, clip_value]``.

    Args:
        optimizer: An unbound optimizer, a class, or a function from named parameters to optimizers or schedules.
        clip_value: Greatest absolute value, greater than 0.

    Returns:
        A function that takes the same arguments as `optimizer`.

    Raises:
        InvalidTypeError: `optimizer` cannot be called with parameters, or `clip_value` is not a number.
        InvalidValueError: `clip_value` is not greater than 0.

    >>> net = torch.nn.Linear(1, 1)
    >>> estimator = te.Estimator.from_module(
    ...     net,
    ...     loss=torch.nn.MSELoss(),
    ...     optimizer=te.optim.clip_gradients_by_value(te.optim.SGD(lr=1.0), 0.5),
    ...     model_dir="memory://clip_gradients_by_value",
    ... )
    >>> estimator = estimator.train(lambda: (np.ones((2, 1), np.float32), np.full(2, 100.0)), steps=1)
    >>> round(estimator.get_variable_value("bias").item() - net.bias.item(), 4)
    0.5
    """
    check_factory(optimizer)
    check_number("clip_value", clip_value, above=0.0)
    return _Clipped(optimizer, _ByValue, clip_value)
