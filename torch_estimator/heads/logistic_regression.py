"""Regression of probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.heads.labels import check_range
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.regression import RegressionHead

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


class LogisticRegressionHead(RegressionHead):
    """Sigmoid cross entropy over one logit per example, labels being anything from 0 to 1; no classes.

    Predictions are ``predictions``, the probabilities, and ``logits``.

    Args:
        weight_column: Feature that holds the examples' weights.
        loss_reduction: How the losses of a batch become the training loss; a member or its name.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> LogisticRegressionHead().predictions(torch.zeros(1, 1))["predictions"].tolist()
    [[0.5]]
    """

    def __init__(
        self,
        weight_column: str | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        name: str | None = None,
    ) -> None:
        super().__init__(
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            loss_fn=_logistic_loss,
            inverse_link_fn=torch.sigmoid,
            name=name,
        )

    @property
    def rows_are_independent(self) -> bool:
        """Whether loss, predictions and metrics see every example by itself: here they do."""
        return type(self) is LogisticRegressionHead

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Returns the targets, float32 [N, 1]; one outside of 0 to 1 is a `RowError`."""
        return check_range(super().prepare_labels(labels), least=0, most=1)


def _logistic_loss(labels: Tensor, logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
