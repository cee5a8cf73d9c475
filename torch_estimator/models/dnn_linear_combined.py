"""Wide and deep models: a linear part and a deep part (hidden layers) are trained together. Their logits are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from torch_estimator.models.generations import V1, OptimizerArgument
from torch_estimator.networks import Activation
from torch_estimator.run_config import RunConfig
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
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, self._generation)
        wide = _wide(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        deep = _deep(dnn_hidden_units, dnn_feature_columns, dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm)
        model_fn = canned_model_fn(head, self._generation, loss_reduction, wide=wide, deep=deep)
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
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        wide = _wide(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        deep = _deep(dnn_hidden_units, dnn_feature_columns, dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm)
        model_fn = canned_model_fn(head, self._generation, loss_reduction, wide=wide, deep=deep)
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
        check_head(head)
        wide = _wide(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        deep = _deep(dnn_hidden_units, dnn_feature_columns, dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm)
        model_fn = canned_model_fn(head, self._generation, None, wide=wide, deep=deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def _wide(columns: Iterable[Any] | None, optimizer: OptimizerArgument, sparse_combiner: Combiner) -> Wide | None:
    columns = as_columns(columns)
    if not columns:
        return None
    rate = min(_LINEAR_LEARNING_RATE, one_over_root(columns))
    return Wide(columns=columns, optimizer=optimizer, learning_rate=rate, sparse_combiner=sparse_combiner)


def _deep(
    hidden_units: Sequence[int] | None,
    columns: Iterable[Any] | None,
    optimizer: OptimizerArgument,
    activation_fn: Activation,
    dropout: float | None,
    batch_norm: bool,
) -> Deep | None:
    columns = as_columns(columns)
    if not columns:
        return None
    if not hidden_units:
        raise InvalidValueError("dnn_feature_columns need dnn_hidden_units, the outputs of each hidden layer.")
    return Deep(hidden_units, columns, optimizer, activation_fn, dropout, batch_norm, _DNN_LEARNING_RATE)
