"""Regression of counts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.errors import InvalidTypeError
from torch_estimator.heads.labels import check_range
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.regression import RegressionHead

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


class PoissonRegressionHead(RegressionHead):
    """Negative log likelihood of a Poisson distribution, one logit per target: the log of its mean.

    Predictions are ``predictions``, the means, and ``logits``.

    Args:
        label_dimension: Targets per example.
        weight_column: Feature that holds the examples' weights.
        loss_reduction: How the losses of a batch become the training loss; a member or its name.
        compute_full_loss: Whether the loss has the term of the labels alone (Stirling's approximation of log of the
            factorial), too, which changes no gradient.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> PoissonRegressionHead().predictions(torch.zeros(1, 1))["predictions"].tolist()
    [[1.0]]
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: str | None = None,
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        if not isinstance(compute_full_loss, bool):
            raise InvalidTypeError(f"compute_full_loss must be True or False, but got {compute_full_loss!r}.")
        super().__init__(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            loss_fn=partial(_poisson_loss, full=compute_full_loss),
            inverse_link_fn=torch.exp,
            name=name,
        )

    @property
    def rows_are_independent(self) -> bool:
        """Whether loss, predictions and metrics see every example by itself: here they do."""
        return type(self) is PoissonRegressionHead

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Returns the targets, float32 [N, label_dimension]; a negative one is a `RowError`."""
        return check_range(super().prepare_labels(labels), least=0)


def _poisson_loss(labels: Tensor, logits: Tensor, *, full: bool) -> Tensor:
    return F.poisson_nll_loss(logits, labels, log_input=True, full=full, reduction="none")
