"""Gradient clipping as a part of an optimizer, so that it happens inside the training step, compiled or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from torch_estimator.optim.base import check_number
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, Trainer, check_factory


class Gradient(NamedTuple):
    """The gradient of a parameter, or that of the elements of a table which a batch touched.

    Args:
        values: Of the parameter's shape, or ``[elements]``: the whole gradient of each element.
        share: How much of each value counts in a norm, 0 in the row of missing values; None counts all of them. A row
            met several times is there several times.
        rows: Which elements these are, as the table's update understands it; None for a parameter.
    """

    values: Tensor
    share: Tensor | None = None
    rows: Any = None


class Clipping(ABC):
    """Changes gradients before an optimizer sees them."""

    needs_share = False

    @abstractmethod
    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        """Returns the new values of all gradients of what one factory made."""


class _ByNorm(Clipping):
    needs_share = True

    def __init__(self, clip_norm: float) -> None:
        self._clip_norm = clip_norm

    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        norm = torch.stack([_squares(gradient) for gradient in gradients]).sum().sqrt()
        scale = self._clip_norm / norm.clamp(min=self._clip_norm)
        return [gradient.values * scale.to(gradient.values.dtype) for gradient in gradients]


class _ByValue(Clipping):
    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def __call__(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        return [gradient.values.clamp(-self._clip_value, self._clip_value) for gradient in gradients]


def _squares(gradient: Gradient) -> Tensor:
    values = gradient.values.float()
    squares = values * values
    return (squares if gradient.share is None else squares * gradient.share).sum()


_CLIPPINGS: WeakKeyDictionary[torch.optim.Optimizer, list[Clipping]] = WeakKeyDictionary()


def clippings_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[Clipping, list[torch.optim.Optimizer]]:
    """Returns what is to be done to the gradients of `optimizers`, in order, each with those it is for."""
    held: dict[Clipping, list[torch.optim.Optimizer]] = {}
    depth: dict[Clipping, int] = {}
    for optimizer in optimizers:
        for place, clipping in enumerate(_CLIPPINGS.get(optimizer, ())):
            held.setdefault(clipping, []).append(optimizer)
            depth[clipping] = max(depth.get(clipping, 0), place)
    return {clipping: held[clipping] for clipping in sorted(held, key=depth.__getitem__)}


@dataclass(frozen=True, slots=True)
class _Clipped:
    factory: OptimizerFactory
    make: Callable[[float], Clipping]
    limit: float

    def __call__(self, named: NamedParameters) -> Trainer | Sequence[Trainer]:
        made = self.factory(named)
        # One for each call: the norm is that of what this call made.
        clipping = self.make(self.limit)
        trainers = made if isinstance(made, Sequence) else [made]
        optimizers = [one.optimizer if isinstance(one, LRScheduler) else one for one in trainers]
        for optimizer in dict.fromkeys(optimizers):
            _CLIPPINGS.setdefault(optimizer, []).append(clipping)
        return made


def clip_gradients_by_norm(optimizer: OptimizerFactory, clip_norm: float) -> OptimizerFactory:
    """Scales the gradients down where their global norm is larger than `clip_norm` (`tf.clip_by_global_norm`).

    The norm is taken over all that one call of `optimizer` makes: in a wide and deep model each half has its own. It
    is the norm of the whole gradient, also where only rows of a table have one.

    Args:
        optimizer: An unbound optimizer, a class, or a function from named parameters to optimizers or schedules.
        clip_norm: Greater than 0.

    Returns:
        A function like `optimizer`.

    Raises:
        InvalidTypeError, InvalidValueError: An argument is none of these.

    >>> from torch_estimator.optim import Adagrad
    >>> factory = clip_gradients_by_norm(Adagrad(lr=0.1), 5.0)
    """
    check_factory(optimizer)
    check_number("clip_norm", clip_norm, above=0.0)
    return _Clipped(optimizer, _ByNorm, clip_norm)


def clip_gradients_by_value(optimizer: OptimizerFactory, clip_value: float) -> OptimizerFactory:
    """Moves every element of the gradients into ``[-clip_value, clip_value]``; else as `clip_gradients_by_norm`.

    Raises:
        InvalidTypeError, InvalidValueError: An argument is none of what it must be.
    """
    check_factory(optimizer)
    check_number("clip_value", clip_value, above=0.0)
    return _Clipped(optimizer, _ByValue, clip_value)
