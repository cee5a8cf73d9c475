"""Several heads on one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads.base import Head, Metrics
from torch_estimator.heads.loss_fn import Features
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.signature import SERVING_DEFAULT, Signature, prediction
from torch_estimator.metrics import MultiHeadMetrics

Logits = Tensor | Mapping[str, Tensor]
Key = tuple[str, str]


@dataclass(frozen=True)
class MultiHead(Head):
    """Several objectives on one model: the loss is the heads' weighted sum.

    Labels are a dict by head, as ``Dataset.label([...])`` makes them. Logits are a dict by head, or one tensor with the
    heads' logits side by side. Predictions have keys ``(head, key)``, in exports ``<head>/<key>``. Metrics are those of
    the heads and ``loss/<head>``.

    Args:
        heads: Heads with distinct names and one loss reduction.
        head_weights: Factor of each head's loss in the sum, or None for ones.

    Attributes:
        by_name: The heads by name, in order.

    Raises:
        InvalidValueError: There is no head, one lacks a name, two share one, or `head_weights` has another length.
        InvalidTypeError: Something else than a head, or a weight that is no number.

    >>> from torch_estimator.heads import BinaryClassHead, RegressionHead
    >>> head = MultiHead([BinaryClassHead(name="buys"), RegressionHead(name="pays")], head_weights=[1.0, 0.5])
    >>> list(head.predictions(torch.zeros(2, 2)))[-1]
    ('pays', 'predictions')
    """

    heads: Sequence[Head]
    head_weights: Sequence[float] | None = None
    by_name: Mapping[str, Head] = field(init=False, repr=False, compare=False)

    name = None
    weight_column = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", _checked_heads(self.heads))
        object.__setattr__(self, "head_weights", _checked_weights(self.head_weights, self.heads))
        object.__setattr__(self, "by_name", {str(head.name): head for head in self.heads})

    @property
    def loss_reduction(self) -> LossReduction:  # type: ignore[override]
        """The heads' own."""
        return LossReduction.of(self.heads[0].loss_reduction)

    @property
    def logits_dimension(self) -> int:
        """The sum of the heads' dimensions."""
        return sum(head.logits_dimension for head in self.heads)

    @property
    def weight_columns(self) -> Mapping[str | None, str]:
        """The heads' weight columns, by head."""
        return {name: head.weight_column for name, head in self.by_name.items() if head.weight_column is not None}

    @property
    def wants_features(self) -> bool:
        """Whether one of the heads does."""
        return any(head.wants_features for head in self.heads)

    @property
    def rows_are_independent(self) -> bool:
        """Whether they are for every head."""
        return type(self) is MultiHead and all(head.rows_are_independent for head in self.heads)

    @property
    def prediction_keys(self) -> tuple[Any, ...]:
        """Keys ``(head, key)`` of the predictions, in order."""
        return tuple((name, key) for name, head in self.by_name.items() for key in head.prediction_keys)

    def prepare_labels(self, labels: Any) -> dict[str, Any]:
        """Returns what each head makes of its labels, by head.

        Args:
            labels: A dict by head; what belongs to no head is left out.
        """
        if not isinstance(labels, Mapping):
            raise InvalidTypeError(
                f"A MultiHead takes labels as a dict with {', '.join(self.by_name)}, but got one column; name them "
                "with Dataset.label([...]), or return (features, {head: labels}) from input_fn."
            )
        missing = [name for name in self.by_name if name not in labels]
        if missing:
            raise InvalidValueError(
                f"There are no labels for the head {missing[0]!r}: the labels are those of "
                f"{', '.join(map(str, labels)) or 'nobody'}, but the heads are {', '.join(self.by_name)}."
            )
        return {name: _prepared(name, head, labels[name]) for name, head in self.by_name.items()}

    def unweighted_loss(self, logits: Any, labels: Any, features: Features | None = None) -> Tensor:
        """Returns every head's losses side by side, unweighted."""
        logits = self.split(logits)
        losses = [head.unweighted_loss(logits[name], labels[name], features) for name, head in self.by_name.items()]
        return torch.cat(losses, -1)

    def loss(self, logits: Any, labels: Any, weights: Any = None, features: Features | None = None) -> Tensor:
        """Returns the weighted sum of the heads' training losses, a scalar.

        Args:
            logits: float32 [N, logits dimension], or a dict by head.
            labels: As `prepare_labels` makes them.
            weights: By head, [N] or [N, 1], for the heads that have some; or None.
            features: What a ``loss_fn`` that names them is called with.
        """
        logits = self.split(logits)
        weights = weights or {}
        return self._sum(
            [head.loss(logits[name], labels[name], weights.get(name), features) for name, head in self.by_name.items()]
        )

    def batch_losses(self, logits: Any, labels: Any, weights: Any = None, *, batches: int) -> Tensor:
        """Returns the `loss` of each of several batches of the same length, one after the other: float64 [batches]."""
        logits = self.split(logits)
        weights = weights or {}
        return self._sum(
            [
                head.batch_losses(logits[name], labels[name], weights.get(name), batches=batches)
                for name, head in self.by_name.items()
            ]
        )

    def split(self, logits: Logits) -> dict[str, Tensor]:
        """Returns the logits by head.

        Raises:
            InvalidValueError: A head has none, or a tensor does not have the logits of all heads.
        """
        if isinstance(logits, Mapping):
            missing = [name for name in self.by_name if name not in logits]
            if missing:
                raise InvalidValueError(
                    f"The model gave no logits for the head {missing[0]!r}: it gave {', '.join(map(str, logits))}."
                )
            return {name: logits[name] for name in self.by_name}
        sizes = [head.logits_dimension for head in self.heads]
        if not isinstance(logits, Tensor) or logits.dim() < 2 or logits.shape[-1] != sum(sizes):
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InvalidValueError(
                f"The heads {', '.join(self.by_name)} take logits of shape [N, {sum(sizes)}], or a dict by head, but "
                f"the model gave {got}."
            )
        return dict(zip(self.by_name, torch.split(logits, sizes, -1), strict=True))

    def joined(self, logits: Logits) -> Tensor:
        """Returns the heads' logits side by side; the opposite of `split`."""
        return logits if isinstance(logits, Tensor) else torch.cat(list(self.split(logits).values()), -1)

    def predictions(self, logits: Any) -> dict[Any, Tensor]:
        """Returns every head's predictions with keys ``(head, key)``."""
        logits = self.split(logits)
        return {
            (name, key): value
            for name, head in self.by_name.items()
            for key, value in head.predictions(logits[name]).items()
        }

    def decode(self, predictions: dict[Any, np.ndarray[Any, Any]]) -> dict[Any, np.ndarray[Any, Any]]:
        """Adds what is not numeric to each head's predictions."""
        decoded: dict[Any, np.ndarray[Any, Any]] = {}
        for name, head in self.by_name.items():
            own = {key[1]: value for key, value in predictions.items() if key[0] == name}
            decoded |= {(name, key): value for key, value in head.decode(own).items()}
        return decoded

    def metrics(self) -> Metrics:
        """Returns fresh `MultiHeadMetrics`."""
        return MultiHeadMetrics(self.by_name, self.split)

    def signatures(self) -> dict[str, Signature]:
        """Returns each head's own as ``<head>/<signature>``, its default as ``<head>``, and ``predict`` for all.

        The default is the first head's.
        """
        return self._merged({name: head.signatures() for name, head in self.by_name.items()})

    def raw_signatures(self) -> dict[str, Signature]:
        """Returns the same where only prediction is left."""
        return self._merged({name: head.raw_signatures() for name, head in self.by_name.items()})

    def _sum(self, losses: Sequence[Tensor]) -> Tensor:
        factors = self.head_weights or [1.0] * len(losses)
        return sum(loss * factor for loss, factor in zip(losses, factors, strict=True))  # type: ignore[return-value]

    def _merged(self, described: Mapping[str, Mapping[str, Signature]]) -> dict[str, Signature]:
        merged: dict[str, Signature] = {}
        for name, signatures in described.items():
            for key, signature in signatures.items():
                merged[name if key == SERVING_DEFAULT else f"{name}/{key}"] = Signature(
                    method=signature.method,
                    outputs={output: exported_key((name, value)) for output, value in signature.outputs.items()},
                )
        everything = prediction(tuple(exported_key(key) for key in self.prediction_keys))
        return {SERVING_DEFAULT: merged[next(iter(described))], **merged, "predict": everything}


