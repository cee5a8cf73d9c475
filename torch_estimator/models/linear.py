"""Linear models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.heads import LossReduction
from torch_estimator.heads.base import Head, check_head
from torch_estimator.models.canned_heads import classifier_head, regressor_head
from torch_estimator.models.canned_model_fn import OptimizerArgument, canned_model_fn, linear_part
from torch_estimator.run_config import RunConfig
from torch_estimator.warm_start import WarmStart


class LinearClassifier(Estimator):
    """Logistic regression on feature columns.

    Args:
        feature_columns: Categorical, bucketized and numeric columns.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        n_classes: Number of classes.
        weight_column: Feature that holds the examples' weights.
        label_vocabulary: The labels as strings, in the order of their class ids.
        optimizer: A name, with learning rate 0.2; None for Ftrl with ``min(0.2, 1/sqrt(columns))``; or a function
            from named parameters to an optimizer.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.
        sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``: the same where columns have one value a row.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        loss_reduction: LossReduction | str = LossReduction.SUM,
        sparse_combiner: Combiner = "sum",
    ) -> None:
        wide = linear_part(feature_columns, optimizer, sparse_combiner)
        super().__init__(
            canned_model_fn(
                classifier_head(
                    n_classes=n_classes,
                    weight_column=weight_column,
                    label_vocabulary=label_vocabulary,
                    loss_reduction=loss_reduction,
                ),
                wide=wide,
            ),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class LinearRegressor(Estimator):
    """Linear regression on feature columns.

    Args:
        feature_columns: Categorical, bucketized and numeric columns.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        label_dimension: Numbers per label.
        weight_column: Feature that holds the examples' weights.
        optimizer: A name, with learning rate 0.2; None for Ftrl with ``min(0.2, 1/sqrt(columns))``; or a function
            from named parameters to an optimizer.
        config: How the job runs.
        warm_start_from: Where the first weights come from; see `Estimator`.
        loss_reduction: How the losses of a batch become the training loss; the sum, as in tf.estimator's v1.
        sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``: the same where columns have one value a row.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        loss_reduction: LossReduction | str = LossReduction.SUM,
        sparse_combiner: Combiner = "sum",
    ) -> None:
        wide = linear_part(feature_columns, optimizer, sparse_combiner)
        super().__init__(
            canned_model_fn(
                regressor_head(
                    label_dimension=label_dimension,
                    weight_column=weight_column,
                    loss_reduction=loss_reduction,
                ),
                wide=wide,
            ),
            model_dir,
            config,
            warm_start_from=warm_start_from,
        )


class LinearEstimator(Estimator):
    """A linear model on feature columns with any head.

    Args:
        head: What the logits mean; see `torch_estimator.heads`.
        feature_columns: Categorical, bucketized and numeric columns.
        model_dir: Where checkpoints, summaries and exports go; see `RunConfig`.
        optimizer: A name, with learning rate 0.2; None for Ftrl with ``min(0.2, 1/sqrt(columns))``; or a function
            from named parameters to an optimizer.
        config: How the job runs.
        sparse_combiner: ``"sum"``, ``"mean"`` or ``"sqrtn"``: the same where columns have one value a row.
        warm_start_from: Where the first weights come from; see `Estimator`.

    Raises:
        InvalidValueError: Where an argument is out of range, or columns do not fit.
        InvalidTypeError: Where an argument is of the wrong type.
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
        wide = linear_part(feature_columns, optimizer, sparse_combiner)
        model_fn = canned_model_fn(check_head(head), wide=wide)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
