"""Deep networks on feature columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_estimator.estimator import Estimator
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_heads import classifier_head, regressor_head
from torch_estimator.models.canned_model_fn import (
    DNN_LEARNING_RATE,
    Deep,
    OptimizerArgument,
    as_columns,
    canned_model_fn,
)
from torch_estimator.models.networks import Activation
from torch_estimator.run_config import RunConfig
from torch_estimator.warm_start import WarmStart


class DNNClassifier(Estimator):
    """A deep network that classifies.

    Args:
        hidden_units: Outputs of each hidden layer.
        feature_columns: Numeric, bucketized, indicator and embedding columns.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        n_classes: Number of classes.
        weight_column: Feature that holds the examples' weights.
        label_vocabulary: The labels as strings, in the order of their class ids.
        optimizer: Adagrad with learning rate 0.05 by default; or another name, or a function from named
            parameters to an optimizer.
        activation_fn: After each hidden layer.
        dropout: Probability of dropping a hidden unit while training.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.
        batch_norm: Whether each hidden layer's output is normalised.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        deep = Deep(
            columns=as_columns(feature_columns),
            hidden_units=hidden_units,
            optimizer=optimizer,
            learning_rate=DNN_LEARNING_RATE,
            activation_fn=activation_fn,
            dropout=dropout,
            batch_norm=batch_norm,
        )
        super().__init__(
            canned_model_fn(
                classifier_head(
                    n_classes=n_classes,
                    weight_column=weight_column,
                    label_vocabulary=label_vocabulary,
                    loss_reduction=loss_reduction,
                ),
                deep=deep,
            ),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class DNNRegressor(Estimator):
    """A deep network for regression.

    Args:
        hidden_units: Outputs of each hidden layer.
        feature_columns: Numeric, bucketized, indicator and embedding columns.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        label_dimension: Numbers per label.
        weight_column: Feature that holds the examples' weights.
        optimizer: Adagrad with learning rate 0.05 by default; or another name, or a function from named
            parameters to an optimizer.
        activation_fn: After each hidden layer.
        dropout: Probability of dropping a hidden unit while training.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.
        batch_norm: Whether each hidden layer's output is normalised.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        loss_reduction: LossReduction | str = LossReduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        deep = Deep(
            columns=as_columns(feature_columns),
            hidden_units=hidden_units,
            optimizer=optimizer,
            learning_rate=DNN_LEARNING_RATE,
            activation_fn=activation_fn,
            dropout=dropout,
            batch_norm=batch_norm,
        )
        super().__init__(
            canned_model_fn(
                regressor_head(
                    label_dimension=label_dimension,
                    weight_column=weight_column,
                    loss_reduction=loss_reduction,
                ),
                deep=deep,
            ),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class DNNEstimator(Estimator):
    """A deep network with any head.

    Args:
        head: What the logits mean; see `torch_estimator.heads`.
        hidden_units: Outputs of each hidden layer.
        feature_columns: Numeric, bucketized, indicator and embedding columns.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        optimizer: Adagrad with learning rate 0.05 by default; or another name, or a function from named
            parameters to an optimizer.
        activation_fn: After each hidden layer.
        dropout: Probability of dropping a hidden unit while training.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        batch_norm: Whether each hidden layer's output is normalised.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        deep = Deep(
            columns=as_columns(feature_columns),
            hidden_units=hidden_units,
            optimizer=optimizer,
            learning_rate=DNN_LEARNING_RATE,
            activation_fn=activation_fn,
            dropout=dropout,
            batch_norm=batch_norm,
        )
        model_fn = canned_model_fn(check_head(head), deep=deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
