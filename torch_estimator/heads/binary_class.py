"""Classification into two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.heads import classes, signature
from torch_estimator.heads.base import Head, Metrics, check_labels, check_logits, check_name, weight_key
from torch_estimator.heads.labels import binary_labels
from torch_estimator.heads.loss_fn import Features, LossFn, UnweightedLoss, unweighted_loss
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.thresholds import check_thresholds
from torch_estimator.metrics import BinaryMetrics, Buffered
from torch_estimator.metrics.area import Summation

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class BinaryClassHead(Head):
    """Sigmoid cross entropy over one logit per example.

    Args:
        weight_column: Feature that holds the examples' weights.
        thresholds: Probabilities between 0 and 1 at which accuracy, precision and recall are reported, too.
        label_vocabulary: The two labels as strings, the negative one first; without it labels are 0 and 1.
        loss_reduction: How the losses of a batch become the training loss; a member or its name.
        loss_fn: Called with ``labels`` (float32 [N, 1]) and ``logits`` by keyword, and with
            ``features`` and ``loss_reduction`` if it names those; returns losses [N, 1]. Replaces sigmoid
            cross entropy.
        name: Suffix ``/<name>`` of the metrics' keys.
        pr_summation: How ``auc_precision_recall`` is summed up: ``"interpolation"`` as tf.estimator's v2 heads did, or
            ``"trapezoidal"`` as its v1 classes did.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = BinaryClassHead(label_vocabulary=["<=50K", ">50K"])
    >>> head.prepare_labels(np.array([">50K", "<=50K"], dtype=object)).tolist()
    [[1.0], [0.0]]
    >>> head.predictions(torch.tensor([[0.0]]))["probabilities"].tolist()
    [[0.5, 0.5]]
    """

    weight_column: str | None = None
    thresholds: Sequence[float] | None = None
    label_vocabulary: Sequence[str] | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    name: str | None = None
    pr_summation: Summation = "interpolation"
    _unweighted_loss: UnweightedLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        reduction = LossReduction.of(self.loss_reduction)
        loss = unweighted_loss(self.loss_fn, reduction, width=1, default=_sigmoid_cross_entropy)
        checked = {
            "weight_column": weight_key(self.weight_column),
            "thresholds": check_thresholds(self.thresholds),
            "label_vocabulary": classes.check_vocabulary(self.label_vocabulary, 2),
            "loss_reduction": reduction,
            "_unweighted_loss": loss,
        }
        for attribute, value in checked.items():
            object.__setattr__(self, attribute, value)

    @property
    def logits_dimension(self) -> int:
        """1: the logit of the second class."""
        return 1

    @property
    def class_names(self) -> list[str]:
        """The label vocabulary, or ``["0", "1"]``."""
        return classes.class_names(self.label_vocabulary, 2)

    @property
    def prediction_keys(self) -> tuple[str, ...]:
        """Keys of the predictions, in order."""
        return (
            "logits",
            "logistic",
            "probabilities",
            "class_ids",
            "classes",
            "all_class_ids",
            "all_classes",
        )

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Returns float32 [N, 1] with 0 and 1, or the number between that a numeric label is."""
        return binary_labels(labels, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Returns one loss per example, [N, 1]."""
        check_logits(logits, 1)
        check_labels(labels, logits, 1)
        return self._unweighted_loss(labels, logits, features)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns logits, logistic, class_ids [N, 1], probabilities and all_class_ids [N, 2]."""
        check_logits(logits, 1)
        both = torch.cat((torch.zeros_like(logits), logits), -1)
        return {
            "logits": logits,
            "logistic": torch.sigmoid(logits),
            **classes.class_predictions(both),
        }

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Adds classes [N, 1] and all_classes [N, 2], arrays of str."""
        return classes.add_class_names(predictions, self.class_names, self.prediction_keys)

    def metrics(self) -> Metrics:
        """Returns fresh `BinaryMetrics`."""
        return Buffered(
            BinaryMetrics(
                unweighted_loss=self._unweighted_loss,
                thresholds=self.thresholds or (),
                name=self.name,
                summation=self.pr_summation,
            )
        )

    def signatures(self) -> dict[str, signature.Signature]:
        """Returns classification (the default), regression on the probability, and prediction."""
        return {
            signature.SERVING_DEFAULT: signature.classification(),
            "classification": signature.classification(),
            "regression": signature.regression("logistic"),
            "predict": signature.prediction(self.prediction_keys),
        }


def _sigmoid_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
