"""Base class of all heads, and checks of arguments that several heads use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.loss_fn import LossFn, UserLoss
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.serving import SERVING_DEFAULT, Graph, Prediction, Signature, signatures_of
from torch_estimator.metrics import Buffered, Features, MeanMetrics, Metrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


class Head(ABC):
    """Base class of heads. A head computes loss, metrics and predictions from logits, and exports the predictions.

    A subclass is usually a frozen dataclass, whose fields are the attributes below that users may set. `__post_init__`
    checks these fields. A subclass must define `logits_dimension`, `prediction_keys`, `prepare_labels`,
    `unweighted_loss` and `predictions`. The other methods have defaults: the only metric is the average loss, the only
    signature is ``predict``, and torch's exporter adds `predictions` to an exported graph.

    Attributes:
        name: Suffix ``/<name>`` of the metrics' keys, or None.
        weight_column: Feature that holds the examples' weights, or None.
        loss_reduction: How the losses of a batch become the training loss: a `LossReduction` or its name, which
            `__post_init__` converts.
        loss_fn: Function of the user that replaces the head's loss, or None.

    >>> from dataclasses import dataclass
    >>> from torch_estimator.heads.labels import numeric_labels
    >>> @dataclass(frozen=True)
    ... class HuberHead(te.heads.Head):
    ...     weight_column: str | None = None
    ...     logits_dimension = 1
    ...     prediction_keys = ("predictions",)
    ...     def prepare_labels(self, labels):
    ...         return numeric_labels(labels, dimension=1)
    ...     def unweighted_loss(self, logits, labels, features=None):
    ...         return torch.nn.functional.huber_loss(logits, labels, reduction="none")
    ...     def predictions(self, logits):
    ...         return {"predictions": logits}
    >>> HuberHead().loss(torch.tensor([[0.0]]), torch.tensor([[3.0]]))
    tensor(2.5000)
    """

    name: str | None = None
    weight_column: str | None = None
    loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE
    loss_fn: LossFn | None = None
    _user_loss: UserLoss | None = None

    def __post_init__(self) -> None:
        """Check the settings that all heads have. Dataclasses call this at the end of ``__init__``."""
        check_name(self.name)
        reduction = LossReduction.of(self.loss_reduction)
        self._set(
            weight_column=weight_key(self.weight_column),
            loss_reduction=reduction,
            _user_loss=None if self.loss_fn is None else UserLoss(self.loss_fn, reduction),
        )

    def _set(self, **values: Any) -> None:
        """Set attributes of this frozen dataclass. Only the head's ``__init__`` or `__post_init__` may call this."""
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    @property
    @abstractmethod
    def logits_dimension(self) -> int:
        """Number of logits per example that the model must compute."""

    @property
    @abstractmethod
    def prediction_keys(self) -> tuple[str, ...]:
        """Keys of the predictions that `decode` returns, in order."""

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their ids; None for a head without classes."""
        return None

    @property
    def weight_columns(self) -> Mapping[str | None, str]:
        """Names of the features that hold examples' weights, by head. A single head has the key None."""
        return {} if self.weight_column is None else {None: self.weight_column}

    @property
    def wants_features(self) -> bool:
        """Whether the loss needs the features of a batch in addition to logits and labels."""
        return self._user_loss is not None and self._user_loss.wants_features

    @property
    def rows_are_independent(self) -> bool:
        """Whether loss, predictions and metrics treat every example independently of the others.

        If so, evaluation and prediction may concatenate batches. It is False for heads and losses that users wrote,
        because those may compare the examples of a batch.
        """
        ours = type(self).__module__.partition(".")[0] == __name__.partition(".")[0]
        return ours and self.loss_fn is None

    @abstractmethod
    def prepare_labels(self, labels: Labels) -> Any:
        """Convert raw labels to the form that `loss` takes. The input pipeline calls this for each chunk of rows.

        Args:
            labels: [N] or [N, 1], or [N, label dimension]: numbers, booleans, or strings as an Arrow array or
                an object array.

        Raises:
            RowError: A label is unknown, out of range or not a number.
            InvalidValueError: The shape or the type of the labels does not fit the head.
        """

    @abstractmethod
    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Return one loss per example and output, [N, D], before weights are applied; see `loss`.

        Args:
            logits: Logits of the model, float32 [N, logits dimension].
            labels: Labels as `prepare_labels` returns them.
            features: Features of the batch, for a ``loss_fn`` that takes them.
        """

    def loss(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> Tensor:
        """Return the training loss of a batch, a scalar.

        Args:
            logits: Logits of the model, float32 [N, logits dimension].
            labels: Labels as `prepare_labels` returns them.
            weights: Weights of the examples, [N] or [N, 1], or None for ones.
            features: Features of the batch, for a ``loss_fn`` that takes them.

        Raises:
            InvalidValueError: A shape does not fit the head.
        """
        reduction = LossReduction.of(self.loss_reduction)
        return reduction.reduce(self.unweighted_loss(logits, labels, features), weights)

    def batch_losses(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, *, batches: int) -> Tensor:
        """Return the training loss of each of several equally long, concatenated batches, float64 [batches].

        The head's `rows_are_independent` must be true.

        Args:
            logits: Logits of all batches, float32 [batches * N, logits dimension].
            labels: Labels of all batches.
            weights: Weights of the examples, [batches * N] or [batches * N, 1], or None for ones.
            batches: Number of batches.
        """
        reduction = LossReduction.of(self.loss_reduction)
        return reduction.reduce_batches(self.unweighted_loss(logits, labels), weights, batches=batches)

    @abstractmethod
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Return the numeric predictions of a batch of logits [N, logits dimension].

        Args:
            logits: Logits of the model, float32 [N, logits dimension].

        Returns:
            Tensors [N, ...] by key.
        """

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Add predictions that are not numeric, such as names of classes, to the predictions of a batch.

        Args:
            predictions: Arrays [N, ...] by key, as `predictions` returns them.
        """
        return predictions

    def metrics(self) -> Metrics:
        """Return new, empty metrics for one evaluation."""
        return Buffered(MeanMetrics(["average_loss"], lambda *batch: [self.unweighted_loss(*batch)], name=self.name))

    def signatures(self) -> dict[str, Signature]:
        """Return the signatures by name. A signature is one way to call an exported model."""
        return signatures_of(self.prediction_keys)

    def raw_signatures(self) -> dict[str, Signature]:
        """Return the signatures of an exported model that takes separate columns, not serialized examples.

        TensorFlow's classification and regression take each example as one string, so only ``predict`` remains.
        """
        predict = self.signatures()["predict"]
        return {SERVING_DEFAULT: predict, "predict": predict}

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the computation of all predictions, including those of `decode`, to an ONNX graph.

        This default passes `predictions` through torch's exporter. A head must override it if `decode` adds
        predictions, and may override it to make the exported graph smaller or faster.

        Args:
            graph: Graph to which nodes are added.
            logits: Logits in the graph, float32 [N, logits dimension].

        Returns:
            The predictions by key, in the order of `prediction_keys`.
        """
        return graph.trace(self.predictions, logits, what=f"the predictions of {type(self).__name__}")


