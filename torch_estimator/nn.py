"""Losses of tf.nn that torch lacks: of many classes, of which each step sees a few that are drawn at random.

Give the weights of the classes as a `feature_column.Table`. Then a step updates only the rows of the classes that it
has seen, with the optimizers of `optim`.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.table import Table

__all__ = ["Candidates", "log_uniform_candidate_sampler", "nce_loss", "sampled_softmax_loss"]

_RARE = 1e-9


class Candidates(NamedTuple):
    """Classes that were drawn, and how often they were to be expected.

    Attributes:
        sampled: The classes, int64 ``[num_sampled]``.
        true_expected_count: Expected number of occurrences of each label among them, ``[N, num_true]``.
        sampled_expected_count: Expected number of occurrences of each of them, ``[num_sampled]``.

    >>> te.nn.log_uniform_candidate_sampler(torch.tensor([[7]]), 1, 5, unique=True, range_max=100)._fields
    ('sampled', 'true_expected_count', 'sampled_expected_count')
    """

    sampled: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


def log_uniform_candidate_sampler(
    true_classes: Tensor, num_true: int, num_sampled: int, unique: bool, range_max: int
) -> Candidates:
    """Draw classes, where class k has the probability ``(log(k + 2) - log(k + 1)) / log(range_max + 1)``.

    This fits classes in descending order of frequency, such as the words of a language. The numbers come from torch's
    random generator, whose state is in checkpoints: a training that continues draws what it would have drawn.

    Args:
        true_classes: The labels, int64 ``[N, num_true]``, or ``[N]`` for one label.
        num_true: Number of labels in each row.
        num_sampled: Number of classes to draw.
        unique: Whether to draw different classes. It is as if classes were drawn until `num_sampled` different ones
            are there; the expected counts are for that number of draws.
        range_max: Number of classes.

    Returns:
        The classes and their expected counts, which do not depend on each other's rows.

    Raises:
        InvalidTypeError: The labels are not integers.
        InvalidValueError: The labels have another shape, or `num_sampled` is out of range.

    >>> drawn = te.nn.log_uniform_candidate_sampler(torch.tensor([[0], [9]]), 1, 4, unique=True, range_max=10)
    >>> len(set(drawn.sampled.tolist())), drawn.true_expected_count.shape
    (4, torch.Size([2, 1]))
    """
    labels = _labels(true_classes, num_true)
    if not num_sampled >= 1 or (unique and num_sampled > range_max):
        raise InvalidValueError(
            f"num_sampled must be from 1 to the number of classes, {range_max}, but got {num_sampled}."
        )
    tries = _enough_tries(num_sampled, range_max) if unique else num_sampled
    uniform = torch.rand(tries, dtype=torch.float64, device=labels.device)
    drawn = (torch.exp(uniform * math.log(range_max + 1)).long() - 1).clamp(0, range_max - 1)
    if not unique:
        return Candidates(drawn, *(_probabilities(ids, range_max).mul(tries).float() for ids in (labels, drawn)))
    places = _first_places(drawn)[:num_sampled].clamp(max=tries - 1)
    return Candidates(drawn[places], *(_counts(ids, range_max, places) for ids in (labels, drawn[places])))


def sampled_softmax_loss(
    weights: Table | Tensor,
    biases: Table | Tensor,
    labels: Tensor,
    inputs: Tensor,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Candidates | None = None,
    remove_accidental_hits: bool = True,
) -> Tensor:
    """Return the softmax cross-entropy over the labels and some classes drawn at random, for each row.

    It is for training only: evaluate with the softmax of all classes, ``inputs @ weights.T + biases``. It computes what
    ``tf.nn.sampled_softmax_loss`` computes.

    Args:
        weights: Weights of the classes, ``[num_classes, dim]``: a `Table`, or a tensor, whose gradient is dense.
        biases: Biases of the classes: a `Table` with rows of one number, or a tensor ``[num_classes]``.
        labels: Classes of each row, int64 ``[N, num_true]``, or ``[N]`` for one label. They count 1 / num_true each.
        inputs: Outputs of the last hidden layer, ``[N, dim]``.
        num_sampled: Number of classes to draw for the batch.
        num_classes: Number of classes.
        num_true: Number of labels in each row.
        sampled_values: The drawn classes; None draws with `log_uniform_candidate_sampler`, all different.
        remove_accidental_hits: Whether drawn classes that are a row's label are left out of that row's loss.

    Returns:
        float32 ``[N]``.

    Raises:
        InvalidTypeError: The labels are not integers.
        InvalidValueError: The labels or the weights have another shape, or `num_sampled` is out of range.

    >>> weights, biases = torch.nn.Parameter(torch.ones(1000, 8)), torch.nn.Parameter(torch.zeros(1000))
    >>> te.nn.sampled_softmax_loss(weights, biases, torch.tensor([3, 14]), torch.ones(2, 8), 20, 1000).shape
    torch.Size([2])
    """
    true, sampled = _logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, remove_accidental_hits
    )
    return torch.cat([true, sampled], 1).logsumexp(1) - true.mean(1)


def nce_loss(
    weights: Table | Tensor,
    biases: Table | Tensor,
    labels: Tensor,
    inputs: Tensor,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Candidates | None = None,
    remove_accidental_hits: bool = False,
) -> Tensor:
    """Return the loss of noise-contrastive estimation for each row: labels are told from classes drawn at random.

    The arguments, the result and the errors are those of `sampled_softmax_loss`. It computes what ``tf.nn.nce_loss``
    computes. Evaluate with the sigmoid or the softmax of all classes.

    Args:
        weights: Weights of the classes.
        biases: Biases of the classes.
        labels: Classes of each row.
        inputs: Outputs of the last hidden layer.
        num_sampled: Number of classes to draw for the batch.
        num_classes: Number of classes.
        num_true: Number of labels in each row.
        sampled_values: The drawn classes, or None.
        remove_accidental_hits: Whether drawn classes that are a row's label are left out of that row's loss.

    >>> weights, biases = torch.nn.Parameter(torch.ones(1000, 8)), torch.nn.Parameter(torch.zeros(1000))
    >>> te.nn.nce_loss(weights, biases, torch.tensor([3, 14]), torch.ones(2, 8), 20, 1000).shape
    torch.Size([2])
    """
    true, sampled = _logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, remove_accidental_hits
    )
    return (functional.softplus(true) - true / num_true).sum(1) + functional.softplus(sampled).sum(1)


def _logits(
    weights: Table | Tensor,
    biases: Table | Tensor,
    labels: Tensor,
    inputs: Tensor,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    drawn: Candidates | None,
    remove_accidental_hits: bool,
) -> tuple[Tensor, Tensor]:
    """Return the logits of labels ``[N, num_true]`` and of drawn classes ``[N, num_sampled]``.

    The logarithm of the expected count is subtracted from each. A logit that is left out is -inf.
    """
    for name, rows in {"weights": weights, "biases": biases}.items():
        count = rows.rows if isinstance(rows, Table) else len(rows)
        if count < num_classes:
            raise InvalidValueError(f"{name} must have a row for each of {num_classes} classes, but has {count}.")
    labels = _labels(labels, num_true)
    if drawn is None:
        drawn = log_uniform_candidate_sampler(labels, num_true, num_sampled, unique=True, range_max=num_classes)
    # Look up labels and drawn classes together, so that a table has one gradient to add up.
    ids = torch.cat([labels.reshape(-1), drawn.sampled])
    vectors = weights(ids) if isinstance(weights, Table) else functional.embedding(ids, weights)
    offsets = biases(ids)[:, 0] if isinstance(biases, Table) else biases[ids]
    count = labels.numel()
    of_labels = vectors[:count].view(*labels.shape, -1)
    true = (inputs.unsqueeze(1) * of_labels).sum(2) + offsets[:count].view_as(labels)
    sampled = inputs @ vectors[count:].T + offsets[count:]
    true = true - drawn.true_expected_count.log()
    sampled = sampled - drawn.sampled_expected_count.log()
    if remove_accidental_hits:
        hits = (labels.unsqueeze(2) == drawn.sampled).any(1)
        sampled = sampled.masked_fill(hits, -torch.inf)
    return true, sampled


def _labels(labels: Tensor, num_true: int) -> Tensor:
    """Return labels as int64 ``[N, num_true]``."""
    if labels.is_floating_point():
        raise InvalidTypeError(f"labels must be integers, the classes of the rows, but are {labels.dtype}.")
    if labels.dim() == 1 and num_true == 1:
        labels = labels.unsqueeze(1)
    if labels.dim() != 2 or labels.shape[1] != num_true:
        raise InvalidValueError(
            f"labels must have the shape [N, {num_true}] for num_true={num_true}, but have {list(labels.shape)}."
        )
    return labels.long()


def _probabilities(ids: Tensor, range_max: int) -> Tensor:
    return ((ids.double() + 2) / (ids.double() + 1)).log() / math.log(range_max + 1)


def _counts(ids: Tensor, range_max: int, places: Tensor) -> Tensor:
    """Return the expected counts of ids among unique candidates, given the places of these in a row of draws."""
    chance, draws = _probabilities(ids, range_max), places[-1] + 1
    counts = -torch.expm1(draws * torch.log1p(-chance))
    # As in TensorFlow, where no class was drawn twice the counts are those of candidates that may be equal.
    return torch.where(draws == len(places), chance * len(places), counts).float()


def _first_places(drawn: Tensor) -> Tensor:
    """Return the places of the first occurrence of each value, ascending, and then ``len(drawn)`` for each other place.

    The result has the shape of `drawn`, so that a step that samples can be compiled.
    """
    ordered, places = torch.sort(drawn, stable=True)
    is_first = torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])
    return torch.where(is_first, places, len(drawn)).sort().values


@functools.lru_cache(maxsize=64)
def _enough_tries(num_sampled: int, range_max: int) -> int:
    """Return a number of draws that has fewer than `num_sampled` different classes in one of 1e9 cases at most.

    One number of draws for all steps, instead of drawing until there are enough, lets a step be compiled.
    """
    ids = np.arange(range_max, dtype=np.float64)
    never = np.log1p(-np.log1p(1 / (ids + 1)) / math.log(range_max + 1)) if range_max > 1 else np.array([-np.inf])
    tries = num_sampled
    while True:
        missing = float(np.exp(tries * never).sum())
        different = range_max - missing
        # Chernoff's bound for the number of different classes, and Markov's for the number of missing ones.
        spare = different - num_sampled
        if spare > 0 and math.exp(-spare * spare / (2 * different)) < _RARE:
            return tries
        if missing / (range_max - num_sampled + 1) < _RARE:
            return tries
        tries += tries // 4 + 1
