"""The premade models with the defaults of TensorFlow 2.x, where ``tf.estimator.DNNClassifier`` means the V2 class.

They have the arguments of the classes in `torch_estimator`, which have the defaults of TensorFlow 1.x, and differ in:

* ``loss_reduction``: the losses of a batch are divided by their number. In TF 1.x they are summed up.
* ``optimizer`` of a deep model: a name stands for learning rate 0.001, or 0.01 for ``"SGD"``. In TF 1.x it is 0.05.
* Optimizers by name have Keras's formulas: epsilon of ``"Adam"`` is 1e-7, and the mean square of ``"RMSProp"``
  starts at 0. There is no ``"AdamW"``.
* ``auc_precision_recall`` of classifiers is interpolated, as in the heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.baseline import BASELINE_OPTIMIZER, baseline_model_fn
from torch_estimator.models.canned_model_fn import (
    ANOTHER_OPTIMIZER,
    classifier_head,
    document_arguments,
    regressor_head,
)
from torch_estimator.models.dnn import DEEP_COLUMNS, dnn_model_fn
from torch_estimator.models.dnn_linear_combined import combined_model_fn
from torch_estimator.models.generations import V2, OptimizerArgument
from torch_estimator.models.linear import LINEAR_COLUMNS, LINEAR_OPTIMIZER, linear_model_fn
from torch_estimator.networks import Activation
from torch_estimator.run_config import RunConfig
from torch_estimator.warm_start import WarmStart

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
]

_DEEP_OPTIMIZER = f"Adagrad with learning rate {V2.deep_rate}; {ANOTHER_OPTIMIZER}"
_LOSS = "How the losses of a batch are reduced to the training loss; the default divides their sum by their number."


@document_arguments(feature_columns=DEEP_COLUMNS, optimizer=_DEEP_OPTIMIZER, loss_reduction=_LOSS)
class DNNClassifier(Estimator):
    """Classifier with hidden layers on feature columns; see `torch_estimator.DNNClassifier`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [-1.0, -0.5, 0.5, 1.0]}, [0, 0, 1, 1]
    >>> config = te.RunConfig("memory://v2.DNNClassifier", random_seed=1)
    >>> estimator = te.v2.DNNClassifier(hidden_units=[8], feature_columns=[x], config=config)
    >>> 0 < estimator.train(lambda: data, steps=20).evaluate(lambda: data)["loss"] < 1  # the mean, not the sum
    True
    """

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
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, V2)
        model_fn = dnn_model_fn(
            head, hidden_units, feature_columns, optimizer, activation_fn, dropout, batch_norm, V2, loss_reduction
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(feature_columns=DEEP_COLUMNS, optimizer=_DEEP_OPTIMIZER, loss_reduction=_LOSS)
class DNNRegressor(Estimator):
    """Regression model with hidden layers on feature columns; see `torch_estimator.DNNRegressor`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> config = te.RunConfig("memory://v2.DNNRegressor", random_seed=1)
    >>> estimator = te.v2.DNNRegressor([8], [x], config=config, optimizer=te.optim.Adagrad(lr=0.5))
    >>> estimator.train(lambda: data, steps=100).evaluate(lambda: data)["average_loss"] < 1.0
    True
    """

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
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        model_fn = dnn_model_fn(
            head, hidden_units, feature_columns, optimizer, activation_fn, dropout, batch_norm, V2, loss_reduction
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(feature_columns=DEEP_COLUMNS, optimizer=_DEEP_OPTIMIZER, loss_reduction=_LOSS)
class DNNEstimator(Estimator):
    """Model with hidden layers on feature columns, for any head; see `torch_estimator.DNNEstimator`.

    >>> hour = fc.numeric_column("hour", normalizer_fn=lambda hour: hour / 24)
    >>> data = {"hour": [3.0, 12.0, 20.0]}, [0, 4, 9]
    >>> estimator = te.v2.DNNEstimator(te.PoissonRegressionHead(), [8], [hour], model_dir="memory://v2.DNNEstimator")
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["global_step"]
    5
    """

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
        model_fn = dnn_model_fn(
            head, hidden_units, feature_columns, optimizer, activation_fn, dropout, batch_norm, V2, None
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(feature_columns=LINEAR_COLUMNS, optimizer=LINEAR_OPTIMIZER, loss_reduction=_LOSS)
class LinearClassifier(Estimator):
    """Logistic regression on feature columns; see `torch_estimator.LinearClassifier`.

    >>> color = fc.categorical_column_with_vocabulary_list("color", ["red", "green", "blue"])
    >>> data = {"color": ["red", "green", "blue", "blue"]}, [0, 1, 2, 2]
    >>> estimator = te.v2.LinearClassifier([color], model_dir="memory://v2.LinearClassifier", n_classes=3)
    >>> estimator.train(lambda: data, steps=20).evaluate(lambda: data)["accuracy"]
    1.0
    """

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
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        sparse_combiner: Combiner = "sum",
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, V2)
        model_fn = linear_model_fn(head, feature_columns, optimizer, sparse_combiner, V2, loss_reduction)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(feature_columns=LINEAR_COLUMNS, optimizer=LINEAR_OPTIMIZER, loss_reduction=_LOSS)
class LinearRegressor(Estimator):
    """Linear regression on feature columns; see `torch_estimator.LinearRegressor`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> estimator = te.v2.LinearRegressor([x], model_dir="memory://v2.LinearRegressor", optimizer=te.optim.SGD(lr=0.1))
    >>> estimator = estimator.train(lambda: data, steps=200)
    >>> estimator.get_variable_value("linear/linear_model/x/weights").round(1)
    array([[2.]], dtype=float32)
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: OptimizerArgument | None = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        sparse_combiner: Combiner = "sum",
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        model_fn = linear_model_fn(head, feature_columns, optimizer, sparse_combiner, V2, loss_reduction)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(feature_columns=LINEAR_COLUMNS, optimizer=LINEAR_OPTIMIZER, loss_reduction=_LOSS)
class LinearEstimator(Estimator):
    """Linear model on feature columns, for any head; see `torch_estimator.LinearEstimator`.

    >>> clicks = fc.numeric_column("clicks")
    >>> data = {"clicks": [0.0, 1.0, 2.0]}, [0.0, 0.5, 0.9]
    >>> estimator = te.v2.LinearEstimator(te.LogisticRegressionHead(), [clicks], "memory://v2.LinearEstimator")
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["global_step"]
    5
    """

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
        model_fn = linear_model_fn(check_head(head), feature_columns, optimizer, sparse_combiner, V2, None)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(loss_reduction=_LOSS)
