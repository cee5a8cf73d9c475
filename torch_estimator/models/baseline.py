"""Baselines: models that know nothing of the features, so that others can be seen to be better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_estimator.estimator import Estimator
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.bias_only import Baseline, RowCount
from torch_estimator.models.canned_heads import classifier_head, regressor_head
from torch_estimator.models.canned_model_fn import OptimizerArgument, optimizer_factory
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec

_LEARNING_RATE = 0.3


class BaselineEstimator(Estimator):
    """Learns one bias per logit; of the features only the number of rows is looked at.

    Args:
        head: What the logits mean; see `torch_estimator.heads`.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        optimizer: Ftrl with learning rate 0.3 by default; or another name, or a function from named parameters to an
            optimizer.
        config: How the job runs.

    Raises:
        InvalidTypeError: Where an argument is of the wrong type.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | None = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(_model_fn(check_head(head), optimizer), model_dir, config)


class BaselineClassifier(Estimator):
    """Learns how frequent each class is, whatever the features are.

    Args:
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        n_classes: Number of classes.
        weight_column: Feature that holds the examples' weights.
        label_vocabulary: The labels as strings, in the order of their class ids.
        optimizer: Ftrl with learning rate 0.3 by default; or another name, or a function from named parameters to an
            optimizer.
        config: How the job runs.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.

    Raises:
        InvalidValueError: Where an argument is out of range.
        InvalidTypeError: Where an argument is of the wrong type.
    """

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
        head = classifier_head(
            n_classes=n_classes,
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
        super().__init__(_model_fn(head, optimizer), model_dir, config)


class BaselineRegressor(Estimator):
    """Learns the mean of the labels, whatever the features are.

    Args:
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        label_dimension: Numbers per label.
        weight_column: Feature that holds the examples' weights.
        optimizer: Ftrl with learning rate 0.3 by default; or another name, or a function from named parameters to an
            optimizer.
        config: How the job runs.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.

    Raises:
        InvalidValueError: Where an argument is out of range.
        InvalidTypeError: Where an argument is of the wrong type.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: OptimizerArgument = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM,
    ) -> None:
        head = regressor_head(
            label_dimension=label_dimension, weight_column=weight_column, loss_reduction=loss_reduction
        )
        super().__init__(_model_fn(head, optimizer), model_dir, config)


def _model_fn(head: Head, optimizer: OptimizerArgument) -> Callable[..., EstimatorSpec]:
    factory = optimizer_factory(optimizer, _LEARNING_RATE)

    def model_fn(mode: str) -> EstimatorSpec:
        return EstimatorSpec(
            mode=mode,
            module=Baseline(head.logits_dimension),
            head=head,
            optimizer=factory,
            transform=RowCount(),
        )

    return model_fn
