"""Classification into any number of classes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads import classes, signature
from torch_estimator.heads.base import Head, Metrics, check_labels, check_logits, check_name, weight_key
from torch_estimator.heads.loss_fn import Features, LossFn, UnweightedLoss, unweighted_loss
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.multi_hot import multi_hot
from torch_estimator.heads.thresholds import check_thresholds
from torch_estimator.metrics import Buffered, MultiLabelMetrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class MultiLabelHead(Head):
    """Sigmoid cross entropy over one logit per class, averaged over the classes; an example may have several classes.

    Args:
        n_classes: Number of classes, more than 1.
        weight_column: Feature that holds the examples' weights.
        thresholds: Probabilities between 0 and 1 at which accuracy, precision and recall are reported, too.
        label_vocabulary: The labels as strings in the order of their ids.
        loss_reduction: How the losses of a batch become the training loss; a member or its name.
        loss_fn: Called with ``labels`` (float32 [N, n_classes], multi-hot) and ``logits`` by keyword, and with
            ``features`` and ``loss_reduction`` if it names those; returns losses [N, 1]. Replaces sigmoid
            cross entropy.
        classes_for_class_based_metrics: Ids or, with a vocabulary, strings of the classes that have metrics of their
            own: ``probability_mean``, ``auc`` and ``auc_precision_recall``, with the suffix ``/class<id>``, or
            ``/<string>`` with a vocabulary.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = MultiLabelHead(3, label_vocabulary=["cat", "dog", "fox"])
    >>> head.prepare_labels(np.array([["fox", "cat"], ["dog", ""]])).tolist()
    [[1, 0, 1], [0, 1, 0]]
    """

    n_classes: int
    weight_column: str | None = None
    thresholds: Sequence[float] | None = None
    label_vocabulary: Sequence[str] | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    classes_for_class_based_metrics: Sequence[int | str] | None = None
    name: str | None = None
    _unweighted_loss: UnweightedLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        reduction = LossReduction.of(self.loss_reduction)
        n_classes = classes.check_n_classes(self.n_classes, more_than=1)
        vocabulary = classes.check_vocabulary(self.label_vocabulary, n_classes)
        checked = {
            "n_classes": n_classes,
            "weight_column": weight_key(self.weight_column),
            "thresholds": check_thresholds(self.thresholds),
            "label_vocabulary": vocabulary,
            "loss_reduction": reduction,
            "classes_for_class_based_metrics": _class_ids(self.classes_for_class_based_metrics, n_classes, vocabulary),
            "_unweighted_loss": unweighted_loss(self.loss_fn, reduction, width=1, default=_sigmoid_cross_entropy),
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
        return ("logits", "probabilities", "classes")

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Returns which classes each row has, [N, n_classes], of lists, padded arrays or multi-hot ones.

        uint8, an eighth of a float64's memory where there are thousands of classes; float32 where labels are floats.
        """
        return multi_hot(labels, n_classes=self.n_classes, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Returns one loss per example, [N, 1]."""
        check_logits(logits, self.n_classes)
        check_labels(labels, logits, self.n_classes)
        return self._unweighted_loss(labels.to(logits.dtype), logits, features)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns logits and probabilities, [N, n_classes]."""
        check_logits(logits, self.n_classes)
        return {"logits": logits, "probabilities": torch.sigmoid(logits)}

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Adds classes [N, n_classes]: the names of all classes, in the order of the probabilities."""
        names = np.array(self.class_names, dtype=object)
        rows = len(next(iter(predictions.values())))
        return {**predictions, "classes": np.broadcast_to(names, (rows, self.n_classes))}

    def metrics(self) -> Metrics:
        """Returns fresh `MultiLabelMetrics`."""
        chosen = [int(one) for one in self.classes_for_class_based_metrics or ()]
        names = self.label_vocabulary
        return Buffered(
            MultiLabelMetrics(
                unweighted_loss=self._unweighted_loss,
                thresholds=self.thresholds or (),
                classes={f"class{one}" if names is None else names[one]: one for one in chosen},
                name=self.name,
            )
        )

    def signatures(self) -> dict[str, signature.Signature]:
        """Returns classification (the default) and prediction."""
        classification = signature.classification(classes="classes")
        return {
            signature.SERVING_DEFAULT: classification,
            "classification": classification,
            "predict": signature.prediction(self.prediction_keys),
        }


def _sigmoid_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1, keepdim=True)


def _class_ids(
    chosen: Sequence[int | str] | None, n_classes: int, vocabulary: Sequence[str] | None
) -> tuple[int, ...] | None:
    if chosen is None:
        return None
    if not isinstance(chosen, (list, tuple, np.ndarray)):
        raise InvalidTypeError(f"classes_for_class_based_metrics must be a list, but got {chosen!r}.")
    ids = tuple(_class_id(one, n_classes, vocabulary) for one in chosen)
    if len(set(ids)) < len(ids):
        raise InvalidValueError(f"classes_for_class_based_metrics must not repeat a class, but got {list(chosen)}.")
    return ids


def _class_id(chosen: Any, n_classes: int, vocabulary: Sequence[str] | None) -> int:
    if isinstance(chosen, str):
        if vocabulary is None:
            raise InvalidValueError(
                f"classes_for_class_based_metrics has the string {chosen!r}, which needs a label_vocabulary; "
                "give class ids."
            )
        if chosen not in vocabulary:
            raise InvalidValueError(
                f"classes_for_class_based_metrics has {chosen!r}, which is not in label_vocabulary."
            )
        return vocabulary.index(chosen)
    if isinstance(chosen, bool) or not isinstance(chosen, (int, np.integer)):
        raise InvalidTypeError(f"classes_for_class_based_metrics must hold class ids or strings, but has {chosen!r}.")
    if not 0 <= chosen < n_classes:
        raise InvalidValueError(f"classes_for_class_based_metrics must be from 0 to {n_classes - 1}, but has {chosen}.")
    return int(chosen)
