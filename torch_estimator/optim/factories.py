"""What makes a model's optimizers: any function of named parameters, and the check that something is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from torch_estimator.errors import InvalidTypeError
from torch_estimator.optim.base import Optimizer

NamedParameters = Iterable[tuple[str, nn.Parameter]]
"""Names and parameters, as ``module.named_parameters()`` gives them."""

Trainer = torch.optim.Optimizer | LRScheduler
"""An optimizer, or a learning-rate schedule around one."""

OptimizerFactory = Callable[[NamedParameters], Trainer | Sequence[Trainer]]
"""Makes what trains the parameters it is given: an unbound optimizer of this package, a class, any function."""


def check_factory(optimizer: object, *, or_name: bool = False) -> None:
    """Raises unless `optimizer` can be called with parameters; the message says what to write instead.

    Args:
        optimizer: What was given.
        or_name: Whether a name would have done, too.

    Raises:
        InvalidTypeError: It is bound to parameters, or a schedule of such an optimizer, or no function at all.
    """
    if isinstance(optimizer, LRScheduler):
        name = type(optimizer).__name__
        raise InvalidTypeError(
            f"A schedule must be made with its optimizer, for each training anew, but got {name} of an existing one; "
            f"give a function such as lambda named: {name}(te.optim.AdamW(named, lr=0.001), ...)."
        )
    if isinstance(optimizer, torch.optim.Optimizer) and not (isinstance(optimizer, Optimizer) and optimizer.unbound):
        raise InvalidTypeError(
            "An optimizer must be given without parameters, since those of the model are made for each training anew, "
            f"but got {type(optimizer).__name__} with parameters; write {_unbound(optimizer)}."
        )
    if not callable(optimizer):
        raise InvalidTypeError(
            f"An optimizer must be {'a name or ' if or_name else ''}a function from named parameters to an optimizer, "
            "such as te.optim.Adam(lr=0.001) or functools.partial(torch.optim.Adam, lr=0.001), but got "
            f"{optimizer!r}."
        )


def _unbound(optimizer: torch.optim.Optimizer) -> str:
    name, rate = type(optimizer).__name__, float(optimizer.defaults.get("lr", 0.001))
    if isinstance(optimizer, Optimizer):
        return f"te.optim.{name}(lr={rate:g})"
    home = "torch.optim." if type(optimizer).__module__.startswith("torch.optim") else ""
    return f"functools.partial({home}{name}, lr={rate:g})"


def check_evaluates_once(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidTypeError for an optimizer that needs the loss of a batch more than once a step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidTypeError(
            "LBFGS evaluates the loss several times a step, which training on batches does not; use another optimizer."
        )
