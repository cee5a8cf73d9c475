"""Exponential moving averages of weights, as a setting of optimizers.

The training step updates the averages after the weights. `torch_estimator.train.model` puts them in the place of the
weights when a checkpoint is evaluated, exported or used to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.base import Group, ParamsT, State, check_number
from torch_estimator.optim.companions import AVERAGE, UPDATES, Companion, accompany, companions_of
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, Trainer, check_factory, optimizers_of


class MovingAverage(Companion):
    """Moving averages of the parameters of an optimizer, with the formula of `tf.train.ExponentialMovingAverage`.

    `decay` is the share of the old average in the new one; with `dynamic_decay`, it is at most ``(1 + t) / (10 + t)``
    in update t.
    """

    slot_names: ClassVar[dict[str, str]] = {"average": AVERAGE, "updates": UPDATES}

    def __init__(self, params: ParamsT, decay: float, *, dynamic_decay: bool) -> None:
        super().__init__(params, {"decay": decay, "dynamic_decay": dynamic_decay})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return a copy of `param`, and with a dynamic decay the number of updates, a 0-dimensional zero."""
        state = {"average": param.detach().clone()}
        if group["dynamic_decay"]:
            state["updates"] = torch.zeros((), dtype=torch.float32, device=param.device)
        return state

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update the average with the current value of `param`; `grad` is not used."""
        rate: float | Tensor = 1.0 - group["decay"]
        if "updates" in state:
            updates = state["updates"] + 1.0
            rate = (9.0 / (10.0 + updates)).clamp(min=rate).to(param.dtype)
        state["average"].lerp_(param, rate)

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Increment the number of updates, if it is counted."""
        if "updates" in state:
            state["updates"].add_(1.0)


@dataclass(frozen=True, slots=True)
class _Averaged:
    """Optimizer factory that calls `factory` and makes the averages for each optimizer that `factory` returns."""

    factory: OptimizerFactory
    decay: float
    dynamic_decay: bool

    def __call__(self, named: NamedParameters) -> Trainer | Sequence[Trainer]:
        made = self.factory(named)
        for optimizer in optimizers_of(made):
            if any(isinstance(one, MovingAverage) for one in companions_of([optimizer])):
                raise InvalidValueError(
                    f"The parameters of {type(optimizer).__name__} are averaged already; call moving_average once."
                )
            accompany(optimizer, lambda params: MovingAverage(params, self.decay, dynamic_decay=self.dynamic_decay))
        return made


def moving_average(optimizer: OptimizerFactory, decay: float, *, dynamic_decay: bool = False) -> OptimizerFactory:
    """Wrap an optimizer so that evaluations, predictions and exports use moving averages of the weights.

    The average starts as the weight. After every update it becomes ``decay * average + (1 - decay) * weight``, as
    `tf.train.ExponentialMovingAverage` computes it. Training goes on from the weights themselves. Buffers, such as the
    statistics of batch normalization, are not averaged.

    Checkpoints hold the average of ``weight`` as ``weight/ExponentialMovingAverage``. A training may begin and end to
    average between two runs. All rows of a table are averaged in every step, also those that no batch has looked up, so
    a step takes longer the larger the table is. Parameter servers do not average.

    Args:
        optimizer: An unbound optimizer, a class, or a function from named parameters to optimizers or schedules.
        decay: Share of the old average in the new one, at least 0 and less than 1; often 0.99 to 0.9999.
        dynamic_decay: Whether the decay is at most ``(1 + t) / (10 + t)`` in update t, so that the first weights are
            soon forgotten. TensorFlow does that with ``num_updates``.

    Returns:
        A function that takes the same arguments as `optimizer`.

    Raises:
        InvalidTypeError: `optimizer` cannot be called with parameters, `decay` is not a number, or `dynamic_decay` is
            not a bool.
        InvalidValueError: `decay` is out of range.

    >>> estimator = te.Estimator.from_module(
    ...     torch.nn.Linear(1, 1),
    ...     loss=torch.nn.MSELoss(),
    ...     optimizer=te.optim.moving_average(te.optim.SGD(lr=0.1), 0.9),
    ...     model_dir="memory://moving_average",
    ... )
    >>> estimator = estimator.train(lambda: (np.ones((2, 1), np.float32), np.ones((2, 1), np.float32)), steps=5)
    >>> average = estimator.get_variable_value("bias/ExponentialMovingAverage")
    >>> bool(average != estimator.get_variable_value("bias"))
    True
    """
    check_factory(optimizer)
    check_number("decay", decay, at_least=0.0, below=1.0)
    if not isinstance(dynamic_decay, bool):
        raise InvalidTypeError(f"dynamic_decay must be True or False, but got {dynamic_decay!r}.")
    return _Averaged(optimizer, float(decay), dynamic_decay)
