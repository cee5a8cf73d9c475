"""Classification into more than two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.heads import classes, signature
from torch_estimator.heads.base import Head, Metrics, check_labels, check_logits, check_name, weight_key
from torch_estimator.heads.labels import class_ids
from torch_estimator.heads.loss_fn import Features, LossFn, UnweightedLoss, unweighted_loss
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.metrics import Buffered, MultiClassMetrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class MultiClassHead(Head):
    """Softmax cross entropy over one logit per class.

    Args:
        n_classes: Number of classes, more than 2.
        weight_column: Feature that holds the examples' weights.
        label_vocabulary: The labels as strings in the order of their ids; without it labels are the ids.
        loss_reduction: How the losses of a batch become the training loss; a member or its name.
        loss_fn: Called with ``labels`` (int64 [N, 1]) and ``logits`` by keyword, and with
            ``features`` and ``loss_reduction`` if it names those; returns losses [N, 1]. Replaces softmax
            cross entropy.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = MultiClassHead(3, label_vocabulary=["cat", "dog", "fox"])
    >>> head.prepare_labels(np.array(["fox", "cat"], dtype=object)).tolist()
    [[2], [0]]
    """

    n_classes: int
    weight_column: str | None = None
    label_vocabulary: Sequence[str] | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    name: str | None = None
    _unweighted_loss: UnweightedLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        reduction = LossReduction.of(self.loss_reduction)
        n_classes = classes.check_n_classes(self.n_classes, more_than=2)
        loss = unweighted_loss(self.loss_fn, reduction, width=1, default=_softmax_cross_entropy)
        checked = {
            "n_classes": n_classes,
            "weight_column": weight_key(self.weight_column),
            "label_vocabulary": classes.check_vocabulary(self.label_vocabulary, n_classes),
            "loss_reduction": reduction,
            "_unweighted_loss": loss,
        }
        for attribute, value in checked.items():
            object.__setattr__(self, attribute, value)

    @property
    def logits_dimension(self) -> int:
        """The number of classes."""
        return self.n_classes

    @property
    def class_names(self) -> list[str]:
        """The label vocabulary, or the ids in decimal."""
        return classes.class_names(self.label_vocabulary, self.n_classes)

    @property
    def prediction_keys(self) -> tuple[str, ...]:
        """Keys of the predictions, in order."""
        return ("logits", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes")

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Returns the class of every row, int64 [N, 1]."""
        return class_ids(labels, n_classes=self.n_classes, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Returns one loss per example, [N, 1]."""
        check_logits(logits, self.n_classes)
        check_labels(labels, logits, 1)
        return self._unweighted_loss(labels, logits, features)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns logits, probabilities and all_class_ids [N, n_classes], and class_ids [N, 1]."""
        check_logits(logits, self.n_classes)
        return {"logits": logits, **classes.class_predictions(logits)}

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Adds classes [N, 1] and all_classes [N, n_classes], arrays of str."""
        return classes.add_class_names(predictions, self.class_names, self.prediction_keys)

    def metrics(self) -> Metrics:
        """Returns fresh `MultiClassMetrics`."""
        return Buffered(MultiClassMetrics(unweighted_loss=self._unweighted_loss, name=self.name))

    def signatures(self) -> dict[str, signature.Signature]:
        """Returns classification (the default) and prediction."""
        return {
            signature.SERVING_DEFAULT: signature.classification(),
            "classification": signature.classification(),
            "predict": signature.prediction(self.prediction_keys),
        }


def _softmax_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.movedim(-1, 1), labels.squeeze(-1), reduction="none")
    return losses.unsqueeze(-1)
