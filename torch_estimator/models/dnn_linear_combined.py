"""Wide and deep models: a linear model and a network, trained together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_heads import classifier_head, regressor_head
from torch_estimator.models.canned_model_fn import OptimizerArgument, canned_model_fn, wide_and_deep
from torch_estimator.models.networks import Activation
from torch_estimator.run_config import RunConfig
from torch_estimator.warm_start import WarmStart


class DNNLinearCombinedClassifier(Estimator):
    """Wide and deep classification; with one kind of columns only, that part alone.

    Args:
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        linear_feature_columns: Categorical, bucketized and numeric columns of the linear part.
        linear_optimizer: Ftrl with learning rate ``min(0.005, 1/sqrt(columns))`` by default; or another name,
            or a function from named parameters to an optimizer.
        dnn_feature_columns: Numeric, bucketized, indicator and embedding columns of the deep part.
        dnn_optimizer: Adagrad with learning rate 0.001 by default; or another name, or a function from named
            parameters to an optimizer.
        dnn_hidden_units: Outputs of each hidden layer.
        dnn_activation_fn: After each hidden layer.
        dnn_dropout: Probability of dropping a hidden unit while training.
        n_classes: Number of classes.
        weight_column: Feature that holds the examples' weights.
        label_vocabulary: The labels as strings, in the order of their class ids.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.
        batch_norm: Whether each hidden layer's output is normalised.
        linear_sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``: the same where columns have one value a row.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        wide, deep = wide_and_deep(
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
        )
        super().__init__(
            canned_model_fn(
                classifier_head(
                    n_classes=n_classes,
                    weight_column=weight_column,
                    label_vocabulary=label_vocabulary,
                    loss_reduction=loss_reduction,
                ),
                wide=wide,
                deep=deep,
            ),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedRegressor(Estimator):
    """Wide and deep regression; with one kind of columns only, that part alone.

    Args:
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        linear_feature_columns: Categorical, bucketized and numeric columns of the linear part.
        linear_optimizer: Ftrl with learning rate ``min(0.005, 1/sqrt(columns))`` by default; or another name,
            or a function from named parameters to an optimizer.
        dnn_feature_columns: Numeric, bucketized, indicator and embedding columns of the deep part.
        dnn_optimizer: Adagrad with learning rate 0.001 by default; or another name, or a function from named
            parameters to an optimizer.
        dnn_hidden_units: Outputs of each hidden layer.
        dnn_activation_fn: After each hidden layer.
        dnn_dropout: Probability of dropping a hidden unit while training.
        label_dimension: Numbers per label.
        weight_column: Feature that holds the examples' weights.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.
        batch_norm: Whether each hidden layer's output is normalised.
        linear_sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``: the same where columns have one value a row.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        wide, deep = wide_and_deep(
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
        )
        super().__init__(
            canned_model_fn(
                regressor_head(
                    label_dimension=label_dimension,
                    weight_column=weight_column,
                    loss_reduction=loss_reduction,
                ),
                wide=wide,
                deep=deep,
            ),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class DNNLinearCombinedEstimator(Estimator):
    """A wide and deep model with any head; with one kind of columns only, that part alone.

    Args:
        head: What the logits mean; see `torch_estimator.heads`.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        linear_feature_columns: Categorical, bucketized and numeric columns of the linear part.
        linear_optimizer: Ftrl with learning rate ``min(0.005, 1/sqrt(columns))`` by default; or another name,
            or a function from named parameters to an optimizer.
        dnn_feature_columns: Numeric, bucketized, indicator and embedding columns of the deep part.
        dnn_optimizer: Adagrad with learning rate 0.001 by default; or another name, or a function from named
            parameters to an optimizer.
        dnn_hidden_units: Outputs of each hidden layer.
        dnn_activation_fn: After each hidden layer.
        dnn_dropout: Probability of dropping a hidden unit while training.
        config: How the job runs.
        batch_norm: Whether each hidden layer's output is normalised.
        linear_sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``: the same where columns have one value a row.
        warm_start_from: Where the first weights come from; see `Estimator`.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        wide, deep = wide_and_deep(
            linear_feature_columns=linear_feature_columns,
            linear_optimizer=linear_optimizer,
            dnn_feature_columns=dnn_feature_columns,
            dnn_optimizer=dnn_optimizer,
            dnn_hidden_units=dnn_hidden_units,
            dnn_activation_fn=dnn_activation_fn,
            dnn_dropout=dnn_dropout,
            batch_norm=batch_norm,
            linear_sparse_combiner=linear_sparse_combiner,
        )
        model_fn = canned_model_fn(check_head(head), wide=wide, deep=deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
