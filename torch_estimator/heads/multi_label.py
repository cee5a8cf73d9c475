"""Head for examples with any number of classes: sigmoid cross entropy over one logit per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.base import check_labels, check_logits
from torch_estimator.heads.classification import ClassificationHead, check_n_classes, check_thresholds
from torch_estimator.heads.loss_fn import LossFn
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.multi_hot import multi_hot
from torch_estimator.heads.serving import Graph, Prediction, Signature, classification, signatures_of
from torch_estimator.metrics import (
    AreaUnderCurves,
    Buffered,
    Features,
    Metrics,
    ThresholdRates,
    WeightedMeans,
    align_weights,
    metric_key,
)

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class MultiLabelHead(ClassificationHead):
    """Head for examples with any number of classes: a sigmoid cross entropy for each class, averaged over classes.

    Labels are lists of class ids or of strings of ``label_vocabulary``; arrays of them, padded with -1 or ``''``; or
    multi-hot, ``[N, n_classes]``. Predictions are ``logits`` and ``probabilities``, float32 ``[N, n_classes]``, and
    ``classes``, the names of all classes. The metrics are ``average_loss``, ``auc`` and ``auc_precision_recall``.

    Args:
        n_classes: Number of classes, more than 1.
        weight_column: Feature that holds the examples' weights.
        thresholds: Probabilities between 0 and 1 at which accuracy, precision and recall are reported as well.
        label_vocabulary: The labels as strings in the order of their ids.
        loss_reduction: How the losses of a batch become the training loss: a member or its name.
        loss_fn: Function that replaces the sigmoid cross entropy. It is called by keyword with ``labels`` (float32
            [N, n_classes], multi-hot) and ``logits``, and with ``features`` and ``loss_reduction`` if it has parameters
            of these names. It returns losses [N, 1].
        classes_for_class_based_metrics: Ids or, with a vocabulary, strings of the classes that get their own metrics
            ``probability_mean``, ``auc`` and ``auc_precision_recall``. The suffix of their keys is ``/class<id>``, or
            ``/<string>`` with a vocabulary.
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = te.MultiLabelHead(3, label_vocabulary=["cat", "dog", "fox"])
    >>> head.prepare_labels(np.array([["fox", "cat"], ["dog", ""]])).tolist()
    [[1, 0, 1], [0, 1, 0]]
    >>> head.predictions(torch.zeros(1, 3))["probabilities"]
    tensor([[0.5000, 0.5000, 0.5000]])
    """

    n_classes: int
    weight_column: str | None = None
    thresholds: Sequence[float] | None = None
    label_vocabulary: Sequence[str] | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    classes_for_class_based_metrics: Sequence[int | str] | None = None
    name: str | None = None

    prediction_keys = ("logits", "probabilities", "classes")

    def __post_init__(self) -> None:
        self._set(n_classes=check_n_classes(self.n_classes, more_than=1), thresholds=check_thresholds(self.thresholds))
        super().__post_init__()
        chosen = _class_ids(self.classes_for_class_based_metrics, self.n_classes, self.label_vocabulary)
        self._set(classes_for_class_based_metrics=chosen)

    @property
    def logits_dimension(self) -> int:
        """Number of logits per example: one for each class."""
        return self.n_classes

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Convert labels (lists, padded arrays, or multi-hot labels) to multi-hot labels [N, n_classes].

        The dtype is float32 if labels are floats, and otherwise uint8, which takes an eighth of the memory of float64.
        This matters with thousands of classes.
        """
        return multi_hot(labels, n_classes=self.n_classes, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Return one loss per example, [N, 1]."""
        check_logits(logits, self.n_classes)
        check_labels(labels, logits, self.n_classes)
        labels = labels.to(logits.dtype)
        if self._user_loss is not None:
            return self._user_loss(labels, logits, features, width=1)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1, keepdim=True)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Return logits and probabilities, [N, n_classes]."""
        check_logits(logits, self.n_classes)
        return {"logits": logits, "probabilities": torch.sigmoid(logits)}

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Add ``classes`` [N, n_classes]: the names of all classes, in the order of their ids."""
        names = np.array(self.class_names, dtype=object)
        rows = len(next(iter(predictions.values())))
        return {**predictions, "classes": np.broadcast_to(names, (rows, self.n_classes))}

    def metrics(self) -> Metrics:
        """Return new metrics for one evaluation: loss, areas under curves, and rates at thresholds."""
        return Buffered(MultiLabelMetrics(self))

    def signatures(self) -> dict[str, Signature]:
        """Return the signatures: classification (the default) and prediction."""
        return signatures_of(self.prediction_keys, classification=classification(classes="classes"))

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the computation of the predictions to an ONNX graph; see `Head.lower`."""
        probabilities = graph.op("Sigmoid", logits.tensor)
        return {
            "logits": logits,
            "probabilities": Prediction(tensor=probabilities, dtype="DT_FLOAT", row_shape=(self.n_classes,)),
            "classes": self.lower_all_classes(graph, probabilities)["all_classes"],
        }


class MultiLabelMetrics:
    """Metrics of a multi-label head: over all classes together, and separately for classes that the user chose."""

    def __init__(self, head: MultiLabelHead) -> None:
        self._head = head
        self._loss = WeightedMeans(1)
        self._areas = AreaUnderCurves()
        self._rates = ThresholdRates(head.thresholds or ())
        chosen = [int(one) for one in head.classes_for_class_based_metrics or ()]
        names = head.label_vocabulary
        classes = {f"class{one}" if names is None else names[one]: one for one in chosen}
        self._by_class = _MetricsByClass(classes) if classes else None

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Add a batch: logits and labels [N, classes], weights [N], [N, 1] or None for ones."""
        labels = labels.to(logits.dtype)
        losses = self._head.unweighted_loss(logits, labels, features)
        self._loss.update(losses, weights=weights)
        probabilities = torch.sigmoid(logits)
        if weights is not None:
            weights = align_weights(weights, losses).double().expand_as(probabilities)
        flat = None if weights is None else weights.flatten()
        self._areas.update(probabilities.flatten(), labels.flatten(), flat)
        self._rates.update(probabilities.flatten(), labels.flatten(), flat)
        if self._by_class is not None:
            self._by_class.update(probabilities, labels, weights)

    def compute(self) -> dict[str, float]:
        """Return the metrics over all batches, or zeros if there were no batches."""
        metrics = {
            "average_loss": self._loss.compute()[0],
            "auc": self._areas.roc(),
            "auc_precision_recall": self._areas.precision_recall(),
            **self._rates.metrics(),
        }
        if self._by_class is not None:
            metrics |= self._by_class.compute()
        return {metric_key(key, self._head.name): value for key, value in metrics.items()}


class _MetricsByClass:
    """Mean probability and areas under curves, separately for each class that the user chose.

    `classes` maps the suffix of the keys to the id of the class.
    """

    def __init__(self, classes: Mapping[str, int]) -> None:
        self._suffixes = list(classes)
        self._ids = torch.tensor(list(classes.values()), dtype=torch.int64)
        self._areas = AreaUnderCurves(curves=len(classes))
        self._totals = torch.zeros(len(classes), dtype=torch.float64)
        self._weight = torch.zeros((), dtype=torch.float64)

    def update(self, probabilities: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Add a batch of probabilities, labels and weights (None for ones), each [N, n_classes]."""
        self._ids = self._ids.to(probabilities.device)
        chosen, labels = probabilities[:, self._ids], labels[:, self._ids]
        weights = torch.ones_like(chosen, dtype=torch.float64) if weights is None else weights[:, self._ids]
        self._areas.update(chosen, labels, weights)
        self._totals = self._totals.to(chosen.device) + (chosen * weights).sum(0)
        # Add up the weights of one class only. A weight belongs to an example, so all classes have the same weights.
        self._weight = self._weight.to(chosen.device) + weights[:, 0].sum()

    def compute(self) -> dict[str, float]:
        """Return the metrics of each chosen class, by key."""
        weight = float(self._weight)
        means = [total / weight if weight else 0.0 for total in self._totals.tolist()]
        by_key = {
            "probability_mean": means,
            "auc": self._areas.roc_by_curve(),
            "auc_precision_recall": self._areas.precision_recall_by_curve(),
        }
        return {
            f"{key}/{suffix}": values[place]
            for place, suffix in enumerate(self._suffixes)
            for key, values in by_key.items()
        }


def _class_ids(
    chosen: Sequence[int | str] | None, n_classes: int, vocabulary: Sequence[str] | None
) -> tuple[int, ...] | None:
    """Check the classes that the user chose for separate metrics; return their ids."""
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