class DNNLinearCombinedClassifier(Estimator):
    """Wide and deep classifier; see `torch_estimator.DNNLinearCombinedClassifier`.

    >>> job = fc.categorical_column_with_hash_bucket("job", 10)
    >>> data = {"job": ["clerk", "farmer", "clerk", "farmer"]}, [0, 1, 0, 1]
    >>> estimator = te.v2.DNNLinearCombinedClassifier(
    ...     "memory://v2.DNNLinearCombinedClassifier",
    ...     linear_feature_columns=[job],
    ...     dnn_feature_columns=[fc.embedding_column(job, dimension=2)],
    ...     dnn_hidden_units=[8],
    ... )
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["global_step"]
    5
    """

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
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        model_fn = combined_model_fn(
            classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, V2),
            linear_feature_columns,
            linear_optimizer,
            linear_sparse_combiner,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            batch_norm,
            V2,
            loss_reduction,
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(loss_reduction=_LOSS)
class DNNLinearCombinedRegressor(Estimator):
    """Wide and deep regression model; see `torch_estimator.DNNLinearCombinedRegressor`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> estimator = te.v2.DNNLinearCombinedRegressor(
    ...     "memory://v2.DNNLinearCombinedRegressor",
    ...     linear_feature_columns=[x],
    ...     dnn_feature_columns=[x],
    ...     dnn_hidden_units=[8],
    ... )
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["label/mean"]
    4.0
    """

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
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        model_fn = combined_model_fn(
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
            V2,
            loss_reduction,
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(loss_reduction=_LOSS)
class DNNLinearCombinedEstimator(Estimator):
    """Wide and deep model for any head; see `torch_estimator.DNNLinearCombinedEstimator`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [0, 1, 3, 4]
    >>> estimator = te.v2.DNNLinearCombinedEstimator(
    ...     te.PoissonRegressionHead(), "memory://v2.DNNLinearCombinedEstimator", linear_feature_columns=[x]
    ... )
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["label/mean"]
    2.0
    """

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
        model_fn = combined_model_fn(
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
            V2,
            None,
        )
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


@document_arguments(optimizer=BASELINE_OPTIMIZER, loss_reduction=_LOSS)
class BaselineClassifier(Estimator):
    """Classifier that ignores the features; see `torch_estimator.BaselineClassifier`.

    >>> data = {"x": [1.0, 2.0, 3.0, 4.0]}, [0, 1, 1, 1]
    >>> estimator = te.v2.BaselineClassifier("memory://v2.BaselineClassifier")
    >>> next(estimator.train(lambda: data, steps=500).predict(lambda: data))["probabilities"].round(2)
    array([0.25, 0.75], dtype=float32)
    """

    def __init__(
        self,
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, V2)
        super().__init__(baseline_model_fn(head, optimizer, V2, loss_reduction), model_dir, config)


@document_arguments(optimizer=BASELINE_OPTIMIZER, loss_reduction=_LOSS)
class BaselineRegressor(Estimator):
    """Regression model that ignores the features; see `torch_estimator.BaselineRegressor`.

    >>> data = {"x": [1.0, 2.0, 3.0]}, [10.0, 20.0, 60.0]
    >>> estimator = te.v2.BaselineRegressor("memory://v2.BaselineRegressor", optimizer=te.optim.SGD(lr=0.1))
    >>> next(estimator.train(lambda: data, steps=50).predict(lambda: data))["predictions"].round()
    array([30.], dtype=float32)
    """

    def __init__(
        self,
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
    ) -> None:
        head = regressor_head(label_dimension, weight_column, loss_reduction)
        super().__init__(baseline_model_fn(head, optimizer, V2, loss_reduction), model_dir, config)


@document_arguments(optimizer=BASELINE_OPTIMIZER, loss_reduction=_LOSS)
class BaselineEstimator(Estimator):
    """Baseline model for any head; see `torch_estimator.BaselineEstimator`.

    >>> data = {"x": [1.0, 2.0, 3.0]}, [2, 3, 4]
    >>> estimator = te.v2.BaselineEstimator(te.PoissonRegressionHead(), "memory://v2.BaselineEstimator")
    >>> next(estimator.train(lambda: data, steps=50).predict(lambda: data))["predictions"].round()
    array([3.], dtype=float32)
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | None = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(baseline_model_fn(check_head(head), optimizer, V2, None), model_dir, config)
