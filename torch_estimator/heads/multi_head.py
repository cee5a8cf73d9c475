"""Head that combines several heads on one model, each with its own labels and logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads.base import Head
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.serving import SERVING_DEFAULT, Graph, Prediction, Signature, prediction
from torch_estimator.metrics import Features, Metrics

Logits = Tensor | Mapping[str, Tensor]
"""Logits of all heads: one tensor with them side by side, or a dict by head."""


@dataclass(frozen=True)
class MultiHead(Head):
    """Head that combines several heads on one model. The loss is the weighted sum of the heads' losses.

    Labels are a dict by head, as ``Dataset.label([...])`` returns them. Logits are a dict by head, or one tensor with
    the heads' logits side by side. Predictions have keys ``(head, key)``, which become ``<head>/<key>`` in exports. The
    metrics are those of the heads and ``loss/<head>``.

    Args:
        heads: Heads with distinct names and the same loss reduction.
        head_weights: Factor of each head's loss in the sum, or None for ones.

    Attributes:
        by_name: The heads by name, in order.

    Raises:
        InvalidValueError: There is no head, one lacks a name, two share one, or `head_weights` has another length.
        InvalidTypeError: `heads` holds something other than a head, or a weight is not a number.

    >>> head = te.MultiHead([te.BinaryClassHead(name="buys"), te.RegressionHead(name="pays")], head_weights=[1.0, 0.5])
    >>> labels = head.prepare_labels({"buys": np.array([0, 1]), "pays": np.array([0.0, 9.5])})
    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 9.5]])
    >>> head.loss(logits, {name: torch.tensor(label) for name, label in labels.items()})
    tensor(0.6931)
    >>> head.predictions(logits)["pays", "predictions"]
    tensor([[0.0000],
            [9.5000]])
    """

    heads: Sequence[Head]
    head_weights: Sequence[float] | None = None
    by_name: Mapping[str, Head] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._set(heads=_checked_heads(self.heads))
        self._set(
            head_weights=_checked_weights(self.head_weights, self.heads),
            by_name={str(head.name): head for head in self.heads},
        )

    @property
    def loss_reduction(self) -> LossReduction:  # type: ignore[override]
        """The loss reduction, which is the same for all heads."""
        return LossReduction.of(self.heads[0].loss_reduction)

    @property
    def logits_dimension(self) -> int:
        """Number of logits per example: the sum over all heads."""
        return sum(head.logits_dimension for head in self.heads)

    @property
    def weight_columns(self) -> Mapping[str | None, str]:
        """Features that hold the examples' weights, by name of the head."""
        return {name: head.weight_column for name, head in self.by_name.items() if head.weight_column is not None}

    @property
    def wants_features(self) -> bool:
        """Whether the loss of at least one head needs the features of a batch."""
        return any(head.wants_features for head in self.heads)

    @property
    def rows_are_independent(self) -> bool:
        """Whether every head treats each example independently of the other examples."""
        return type(self) is MultiHead and all(head.rows_are_independent for head in self.heads)

    @property
    def prediction_keys(self) -> tuple[Any, ...]:
        """Keys ``(head, key)`` of the predictions, in order."""
        return tuple((name, key) for name, head in self.by_name.items() for key in head.prediction_keys)

    def prepare_labels(self, labels: Any) -> dict[str, Any]:
        """Return the labels of each head in the form that its loss takes, by name of the head.

        Keys that are not the name of a head are ignored. A RowError names the head.
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
        """Return the losses of all heads before weights are applied, concatenated on the last axis."""
        logits = self.split(logits)
        losses = [head.unweighted_loss(logits[name], labels[name], features) for name, head in self.by_name.items()]
        return torch.cat(losses, -1)

    def loss(self, logits: Any, labels: Any, weights: Any = None, features: Features | None = None) -> Tensor:
        """Return the weighted sum of the heads' training losses, a scalar.

        `logits` are float32 [N, logits dimension], or a dict by head; `labels` are as `prepare_labels` returns them;
        `weights` are [N] or [N, 1] by head, for the heads that have some.
        """
        logits = self.split(logits)
        weights = weights or {}
        return self._sum(
            [head.loss(logits[name], labels[name], weights.get(name), features) for name, head in self.by_name.items()]
        )

    def batch_losses(self, logits: Any, labels: Any, weights: Any = None, *, batches: int) -> Tensor:
        """Return the training loss of each of several equally long, concatenated batches, float64 [batches]."""
        logits = self.split(logits)
        weights = weights or {}
        return self._sum(
            [
                head.batch_losses(logits[name], labels[name], weights.get(name), batches=batches)
                for name, head in self.by_name.items()
            ]
        )

    def split(self, logits: Logits) -> dict[str, Tensor]:
        """Return the logits of each head, by name of the head."""
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
        """Return the logits of all heads in one tensor, concatenated on the last axis; the inverse of `split`."""
        return logits if isinstance(logits, Tensor) else torch.cat(list(self.split(logits).values()), -1)

    def predictions(self, logits: Any) -> dict[Any, Tensor]:
        """Return the predictions of every head with keys ``(head, key)``."""
        logits = self.split(logits)
        return {
            (name, key): value
            for name, head in self.by_name.items()
            for key, value in head.predictions(logits[name]).items()
        }

    def decode(self, predictions: dict[Any, np.ndarray[Any, Any]]) -> dict[Any, np.ndarray[Any, Any]]:
        """Add predictions that are not numeric, such as names of classes, for every head."""
        decoded: dict[Any, np.ndarray[Any, Any]] = {}
        for name, head in self.by_name.items():
            own = {key[1]: value for key, value in predictions.items() if key[0] == name}
            decoded |= {(name, key): value for key, value in head.decode(own).items()}
        return decoded

    def metrics(self) -> Metrics:
        """Return new metrics for one evaluation: the metrics and the mean training loss of each head."""
        return MultiHeadMetrics(self)

    def signatures(self) -> dict[str, Signature]:
        """Return the signatures of each head as ``<head>/<signature>``, and ``predict`` for all heads together.

        The default signature of a head is called ``<head>``; that of the first head is the default of all.
        """
        return self._merged({name: head.signatures() for name, head in self.by_name.items()})

    def raw_signatures(self) -> dict[str, Signature]:
        """Return the signatures of an exported model that takes separate columns, not serialized examples."""
        return self._merged({name: head.raw_signatures() for name, head in self.by_name.items()})

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the predictions of every head to an ONNX graph, with the keys ``<head>/<key>``."""
        predictions: dict[str, Prediction] = {}
        start = 0
        for name, head in self.by_name.items():
            stop = start + head.logits_dimension
            bounds = [graph.constant([place], np.int64) for place in (start, stop, 1)]
            part = Prediction(
                tensor=graph.op("Slice", logits.tensor, *bounds),
                dtype=logits.dtype,
                row_shape=(head.logits_dimension,),
            )
            predictions |= {exported_key((name, key)): one for key, one in head.lower(graph, part).items()}
            start = stop
        return predictions

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


