"""Linear models on feature columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_model_fn import (
    Wide,
    as_columns,
    canned_model_fn,
    classifier_head,
    one_over_root,
    premade,
    regressor_head,
)
from torch_estimator.models.generations import V1, Generation, OptimizerArgument
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec
from torch_estimator.warm_start import WarmStart

_LEARNING_RATE = 0.2
_COLUMNS = "Columns of any kind; categorical columns need no indicator."
_OPTIMIZER = (
    "Name of an optimizer, which gets learning rate 0.2; None for Ftrl with ``min(0.2, 1 / sqrt(number of columns))``; "
    "or a function from named parameters to an optimizer."
)


@premade(feature_columns=_COLUMNS, optimizer=_OPTIMIZER)
class LinearClassifier(Estimator):
    """Logistic regression on feature columns, for two or more classes.

    Its methods are those of `Estimator`. Predictions and metrics are those of `BinaryClassHead` for two classes, and of
    `MultiClassHead` for more. All weights start at zero.

    >>> color = fc.categorical_column_with_vocabulary_list("color", ["red", "green", "blue"])
    >>> data = {"color": ["red", "green", "blue", "blue"]}, [0, 1, 2, 2]
    >>> estimator = te.LinearClassifier([color], model_dir="memory://LinearClassifier", n_classes=3)
    >>> estimator.train(lambda: data, steps=20).evaluate(lambda: data)["accuracy"]
    1.0
    >>> estimator.get_variable_value("linear/linear_model/color/weights").shape
    (3, 3)
    """

    _generation = V1

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: OptimizerArgument | None = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
        sparse_combiner: Combiner = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, self._generation)
        model_fn = _model_fn(head, feature_columns, optimizer, sparse_combiner, self._generation, loss_reduction)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@premade(feature_columns=_COLUMNS, optimizer=_OPTIMIZER)
class LinearRegressor(Estimator):
    """Linear regression on feature columns.

    Its methods are those of `Estimator`. Predictions and metrics are those of `RegressionHead`. All weights start at
    zero.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> estimator = te.LinearRegressor([x], model_dir="memory://LinearRegressor", optimizer=te.optim.SGD(lr=0.05))
    >>> estimator = estimator.train(lambda: data, steps=100)
    >>> estimator.get_variable_value("linear/linear_model/x/weights").round(1)
    array([[2.]], dtype=float32)
    >>> estimator.get_variable_value("linear/linear_model/bias_weights").round(1)
    array([1.], dtype=float32)
    """

    _generation = V1

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: OptimizerArgument | None = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
        sparse_combiner: Combiner = "sum",
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        model_fn = _model_fn(head, feature_columns, optimizer, sparse_combiner, self._generation, loss_reduction)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@premade(feature_columns=_COLUMNS, optimizer=_OPTIMIZER)
class LinearEstimator(Estimator):
    """Linear model on feature columns, for any head.

    Its methods are those of `Estimator`. The head decides about loss, predictions and metrics.

    >>> clicks = fc.numeric_column("clicks")
    >>> data = {"clicks": [0.0, 1.0, 2.0]}, [0.0, 0.5, 0.9]
    >>> head = te.LogisticRegressionHead()
    >>> estimator = te.LinearEstimator(head, feature_columns=[clicks], model_dir="memory://LinearEstimator")
    >>> round(estimator.train(lambda: data, steps=50).evaluate(lambda: data)["label/mean"], 2)
    0.47
    """

    _generation = V1

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        optimizer: OptimizerArgument | None = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: Combiner = "sum",
        warm_start_from: WarmStart | None = None,
    ) -> None:
        model_fn = _model_fn(check_head(head), feature_columns, optimizer, sparse_combiner, self._generation, None)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def _model_fn(
    head: Head,
    feature_columns: Iterable[Any],
    optimizer: OptimizerArgument | None,
    sparse_combiner: Combiner,
    generation: Generation,
    loss_reduction: LossReduction | str | None,
) -> Callable[..., EstimatorSpec]:
    """Return the ``model_fn`` of a linear model with the defaults of a generation; see `canned_model_fn`."""
    columns = as_columns(feature_columns)
    # Limit the learning rate by the number of columns only if no optimizer is given, as in tf.estimator.
    rate = _LEARNING_RATE if optimizer is not None else min(_LEARNING_RATE, one_over_root(columns))
    wide = Wide(columns=columns, optimizer=optimizer or "Ftrl", learning_rate=rate, sparse_combiner=sparse_combiner)
    return canned_model_fn(head, generation, loss_reduction, wide=wide)
