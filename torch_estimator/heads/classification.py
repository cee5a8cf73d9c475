"""Base class of classification heads. It handles the names of classes in arguments, predictions and exports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.base import Head
from torch_estimator.heads.serving import Graph, Prediction


class ClassificationHead(Head):
    """Head whose labels and predictions are classes.

    A subclass has the settings below as dataclass fields or as class attributes.

    Attributes:
        n_classes: Number of classes, checked by the subclass.
        label_vocabulary: Strings of the classes in the order of their ids; None if labels are ids.

    >>> head = te.MultiClassHead(3, label_vocabulary=["cat", "dog", "fox"])
    >>> isinstance(head, te.heads.ClassificationHead), head.class_names
    (True, ['cat', 'dog', 'fox'])
    >>> head.decode({"class_ids": np.array([[2], [0]])})["classes"].tolist()
    [['fox'], ['cat']]
    """

    n_classes: int
    label_vocabulary: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the label vocabulary and the settings that all heads have."""
        super().__post_init__()
        self._set(label_vocabulary=check_vocabulary(self.label_vocabulary, self.n_classes))

    @property
    def class_names(self) -> list[str]:
        """Names of the classes: the label vocabulary, or the class ids as decimal strings."""
        if self.label_vocabulary is not None:
            return list(self.label_vocabulary)
        return [str(i) for i in range(self.n_classes)]

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Add ``classes`` and ``all_classes``: the names of the ids in ``class_ids`` and ``all_class_ids``.

        The names are arrays of str, of the shape of the ids. Predictions are returned in the order of
        `prediction_keys`.
        """
        table = np.array(self.class_names, dtype=object)
        named = dict(predictions)
        for names, ids in (("classes", "class_ids"), ("all_classes", "all_class_ids")):
            if ids in predictions:
                named[names] = table[predictions[ids]]
        return {key: named[key] for key in self.prediction_keys if key in named}

    def lower_class(self, graph: Graph, class_ids: str) -> dict[str, Prediction]:
        """Add the look-up of the names of predicted classes to an ONNX graph.

        Args:
            graph: Graph to which nodes are added.
            class_ids: Tensor with the id of the predicted class, int64 [N, 1].

        Returns:
            The predictions ``class_ids`` and ``classes``, each [N, 1].
        """
        names = graph.constant(np.array(self.class_names, dtype=object), hint="class_names")
        return {
            "class_ids": Prediction(tensor=class_ids, dtype="DT_INT64", row_shape=(1,)),
            "classes": Prediction(
                tensor=graph.op("Gather", names, class_ids, axis=0), dtype="DT_STRING", row_shape=(1,)
            ),
        }

    def lower_all_classes(self, graph: Graph, rows_of: str) -> dict[str, Prediction]:
        """Add the ids and the names of all classes to an ONNX graph, repeated for every example.

        Args:
            graph: Graph to which nodes are added.
            rows_of: Any tensor [N, ...], which gives the number of examples.

        Returns:
            The predictions ``all_class_ids`` and ``all_classes``, each [N, n_classes].
        """
        batch = graph.op("Shape", rows_of, start=0, end=1)
        shape = graph.op("Concat", batch, graph.constant([self.n_classes], np.int64), axis=0)
        ids = graph.op("Expand", graph.constant([list(range(self.n_classes))], np.int32), shape)
        names = graph.constant(np.array(self.class_names, dtype=object), hint="class_names")
        row_shape = (self.n_classes,)
        return {
            "all_class_ids": Prediction(tensor=ids, dtype="DT_INT32", row_shape=row_shape),
            "all_classes": Prediction(
                tensor=graph.op("Gather", names, ids, axis=0), dtype="DT_STRING", row_shape=row_shape
            ),
        }


def class_predictions(logits: Tensor) -> dict[str, Tensor]:
    """Return the probabilities and class ids of examples that belong to one of D classes, by logits, float32 [N, D].

    They are ``probabilities`` [N, D], ``class_ids`` int64 [N, 1] and ``all_class_ids`` int32 [N, D].
    """
    ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    return {
        "probabilities": torch.softmax(logits, -1),
        "class_ids": logits.argmax(-1, keepdim=True),
        "all_class_ids": ids.repeat(logits.shape[0], 1),
    }


def check_n_classes(n_classes: int, *, more_than: int) -> int:
    """Check a number of classes and return it as an int."""
    if isinstance(n_classes, bool) or not isinstance(n_classes, (int, np.integer)):
        raise InvalidTypeError(f"n_classes must be an integer of at least {more_than + 1}, but got {n_classes!r}.")
    if n_classes <= more_than:
        advice = "; BinaryClassHead is the one for 2 classes" if n_classes == 2 else ""
        least = 2 if n_classes < 2 else more_than + 1
        raise InvalidValueError(f"n_classes must be at least {least}, but got {n_classes}{advice}.")
    return int(n_classes)


def check_vocabulary(vocabulary: Sequence[str] | None, n_classes: int) -> tuple[str, ...] | None:
    """Check a label vocabulary and return it as a tuple."""
    if vocabulary is None:
        return None
    if not isinstance(vocabulary, (list, tuple)):
        raise InvalidTypeError(f"label_vocabulary should be a list or a tuple, but got {vocabulary!r}.")
    for label in vocabulary:
        if not isinstance(label, str):
            raise InvalidTypeError(f"label_vocabulary must hold strings, but it has {label!r}.")
    if len(vocabulary) != n_classes:
        raise InvalidValueError(
            f"label_vocabulary must have one string for each of the {n_classes} classes, but it has "
            f"{len(vocabulary)}: {list(vocabulary)}."
        )
    if len(set(vocabulary)) != n_classes:
        raise InvalidValueError(f"label_vocabulary must not repeat a label, but got {list(vocabulary)}.")
    return tuple(vocabulary)


def check_thresholds(thresholds: Sequence[float] | None) -> tuple[float, ...]:
    """Check the thresholds of accuracy, precision and recall, and return them as a tuple of floats."""
    if thresholds is not None and not isinstance(thresholds, Iterable):
        raise InvalidTypeError(f"thresholds must be a list of numbers between 0 and 1, but got {thresholds!r}.")
    checked = []
    for threshold in () if thresholds is None else thresholds:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.number)):
            raise InvalidTypeError(f"thresholds must be numbers between 0 and 1, but got {threshold!r}.")
        if not 0.0 < threshold < 1.0:
            raise InvalidValueError(f"thresholds must be in (0, 1), but got {threshold:g}.")
        checked.append(float(threshold))
    return tuple(checked)