class MultiHeadMetrics:
    """The metrics of each head, and ``loss/<head>``: the head's mean training loss over the batches.

    In this mean all batches count equally, whatever the weights of their examples are.
    """

    def __init__(self, head: MultiHead) -> None:
        self._head = head
        self._metrics: dict[str, Any] = {name: one.metrics() for name, one in head.by_name.items()}
        self._losses: dict[str, float | Tensor] = dict.fromkeys(head.by_name, 0.0)
        self._batches = 0

    @torch.no_grad()
    def update(self, logits: Any, labels: Any, weights: Any = None, features: Features | None = None) -> None:
        """Add a batch; the arguments are those of `MultiHead.loss`."""
        self._batches += 1
        split = self._head.split(logits)
        for name, head in self._head.by_name.items():
            batch = (split[name], labels[name], (weights or {}).get(name), features)
            self._losses[name] += head.loss(*batch).double()
            self._metrics[name].update(*batch)

    @torch.no_grad()
    def update_batches(self, logits: Any, labels: Any, weights: Any = None, *, batches: int) -> None:
        """Add equally long, concatenated batches. Every head must treat examples independently."""
        self._batches += batches
        split = self._head.split(logits)
        for name, head in self._head.by_name.items():
            several = (split[name], labels[name], (weights or {}).get(name))
            self._losses[name] += head.batch_losses(*several, batches=batches).sum()
            self._metrics[name].update(*several)

    def compute(self) -> dict[str, float]:
        """Return the metrics over all batches, or zeros if there were no batches."""
        results: dict[str, float] = {}
        for name, metrics in self._metrics.items():
            results[f"loss/{name}"] = float(self._losses[name]) / max(self._batches, 1)
            results |= metrics.compute()
        return results


def exported_key(key: Any) -> str:
    """Return the name of a prediction in an exported model: ``<head>/<key>`` for a key ``(head, key)``.

    >>> exported_key(("buys", "logits"))
    'buys/logits'
    """
    return "/".join(key) if isinstance(key, tuple) else str(key)


def _prepared(name: str, head: Head, labels: Any) -> Any:
    """Return the labels of one head in the form that its loss takes. Errors name the head."""
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
