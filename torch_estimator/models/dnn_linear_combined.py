"""Wide and deep models: a linear part and hidden layers whose logits are added, trained together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_model_fn import (
    OptimizerArgument,
    canned_model_fn,
    classifier_head,
    document_arguments,
    regressor_head,
    wide_and_deep,
)
from torch_estimator.models.networks import Activation
from torch_estimator.run_config import RunConfig
from torch_estimator.warm_start import WarmStart


@document_arguments()
class DNNLinearCombinedClassifier(Estimator):
    """Wide and deep classifier.

    If only one kind of columns is given, the model consists of that part alone.

    >>> import torch_estimator as te
    >>> age = te.feature_column.numeric_column("age")
    >>> estimator = te.DNNLinearCombinedClassifier(
    ...     linear_feature_columns=[age], dnn_feature_columns=[age], dnn_hidden_units=[8]
    ... )
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


@document_arguments()
class DNNLinearCombinedRegressor(Estimator):
    """Wide and deep regression model.

    If only one kind of columns is given, the model consists of that part alone.

    >>> import torch_estimator as te
    >>> age = te.feature_column.numeric_column("age")
    >>> estimator = te.DNNLinearCombinedRegressor(
    ...     linear_feature_columns=[age], dnn_feature_columns=[age], dnn_hidden_units=[8]
    ... )
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


@document_arguments()
class DNNLinearCombinedEstimator(Estimator):
    """Wide and deep model for any head.

    If only one kind of columns is given, the model consists of that part alone.

    >>> import torch_estimator as te
    >>> age = te.feature_column.numeric_column("age")
    >>> estimator = te.DNNLinearCombinedEstimator(
    ...     te.PoissonRegressionHead(), linear_feature_columns=[age], dnn_feature_columns=[age], dnn_hidden_units=[8]
    ... )
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