def exported_key(key: Any) -> str:
    """Returns the name that a prediction has in exports: ``<head>/<key>`` for a key ``(head, key)``."""
    return "/".join(key) if isinstance(key, tuple) else str(key)


def _prepared(name: str, head: Head, labels: Any) -> Any:
    try:
        return head.prepare_labels(labels)
    except RowError as error:
        raise RowError(error.problem, row=error.row, label=name) from error
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"label {name!r}: {error}") from error


def _checked_heads(heads: Any) -> tuple[Head, ...]:
    if isinstance(heads, Head) or not isinstance(heads, Iterable):
        raise InvalidTypeError(f"heads must be a list of heads, but got {heads!r}.")
    checked = tuple(heads)
    if not checked:
        raise InvalidValueError("heads must hold at least one head, but there is none.")
    names: set[str] = set()
    for head in checked:
        if not isinstance(head, Head):
            raise InvalidTypeError(f"heads must hold heads such as te.BinaryClassHead(), but one is {head!r}.")
        if isinstance(head, MultiHead):
            raise InvalidTypeError("heads must not hold a MultiHead; give its heads themselves.")
        if head.name is None:
            raise InvalidValueError(f"Every head of a MultiHead needs a name, but {head!r} has none.")
        if head.name in names:
            raise InvalidValueError(f"The heads of a MultiHead need distinct names, but two are called {head.name!r}.")
        if head.name in (SERVING_DEFAULT, "predict"):
            raise InvalidValueError(f"A head must not be called {head.name!r}, which is a signature's name; rename it.")
        names.add(head.name)
    reductions = {LossReduction.of(head.loss_reduction).name for head in checked}
    if len(reductions) > 1:
        raise InvalidValueError(
            f"The heads of a MultiHead must have the same loss_reduction, but have {', '.join(sorted(reductions))}."
        )
    return checked


def _checked_weights(weights: Any, heads: Sequence[Head]) -> tuple[float, ...] | None:
    if weights is None:
        return None
    if isinstance(weights, str | Mapping) or not isinstance(weights, Iterable):
        raise InvalidTypeError(f"head_weights must be a list with a number per head, but got {weights!r}.")
    checked = tuple(weights)
    if len(checked) != len(heads):
        raise InvalidValueError(
            f"head_weights must have one number for each of the {len(heads)} heads, but it has {len(checked)}: "
            f"{list(checked)}."
        )
    for weight in checked:
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)):
            raise InvalidTypeError(f"head_weights must hold numbers, but has {weight!r}.")
    return tuple(float(weight) for weight in checked)
