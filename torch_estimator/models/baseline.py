"""Baseline models, which ignore the features. A useful model must be better than a baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_estimator.estimator import Estimator
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_model_fn import (
    ANOTHER_OPTIMIZER,
    classifier_head,
    premade,
    regressor_head,
)
from torch_estimator.models.generations import V1, Generation, OptimizerArgument
from torch_estimator.networks import Baseline, RowCount
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec

_LEARNING_RATE = 0.3
_OPTIMIZER = f"Ftrl with learning rate {_LEARNING_RATE}; {ANOTHER_OPTIMIZER}"


@premade(optimizer=_OPTIMIZER)
class BaselineEstimator(Estimator):
    """Baseline model for any head: one trained bias per logit. It ignores the features.

    Its methods are those of `Estimator`.

    >>> data = {"x": [1.0, 2.0, 3.0]}, [2, 3, 4]
    >>> estimator = te.BaselineEstimator(te.PoissonRegressionHead(), model_dir="memory://BaselineEstimator")
    >>> next(estimator.train(lambda: data, steps=50).predict(lambda: data))["predictions"].round()
    array([3.], dtype=float32)
    """

    _generation = V1

    def __init__(
        self,
        head: Head,
        model_dir: str | None = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(_model_fn(check_head(head), optimizer, self._generation, None), model_dir, config)


@premade(optimizer=_OPTIMIZER)
class BaselineClassifier(Estimator):
    """Classifier that learns how frequent each class is and ignores the features.

    Its methods are those of `Estimator`. A useful classifier must be better.

    >>> data = {"x": [1.0, 2.0, 3.0, 4.0]}, [0, 1, 1, 1]
    >>> estimator = te.BaselineClassifier(model_dir="memory://BaselineClassifier")
    >>> next(estimator.train(lambda: data, steps=100).predict(lambda: data))["probabilities"].round(2)
    array([0.25, 0.75], dtype=float32)
    """

    _generation = V1

    def __init__(
        self,
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, self._generation)
        super().__init__(_model_fn(head, optimizer, self._generation, loss_reduction), model_dir, config)


@premade(optimizer=_OPTIMIZER)
class BaselineRegressor(Estimator):
    """Regression model that learns the mean of the labels and ignores the features.

    Its methods are those of `Estimator`. A useful regression model must be better.

    >>> data = {"x": [1.0, 2.0, 3.0]}, [10.0, 20.0, 60.0]
    >>> estimator = te.BaselineRegressor(model_dir="memory://BaselineRegressor", optimizer=te.optim.SGD(lr=0.1))
    >>> next(estimator.train(lambda: data, steps=50).predict(lambda: data))["predictions"].round()
    array([30.], dtype=float32)
    """

    _generation = V1

    def __init__(
        self,
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        super().__init__(_model_fn(head, optimizer, self._generation, loss_reduction), model_dir, config)


def _model_fn(
    head: Head, optimizer: OptimizerArgument, generation: Generation, loss_reduction: LossReduction | str | None
) -> Callable[..., EstimatorSpec]:
    """Return the ``model_fn`` of a baseline with the defaults of a generation; see `canned_model_fn`."""
    factory = generation.factory(optimizer, _LEARNING_RATE)
    generation.log_defaults([(optimizer, _LEARNING_RATE)], loss_reduction)

    def model_fn(mode: str) -> EstimatorSpec:
        return EstimatorSpec(
            mode=mode,
            module=Baseline(head.logits_dimension),
            head=head,
            optimizer=factory,
            transform=RowCount(),
        )

    return model_fn
