"""Deep models: hidden layers on feature columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_estimator.estimator import Estimator
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_model_fn import (
    ANOTHER_OPTIMIZER,
    Deep,
    as_columns,
    canned_model_fn,
    classifier_head,
    premade,
    regressor_head,
)
from torch_estimator.models.generations import V1, OptimizerArgument
from torch_estimator.networks import Activation
from torch_estimator.run_config import RunConfig
from torch_estimator.warm_start import WarmStart

_COLUMNS = "Numeric, bucketized, indicator and embedding columns."
_OPTIMIZER = f"Adagrad with learning rate {{generation.deep_rate}}; {ANOTHER_OPTIMIZER}"


@premade(feature_columns=_COLUMNS, optimizer=_OPTIMIZER)
class DNNClassifier(Estimator):
    """Classifier with hidden layers on feature columns.

    Its methods are those of `Estimator`. Predictions and metrics are those of `BinaryClassHead` for two classes, and of
    `MultiClassHead` for more.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [-1.0, -0.5, 0.5, 1.0]}, ["low", "low", "high", "high"]
    >>> estimator = te.DNNClassifier(
    ...     hidden_units=[8],
    ...     feature_columns=[x],
    ...     label_vocabulary=["low", "high"],
    ...     config=te.RunConfig("memory://DNNClassifier", random_seed=1),
    ... )
    >>> estimator.train(lambda: data, steps=20).evaluate(lambda: data)["accuracy"]
    1.0
    >>> [str(one["classes"][0]) for one in estimator.predict(lambda: {"x": [-0.9, 0.9]})]
    ['low', 'high']
    """

    _generation = V1

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: OptimizerArgument = "Adagrad",
        activation_fn: Activation = torch.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, self._generation)
        columns = as_columns(feature_columns)
        deep = Deep(hidden_units, columns, optimizer, activation_fn, dropout, batch_norm)
        model_fn = canned_model_fn(head, self._generation, loss_reduction, deep=deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@premade(feature_columns=_COLUMNS, optimizer=_OPTIMIZER)
class DNNRegressor(Estimator):
    """Regression model with hidden layers on feature columns.

    Its methods are those of `Estimator`. Predictions and metrics are those of `RegressionHead`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> config = te.RunConfig("memory://DNNRegressor", random_seed=1)
    >>> estimator = te.DNNRegressor(hidden_units=[8], feature_columns=[x], config=config)
    >>> estimator.train(lambda: data, steps=100).evaluate(lambda: data)["average_loss"] < 1.0
    True
    >>> next(estimator.predict(lambda: {"x": [1.5]}))["predictions"].shape
    (1,)
    """

    _generation = V1

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: OptimizerArgument = "Adagrad",
        activation_fn: Activation = torch.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        columns = as_columns(feature_columns)
        deep = Deep(hidden_units, columns, optimizer, activation_fn, dropout, batch_norm)
        model_fn = canned_model_fn(head, self._generation, loss_reduction, deep=deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@premade(feature_columns=_COLUMNS, optimizer=_OPTIMIZER)
class DNNEstimator(Estimator):
    """Model with hidden layers on feature columns, for any head.

    Its methods are those of `Estimator`. The head decides about loss, predictions and metrics.

    >>> hour = fc.numeric_column("hour", normalizer_fn=lambda hour: hour / 24)
    >>> data = {"hour": [3.0, 12.0, 20.0]}, [0, 4, 9]
    >>> estimator = te.DNNEstimator(
    ...     te.PoissonRegressionHead(), hidden_units=[8], feature_columns=[hour], model_dir="memory://DNNEstimator"
    ... )
    >>> sorted(estimator.train(lambda: data, steps=5).evaluate(lambda: data))
    ['average_loss', 'global_step', 'label/mean', 'loss', 'prediction/mean']
    """

    _generation = V1

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        optimizer: OptimizerArgument = "Adagrad",
        activation_fn: Activation = torch.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        batch_norm: bool = False,
    ) -> None:
        check_head(head)
        columns = as_columns(feature_columns)
        deep = Deep(hidden_units, columns, optimizer, activation_fn, dropout, batch_norm)
        model_fn = canned_model_fn(head, self._generation, None, deep=deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