def check_head(head: object) -> Head:
    """Return `head`; raise InvalidTypeError if it is not a head."""
    if not isinstance(head, Head):
        raise InvalidTypeError(f"head must be a head such as te.BinaryClassHead(), but got {head!r}.")
    return head


def check_logits(logits: Tensor, dimension: int) -> None:
    """Raise InvalidValueError unless `logits` has two or more dimensions, the last one of size `dimension`."""
    if logits.dim() < 2 or logits.shape[-1] != dimension:
        raise InvalidValueError(
            f"The head takes logits of shape [N, {dimension}], but the model gave {list(logits.shape)}."
        )


def check_labels(labels: Tensor, logits: Tensor, dimension: int) -> None:
    """Raise InvalidValueError unless `labels` has `dimension` values for each row of `logits`."""
    expected = (*logits.shape[:-1], dimension)
    if labels.shape != expected:
        raise InvalidValueError(f"The head takes labels of shape {list(expected)} here, but got {list(labels.shape)}.")


def check_name(name: str | None) -> None:
    """Raise an error unless a head's name is None or a string that is not empty."""
    if name is not None and not isinstance(name, str):
        raise InvalidTypeError(f"A head's name must be a string, but got {name!r}.")
    if name == "":
        raise InvalidValueError("A head's name must not be empty; leave it out for a head without a name.")


def weight_key(weight_column: object) -> str | None:
    """Return the key of the weights' feature, given as key, as numeric column without normalizer, or as None.

    >>> from torch_estimator.feature_column import numeric_column
    >>> weight_key(numeric_column("fnlwgt"))
    'fnlwgt'
    """
    if weight_column is None or isinstance(weight_column, str):
        return weight_column
    key = getattr(weight_column, "key", None)
    if isinstance(key, str) and getattr(weight_column, "normalizer_fn", "no numeric column") is None:
        return key
    raise InvalidTypeError(
        f"weight_column must be the name of a feature or a numeric column without a normalizer_fn, "
        f"but got {weight_column!r}."
    )
