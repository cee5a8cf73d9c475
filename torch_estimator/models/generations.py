"""What differs between the premade classes of TensorFlow 1.x and those of 2.x: loss, optimizers by name, one metric."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.heads import LossReduction
from torch_estimator.metrics import Summation
from torch_estimator.optim import Adagrad, Adam, Ftrl, GradientDescent
from torch_estimator.optim.factories import OptimizerFactory, by_name, check_factory

logger = logging.getLogger("torch_estimator")

OptimizerArgument = str | OptimizerFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Defaults of the premade classes of one generation of TensorFlow.

    `classes` says where users find them, and `loss` what the default `loss_reduction` does, for docstrings. A deep
    model's optimizers by name have the learning rates `deep_rates`, or else `deep_rate`. `pr_summation` is how the
    classifiers sum up the area under the precision-recall curve.
    """

    name: str
    classes: str
    loss_reduction: LossReduction
    loss: str
    pr_summation: Summation
    by_name: Callable[[str, float], OptimizerFactory]
    deep_rate: float
    deep_rates: Mapping[str, float]

    @property
    def defaults(self) -> Mapping[str, object]:
        """Defaults of the premade classes' arguments that differ from generation to generation."""
        return {"loss_reduction": self.loss_reduction}

    def rate(self, optimizer: str, learning_rate: float | None) -> float:
        """Return the learning rate of an optimizer given by name; None stands for that of a deep model."""
        return self.deep_rates.get(optimizer, self.deep_rate) if learning_rate is None else learning_rate

    def factory(self, optimizer: OptimizerArgument, learning_rate: float | None) -> OptimizerFactory:
        """Return a factory for an optimizer given by name, with `learning_rate`; return a factory function as it is."""
        if isinstance(optimizer, str):
            return self.by_name(optimizer, self.rate(optimizer, learning_rate))
        check_factory(optimizer, or_name=True)
        return optimizer

    def log_defaults(
        self,
        optimizers: Sequence[tuple[OptimizerArgument, float | None]],
        loss_reduction: LossReduction | str | None,
    ) -> None:
        """Log which optimizers a model gets by name, the default among them, and what the other generation gives it.

        `optimizers` has the optimizer and learning rate of each part; functions are left out. `loss_reduction` is that
        of the model's own head, or None if the user gave the head.
        """
        named = [(name, rate) for name, rate in optimizers if isinstance(name, str)]
        if not named:
            return
        other = V2 if self is V1 else V1
        with_loss = loss_reduction is not None and LossReduction.of(loss_reduction) is self.loss_reduction
        ours, theirs = self._described(named, with_loss), other._described(named, with_loss)
        generations = f"{V1.name} and {V2.name}"
        if others := [setting for setting in theirs if setting not in ours]:
            generations = f"{self.name}; {other.classes}: {', '.join(others)}"
        logger.info("Optimizer: %s (%s).", ", ".join(ours), generations)

    def _described(self, named: Sequence[tuple[str, float | None]], with_loss: bool) -> list[str]:
        settings = [f"{name}(lr={self.rate(name, rate):g})" for name, rate in named]
        return [*settings, f"loss_reduction={self.loss_reduction.value!r}"] if with_loss else settings


_KERAS: dict[str, Callable[[float], OptimizerFactory]] = {
    "Adagrad": lambda rate: Adagrad(lr=rate),
    "Adam": lambda rate: Adam(lr=rate, epsilon=1e-7),
    "Ftrl": lambda rate: Ftrl(lr=rate),
    "RMSProp": lambda rate: functools.partial(torch.optim.RMSprop, lr=rate, alpha=0.9, eps=1e-7),
    "SGD": lambda rate: GradientDescent(lr=rate),
}


def _keras_by_name(name: str, learning_rate: float) -> OptimizerFactory:
    """Return the optimizer with Keras's formula and settings; a name unknown to TF 2.x is an InvalidValueError."""
    if name not in _KERAS:
        names = ", ".join(repr(known) for known in _KERAS)
        raise InvalidValueError(
            f"Unknown optimizer {name!r}; the names in te.v2 are {names}. Others can be given themselves, such as "
            "te.optim.AdamW(lr=0.001)."
        )
    return _KERAS[name](learning_rate)


V1 = Generation(
    name="TF 1.x",
    classes="te",
    loss_reduction=LossReduction.SUM,
    loss="is their sum",
    pr_summation="trapezoidal",
    by_name=by_name,
    deep_rate=0.05,
    deep_rates={},
)

V2 = Generation(
    name="TF 2.x",
    classes="te.v2",
    loss_reduction=LossReduction.SUM_OVER_BATCH_SIZE,
    loss="divides their sum by their number",
    pr_summation="interpolation",
    by_name=_keras_by_name,
    deep_rate=0.001,
    deep_rates={"SGD": 0.01},
)
