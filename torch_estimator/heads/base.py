"""What every head offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.loss_fn import Features, wants_features
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.signature import SERVING_DEFAULT, Signature

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels


class Metrics(Protocol):
    """Metrics of one evaluation, accumulated in float64 over its batches."""

    def update(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        """Takes in a batch; the arguments are those of `Head.loss`."""

    def compute(self) -> dict[str, float]:
        """Returns every metric over all batches so far; zeros if there were none."""


class Head(ABC):
    """The end of a model: what logits mean, how wrong they are, and what is reported and served.

    Attributes:
        name: Suffix ``/<name>`` of the metrics' keys, or None.
        weight_column: Feature that holds the examples' weights, or None.
        loss_reduction: How the losses of a batch become the training loss; heads here keep the member
            that a name given to them means.
    """

    name: str | None
    weight_column: str | None
    loss_reduction: LossReduction | str

    @property
    @abstractmethod
    def logits_dimension(self) -> int:
        """Number of logits per example that the model must give."""

    @property
    def weight_columns(self) -> Mapping[str | None, str]:
        """Features that hold weights, by what `loss` takes them as: None is the head's own, a name that of a head."""
        return {} if self.weight_column is None else {None: self.weight_column}

    @property
    def wants_features(self) -> bool:
        """Whether the loss depends on features beside logits and labels."""
        return wants_features(getattr(self, "loss_fn", None))

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of their ids; None where there are no classes."""
        return None

    @property
    @abstractmethod
    def prediction_keys(self) -> tuple[str, ...]:
        """Keys of the predictions, in order, as `decode` returns them."""

    @abstractmethod
    def prepare_labels(self, labels: Labels) -> Any:
        """Turns raw labels into those that `loss` takes; one call per chunk of rows, before training.

        Args:
            labels: [N] or [N, 1], or [N, label dimension]: numbers, booleans, or strings as an Arrow array or
                an object array.

        Raises:
            RowError: A label is unknown, out of range or not a number.
            InvalidValueError: The shape or the kind of labels does not fit the head.
        """

    @abstractmethod
    def unweighted_loss(self, logits: Tensor, labels: Tensor, features: Features | None = None) -> Tensor:
        """Returns one loss per example and output."""

    def loss(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> Tensor:
        """Returns the training loss of a batch, a scalar.

        Args:
            logits: float32 [N, logits dimension].
            labels: As `prepare_labels` makes them.
            weights: [N] or [N, 1], or None for ones.
            features: What a ``loss_fn`` that names them is called with.

        Raises:
            InvalidValueError: A shape does not fit the head.
        """
        reduction = LossReduction.of(self.loss_reduction)
        return reduction.reduce(self.unweighted_loss(logits, labels, features), weights)

    @property
    def rows_are_independent(self) -> bool:
        """Whether loss, predictions and metrics see every example by itself, so that batches can be put together."""
        # A subclass or a function of a user's may look at a batch as a whole.
        ours = type(self).__module__.partition(".")[0] == __package__.partition(".")[0]
        return ours and getattr(self, "loss_fn", None) is None and getattr(self, "inverse_link_fn", None) is None

    def batch_losses(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, *, batches: int) -> Tensor:
        """Returns the `loss` of each of several batches of the same length, one after the other: float64 [batches].

        Only for a head whose `rows_are_independent`.
        """
        reduction = LossReduction.of(self.loss_reduction)
        return reduction.reduce_batches(self.unweighted_loss(logits, labels), weights, batches=batches)

    @abstractmethod
    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Returns the numeric predictions of a batch of logits [N, logits dimension]."""

    def decode(self, predictions: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Adds what is not numeric, the names of classes, to the predictions of a batch."""
        return predictions

    @abstractmethod
    def metrics(self) -> Metrics:
        """Returns fresh metrics for one evaluation."""

    @abstractmethod
    def signatures(self) -> dict[str, Signature]:
        """Describes how an export of the model can be called, by signature name."""

    def raw_signatures(self) -> dict[str, Signature]:
        """Describes the same where examples are not given as one string each, which only prediction can do without."""
        predict = self.signatures()["predict"]
        return {SERVING_DEFAULT: predict, "predict": predict}


def check_head(head: object) -> Head:
    """Returns `head`; raises InvalidTypeError if it is none."""
    if not isinstance(head, Head):
        raise InvalidTypeError(f"head must be a head such as te.BinaryClassHead(), but got {head!r}.")
    return head


def check_logits(logits: Tensor, dimension: int) -> None:
    """Raises unless the last of at least two dimensions of `logits` is `dimension`."""
    if logits.dim() < 2 or logits.shape[-1] != dimension:
        raise InvalidValueError(
            f"The head takes logits of shape [N, {dimension}], but the model gave {list(logits.shape)}."
        )


def check_labels(labels: Tensor, logits: Tensor, dimension: int) -> None:
    """Raises unless `labels` has one row of `dimension` per row of `logits`."""
    expected = (*logits.shape[:-1], dimension)
    if labels.shape != expected:
        raise InvalidValueError(f"The head takes labels of shape {list(expected)} here, but got {list(labels.shape)}.")


def check_name(name: str | None) -> None:
    """Raises unless a head's name is None or a string that is not empty."""
    if name is not None and not isinstance(name, str):
        raise InvalidTypeError(f"A head's name must be a string, but got {name!r}.")
    if name == "":
        raise InvalidValueError("A head's name must not be empty; leave it out for a head without a name.")


def weight_key(weight_column: object) -> str | None:
    """Returns the feature that `weight_column` means: a key, or a numeric column without a normalizer.

    Raises:
        InvalidTypeError: It is something else.
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


def metric_key(key: str, name: str | None) -> str:
    """Returns the key of a metric of the head called `name`."""
    return key if name is None else f"{key}/{name}"
