"""Head for two classes: sigmoid cross entropy over one logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.heads.base import check_labels, check_logits
from torch_estimator.heads.classification import ClassificationHead, check_thresholds, class_predictions
from torch_estimator.heads.labels import binary_labels
from torch_estimator.heads.loss_fn import LossFn
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.serving import Graph, Prediction, Signature, classification, regression, signatures_of
from torch_estimator.metrics import (
    AreaUnderCurves,
    Buffered,
    Features,
    Metrics,
    Summation,
    ThresholdRates,
    WeightedMeans,
    metric_key,
)

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class BinaryClassHead(ClassificationHead):
    """Head for two classes: sigmoid cross entropy over one logit per example.

    Labels are ``[N]`` or ``[N, 1]``: 0 and 1, numbers between them, or strings of ``label_vocabulary``. Predictions are
    ``logits`` and ``logistic`` (the probability of the second class), float32 ``[N, 1]``; ``probabilities``, float32
    ``[N, 2]``; ``class_ids``, int64 ``[N, 1]``, and their names ``classes``; and ``all_class_ids`` and ``all_classes``
    ``[N, 2]``.

    The metrics are ``average_loss``, ``accuracy``, ``precision``, ``recall``, ``auc``, ``auc_precision_recall``,
    ``accuracy_baseline``, ``prediction/mean`` and ``label/mean``.

    Args:
        weight_column: Feature that holds the examples' weights.
        thresholds: Probabilities between 0 and 1 at which accuracy, precision and recall are reported as well.
        label_vocabulary: The two labels as strings, the negative one first. Without it labels are 0 and 1.
        loss_reduction: How the losses of a batch become the training loss: a member or its name.
        loss_fn: Function that replaces the sigmoid cross entropy. It is called by keyword with ``labels``
            (float32 [N, 1]) and ``logits``, and with ``features`` and ``loss_reduction`` if it has parameters of these
            names. It returns losses [N, 1].
        name: Suffix ``/<name>`` of the metrics' keys.
        pr_summation: How the area under the precision-recall curve is summed up: ``"interpolation"`` as in
            tf.estimator's v2 heads, or ``"trapezoidal"`` as in its v1 classes.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = te.BinaryClassHead(label_vocabulary=["<=50K", ">50K"])
    >>> head.prepare_labels(np.array([">50K", "<=50K"], dtype=object)).tolist()
    [[1.0], [0.0]]
    >>> logits, labels = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.0]])
    >>> head.loss(logits, labels)
    tensor(0.4100)
    >>> head.predictions(logits)["probabilities"]
    tensor([[0.1192, 0.8808],
            [0.5000, 0.5000]])
    """

    weight_column: str | None = None
    thresholds: Sequence[float] | None = None
    label_vocabulary: Sequence[str] | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    name: str | None = None
    pr_summation: Summation = "interpolation"

    n_classes = 2
    logits_dimension = 1
    prediction_keys = ("logits", "logistic", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(thresholds=check_thresholds(self.thresholds))

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Return the labels as float32 [N, 1]: 0 or 1. Numeric labels may also lie between 0 and 1."""
        return binary_labels(labels, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Return one loss per example, [N, 1]."""
        check_logits(logits, 1)
        check_labels(labels, logits, 1)
        if self._user_loss is not None:
            return self._user_loss(labels, logits, features, width=1)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Return logits, logistic and class_ids [N, 1], probabilities and all_class_ids [N, 2]."""
        check_logits(logits, 1)
        both = torch.cat((torch.zeros_like(logits), logits), -1)
        return {"logits": logits, "logistic": torch.sigmoid(logits), **class_predictions(both)}

    def metrics(self) -> Metrics:
        """Return new metrics for one evaluation: loss, accuracy, precision, recall and areas under curves."""
        return Buffered(BinaryMetrics(self))

    def signatures(self) -> dict[str, Signature]:
        """Return the signatures: classification (the default), regression of the probability, and prediction."""
        return signatures_of(self.prediction_keys, classification=classification(), regression=regression("logistic"))

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the computation of the predictions to an ONNX graph; see `Head.lower`."""
        logistic = graph.op("Sigmoid", logits.tensor)
        negative = graph.op("Sigmoid", graph.op("Neg", logits.tensor))
        # Test logit <= 0 for class 0 instead of logit > 0 for class 1.
        # NaN then gives class 1, as with torch's argmax.
        at_most_0 = graph.op("LessOrEqual", logits.tensor, graph.constant(0, np.float32))
        class_ids = graph.op("Where", at_most_0, graph.constant(0, np.int64), graph.constant(1, np.int64))
        probabilities = graph.op("Concat", negative, logistic, axis=1)
        return {
            "logits": logits,
            "logistic": Prediction(tensor=logistic, dtype="DT_FLOAT", row_shape=(1,)),
            "probabilities": Prediction(tensor=probabilities, dtype="DT_FLOAT", row_shape=(2,)),
            **self.lower_class(graph, class_ids),
            **self.lower_all_classes(graph, class_ids),
        }


class BinaryMetrics:
    """Metrics of a binary head: loss, accuracy, precision, recall, areas under curves, and means."""

    def __init__(self, head: BinaryClassHead) -> None:
        self._head = head
        self._means = WeightedMeans(3)
        # Compare the logit with 0 instead of the probability with 0.5.
        # In float32, the probability of a tiny positive logit is exactly 0.5.
        self._rates = ThresholdRates([0.0])
        self._threshold_rates = ThresholdRates(head.thresholds or ())
        self._areas = AreaUnderCurves(head.pr_summation)

    @torch.no_grad()
    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Add a batch: logits and labels [N, 1], weights [N], [N, 1] or None for ones."""
        probabilities = torch.sigmoid(logits)
        losses = self._head.unweighted_loss(logits, labels, features)
        self._means.update(losses, labels, probabilities, weights=weights)
        labels, probabilities = labels.flatten(), probabilities.flatten()
        weights = None if weights is None else weights.flatten().double()
        self._rates.update(logits.flatten(), labels, weights)
        self._areas.update(probabilities, labels, weights)
        self._threshold_rates.update(probabilities, labels, weights)

    def compute(self) -> dict[str, float]:
        """Return the metrics over all batches, or zeros (a baseline of 1) if there were no batches."""
        (rates,) = self._rates.compute()
        average_loss, label_mean, prediction_mean = self._means.compute()
        metrics = {
            "average_loss": average_loss,
            "accuracy": rates.accuracy,
            "precision": rates.precision,
            "recall": rates.recall,
            "prediction/mean": prediction_mean,
            "label/mean": label_mean,
            # Without examples, or if all weights are zero, the mean is 0 and this is 1, as in TensorFlow.
            "accuracy_baseline": max(label_mean, 1.0 - label_mean),
            "auc": self._areas.roc(),
            "auc_precision_recall": self._areas.precision_recall(),
            **self._threshold_rates.metrics(),
        }
        return {metric_key(key, self._head.name): value for key, value in metrics.items()}
