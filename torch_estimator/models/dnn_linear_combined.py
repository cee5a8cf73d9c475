"""Wide and deep models: a linear part and a deep part (hidden layers) are trained together. Their logits are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_model_fn import (
    Deep,
    Wide,
    as_columns,
    canned_model_fn,
    classifier_head,
    one_over_root,
    premade,
    regressor_head,
)
from torch_estimator.models.generations import V1, Generation, OptimizerArgument
from torch_estimator.networks import Activation
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec
from torch_estimator.warm_start import WarmStart

_LINEAR_LEARNING_RATE = 0.005
_DNN_LEARNING_RATE = 0.001


@premade()
class DNNLinearCombinedClassifier(Estimator):
    """Classifier that adds the logits of a linear part and of hidden layers (wide and deep).

    The linear part remembers single values and crosses; the hidden layers generalize. If columns are given for only one
    part, the model consists of that part alone. Its methods are those of `Estimator`. Predictions and metrics are those
    of `BinaryClassHead` for two classes, and of `MultiClassHead` for more.

    >>> job = fc.categorical_column_with_hash_bucket("job", 10)
    >>> age = fc.numeric_column("age", normalizer_fn=lambda age: (age - 40) / 10)
    >>> data = {"job": ["clerk", "farmer", "clerk", "farmer"], "age": [25.0, 31.0, 52.0, 48.0]}, [0, 0, 1, 1]
    >>> estimator = te.DNNLinearCombinedClassifier(
    ...     linear_feature_columns=[job, fc.bucketized_column(age, [0.0])],
    ...     dnn_feature_columns=[age, fc.embedding_column(job, dimension=2)],
    ...     dnn_hidden_units=[8],
    ...     dnn_optimizer=te.optim.Adagrad(lr=0.1),
    ...     config=te.RunConfig("memory://DNNLinearCombinedClassifier", random_seed=1),
    ... )
    >>> estimator.train(lambda: data, steps=50).evaluate(lambda: data)["accuracy"]
    1.0
    """

    _generation = V1

    def __init__(
        self,
        model_dir: str | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: OptimizerArgument = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: OptimizerArgument = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = torch.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        model_fn = _model_fn(
            classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, self._generation),
            linear_feature_columns,
            linear_optimizer,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
            self._generation,
            loss_reduction,
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@premade()
class DNNLinearCombinedRegressor(Estimator):
    """Regression model that adds the outputs of a linear part and of hidden layers (wide and deep).

    If columns are given for only one part, the model consists of that part alone. Its methods are those of `Estimator`.
    Predictions and metrics are those of `RegressionHead`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> estimator = te.DNNLinearCombinedRegressor(
    ...     linear_feature_columns=[x],
    ...     dnn_feature_columns=[x],
    ...     dnn_hidden_units=[8],
    ...     dnn_optimizer=te.optim.Adagrad(lr=0.1),
    ...     config=te.RunConfig("memory://DNNLinearCombinedRegressor", random_seed=1),
    ... )
    >>> estimator.train(lambda: data, steps=50).evaluate(lambda: data)["average_loss"] < 1.0
    True
    """

    _generation = V1

    def __init__(
        self,
        model_dir: str | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: OptimizerArgument = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: OptimizerArgument = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = torch.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        model_fn = _model_fn(
            regressor_head(label_dimension, weight_column, loss_reduction),
            linear_feature_columns,
            linear_optimizer,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
            self._generation,
            loss_reduction,
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@premade()
class DNNLinearCombinedEstimator(Estimator):
    """Model for any head that adds the logits of a linear part and of hidden layers (wide and deep).

    If columns are given for only one part, the model consists of that part alone. Its methods are those of `Estimator`.
    The head decides about loss, predictions and metrics.

    >>> age = fc.numeric_column("age", normalizer_fn=lambda age: (age - 40) / 10)
    >>> data = {"age": [25.0, 31.0, 52.0, 48.0]}, [["comedy"], ["comedy", "drama"], [], ["drama"]]
    >>> estimator = te.DNNLinearCombinedEstimator(
    ...     te.MultiLabelHead(2, label_vocabulary=["comedy", "drama"]),
    ...     model_dir="memory://DNNLinearCombinedEstimator",
    ...     linear_feature_columns=[age],
    ...     dnn_feature_columns=[age],
    ...     dnn_hidden_units=[8],
    ... )
    >>> next(estimator.train(lambda: data, steps=5).predict(lambda: data))["probabilities"].shape
    (2,)
    """

    _generation = V1

    def __init__(
        self,
        head: Head,
        model_dir: str | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: OptimizerArgument = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: OptimizerArgument = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation = torch.relu,
        dnn_dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
        warm_start_from: WarmStart | None = None,
    ) -> None:
        model_fn = _model_fn(
            check_head(head),
            linear_feature_columns,
            linear_optimizer,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
            self._generation,
            None,
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def _model_fn(
    head: Head,
    linear_feature_columns: Iterable[Any] | None,
    linear_optimizer: OptimizerArgument,
    linear_sparse_combiner: Combiner,
    dnn_feature_columns: Iterable[Any] | None,
    dnn_optimizer: OptimizerArgument,
    dnn_hidden_units: Sequence[int] | None,
    dnn_activation_fn: Activation,
    dnn_dropout: float | None,
    batch_norm: bool,
    generation: Generation,
    loss_reduction: LossReduction | str | None,
) -> Callable[..., EstimatorSpec]:
    """Return the ``model_fn`` of a wide and deep model with the defaults of a generation; see `canned_model_fn`."""
    linear_columns, dnn_columns = as_columns(linear_feature_columns), as_columns(dnn_feature_columns)
    if not linear_columns and not dnn_columns:
        raise InvalidValueError("Give linear_feature_columns, dnn_feature_columns or both; both are empty.")
    if dnn_columns and not dnn_hidden_units:
        raise InvalidValueError("dnn_feature_columns need dnn_hidden_units, the outputs of each hidden layer.")
    wide = deep = None
    if linear_columns:
        wide = Wide(
            columns=linear_columns,
            optimizer=linear_optimizer,
            learning_rate=min(_LINEAR_LEARNING_RATE, one_over_root(linear_columns)),
            sparse_combiner=linear_sparse_combiner,
        )
    if dnn_columns and dnn_hidden_units:
        deep = Deep(
            columns=dnn_columns,
            hidden_units=dnn_hidden_units,
            optimizer=dnn_optimizer,
            learning_rate=_DNN_LEARNING_RATE,
            activation_fn=dnn_activation_fn,
            dropout=dnn_dropout,
            batch_norm=batch_norm,
        )
    return canned_model_fn(head, generation, loss_reduction, wide=wide, deep=deep)
