"""The heads of the canned models, by tf.estimator's constructor arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_estimator.heads import BinaryClassHead, LossReduction, MultiClassHead, RegressionHead
from torch_estimator.heads.base import Head


def classifier_head(
    *,
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: LossReduction | str,
) -> Head:
    """A binary head for two classes, a multi-class head for more."""
    if n_classes == 2:
        return BinaryClassHead(
            weight_column=weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=LossReduction.of(loss_reduction),
            pr_summation="trapezoidal",
        )
    return MultiClassHead(
        n_classes,
        weight_column=weight_column,
        label_vocabulary=label_vocabulary,
        loss_reduction=LossReduction.of(loss_reduction),
    )


def regressor_head(*, label_dimension: int, weight_column: Any, loss_reduction: LossReduction | str) -> Head:
    """A regression head with the identity link."""
    return RegressionHead(
        label_dimension=label_dimension, weight_column=weight_column, loss_reduction=LossReduction.of(loss_reduction)
    )
