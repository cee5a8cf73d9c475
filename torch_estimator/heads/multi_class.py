"""Head for more than two classes: softmax cross entropy over one logit per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_estimator.heads.base import check_labels, check_logits
from torch_estimator.heads.classification import ClassificationHead, check_n_classes, class_predictions
from torch_estimator.heads.labels import class_ids
from torch_estimator.heads.loss_fn import LossFn
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.serving import Graph, Prediction, Signature, classification, signatures_of
from torch_estimator.metrics import Buffered, Features, MeanMetrics, Metrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


@dataclass(frozen=True)
class MultiClassHead(ClassificationHead):
    """Head for more than two classes: softmax cross entropy over one logit per class.

    Labels are ``[N]`` or ``[N, 1]``: class ids, or strings of ``label_vocabulary``. Predictions are ``logits`` and
    ``probabilities``, float32 ``[N, n_classes]``; ``class_ids``, int64 ``[N, 1]``, and their names ``classes``; and
    ``all_class_ids`` and ``all_classes`` ``[N, n_classes]``. The metrics are ``average_loss`` and ``accuracy``.

    Args:
        n_classes: Number of classes, more than 2.
        weight_column: Feature that holds the examples' weights.
        label_vocabulary: The labels as strings in the order of their ids. Without it labels are the ids.
        loss_reduction: How the losses of a batch become the training loss: a member or its name.
        loss_fn: Function that replaces the softmax cross entropy. It is called by keyword with ``labels`` (int64
            [N, 1]) and ``logits``, and with ``features`` and ``loss_reduction`` if it has parameters of these names.
            It returns losses [N, 1].
        name: Suffix ``/<name>`` of the metrics' keys.

    Raises:
        InvalidValueError: An argument is out of range.
        InvalidTypeError: An argument is of the wrong type.

    >>> head = te.MultiClassHead(3, label_vocabulary=["cat", "dog", "fox"])
    >>> head.prepare_labels(np.array(["fox", "cat"], dtype=object)).tolist()
    [[2], [0]]
    >>> head.predictions(torch.tensor([[0.0, 2.0, 1.0]]))["class_ids"]
    tensor([[1]])
    """

    n_classes: int
    weight_column: str | None = None
    label_vocabulary: Sequence[str] | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    name: str | None = None

    prediction_keys = ("logits", "probabilities", "class_ids", "classes", "all_class_ids", "all_classes")

    def __post_init__(self) -> None:
        self._set(n_classes=check_n_classes(self.n_classes, more_than=2))
        super().__post_init__()

    @property
    def logits_dimension(self) -> int:
        """Number of logits per example: one for each class."""
        return self.n_classes

    def prepare_labels(self, labels: Labels) -> np.ndarray[Any, Any]:
        """Return the class id of each row, int64 [N, 1]."""
        return class_ids(labels, n_classes=self.n_classes, vocabulary=self.label_vocabulary)

    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Return one loss per example, [N, 1]."""
        check_logits(logits, self.n_classes)
        check_labels(labels, logits, 1)
        if self._user_loss is not None:
            return self._user_loss(labels, logits, features, width=1)
        losses = F.cross_entropy(logits.movedim(-1, 1), labels.squeeze(-1), reduction="none")
        return losses.unsqueeze(-1)

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Return logits, probabilities and all_class_ids [N, n_classes], and class_ids [N, 1]."""
        check_logits(logits, self.n_classes)
        return {"logits": logits, **class_predictions(logits)}

    def metrics(self) -> Metrics:
        """Return new metrics for one evaluation: the average loss and the accuracy."""
        return Buffered(MeanMetrics(["average_loss", "accuracy"], self._loss_and_hits, name=self.name))

    def _loss_and_hits(self, logits: Tensor, labels: Tensor, features: Features | None) -> list[Tensor]:
        """Return the losses and whether the predicted class is right, each [N, 1]."""
        losses = self.unweighted_loss(logits, labels, features)
        right = (logits.argmax(-1, keepdim=True) == labels).to(losses.dtype)
        # The class of NaN is no prediction, and neither right nor wrong.
        return [losses, right.masked_fill(logits.isnan().any(-1, keepdim=True), torch.nan)]

    def signatures(self) -> dict[str, Signature]:
        """Return the signatures: classification (the default) and prediction."""
        return signatures_of(self.prediction_keys, classification=classification())

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the computation of the predictions to an ONNX graph; see `Head.lower`."""
        probabilities = graph.op("Softmax", logits.tensor, axis=-1)
        class_ids = graph.op("ArgMax", logits.tensor, axis=1, keepdims=1)
        return {
            "logits": logits,
            "probabilities": Prediction(tensor=probabilities, dtype="DT_FLOAT", row_shape=(self.n_classes,)),
            **self.lower_class(graph, class_ids),
            **self.lower_all_classes(graph, class_ids),
        }
