"""Conversion of labels to the dtype and the shape that torch's own losses need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_estimator.errors import InvalidTypeError, InvalidValueError

Kind = Literal["values", "classes"]

_CLASS_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_CLASS_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)
_VALUE_MODULES = (
    *(nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss),
    *(nn.PoissonNLLLoss, nn.KLDivLoss, nn.SoftMarginLoss, nn.MultiLabelSoftMarginLoss),
)
_VALUE_FUNCTIONS = (
    *(functional.l1_loss, functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits, functional.poisson_nll_loss),
    *(functional.kl_div, functional.soft_margin_loss, functional.multilabel_soft_margin_loss),
)


def loss_kind(loss: object) -> Kind | None:
    """Return the kind of labels that a loss of torch takes, or None for any other function.

    Returns:
        ``"values"`` for a loss that takes one label for every output, ``"classes"`` for one that takes one class id for
        every row of scores.

    >>> loss_kind(nn.MSELoss()), loss_kind(functional.cross_entropy), loss_kind(max)
    ('values', 'classes', None)
    """
    while isinstance(loss, partial):
        loss = loss.func
    if isinstance(loss, _CLASS_MODULES) or any(loss is one for one in _CLASS_FUNCTIONS):
        return "classes"
    if isinstance(loss, _VALUE_MODULES) or any(loss is one for one in _VALUE_FUNCTIONS):
        return "values"
    return None


def fitted_labels(kind: Kind | None, loss: Callable[..., Any], outputs: Any, labels: Any) -> Any:
    """Convert labels to the shape and dtype that a loss of torch needs: ``[N]`` to ``[N, 1]``, or the reverse.

    `labels` is a tensor, or a NumPy array of strings, which is refused, as are shapes that torch would broadcast to
    ``[N, N]``.

    >>> fitted_labels("values", nn.MSELoss(), torch.zeros(3, 1), torch.tensor([1, 2, 3])).tolist()
    [[1.0], [2.0], [3.0]]
    """
    if kind is not None and isinstance(labels, np.ndarray):
        raise InvalidTypeError(
            f"{_name(loss)} takes labels that are numbers, but these are strings, such as {labels.ravel()[0]!r}; give "
            "numbers, or a head with a label_vocabulary in the place of the loss."
        )
    if kind is not None and isinstance(labels, Mapping):
        raise InvalidTypeError(
            f"{_name(loss)} takes one tensor of labels, but these are a dict with {', '.join(map(str, labels))}; give "
            "one of them as the label, or write a function loss(outputs, labels) that calls this loss."
        )
    if kind is None or not isinstance(outputs, Tensor) or not isinstance(labels, Tensor):
        return labels
    return _fitted_values(loss, outputs, labels) if kind == "values" else _fitted_classes(loss, outputs, labels)


def reshaped_labels(kind: Kind | None, outputs: Any, labels: Any) -> Any:
    """Drop or add an axis of size 1 so that labels fit outputs in a loss of torch. The dtype is unchanged."""
    if kind is None or not isinstance(outputs, Tensor) or not isinstance(labels, Tensor):
        return labels
    if kind == "classes":
        per_row = outputs.dim() > 1 and labels.dim() == outputs.dim() and labels.shape[1] == 1
        return labels.squeeze(1) if per_row and not _are_probabilities(outputs, labels) else labels
    if labels.dim() + 1 == outputs.dim() and outputs.shape[-1] == 1:
        return labels.unsqueeze(-1)
    if labels.dim() == outputs.dim() + 1 and labels.shape[-1] == 1:
        return labels.squeeze(-1)
    return labels


def _are_probabilities(outputs: Tensor, labels: Tensor) -> bool:
    """Return whether labels hold a probability for each class, which torch's cross entropy takes instead of ids."""
    return outputs.dim() > 1 and labels.shape == outputs.shape and labels.is_floating_point()


def _fitted_values(loss: Callable[..., Any], outputs: Tensor, labels: Tensor) -> Tensor:
    labels = reshaped_labels("values", outputs, labels)
    if labels.shape != outputs.shape:
        raise InvalidValueError(
            f"{_name(loss)} compares outputs and labels one by one, but outputs have the shape {list(outputs.shape)} "
            f"and labels {list(labels.shape)}."
        )
    return labels.to(outputs.dtype)


def _fitted_classes(loss: Callable[..., Any], outputs: Tensor, labels: Tensor) -> Tensor:
    if _are_probabilities(outputs, labels):
        return labels.to(outputs.dtype)
    per_row = outputs.shape[:1] + outputs.shape[2:]
    labels = reshaped_labels("classes", outputs, labels)
    if labels.is_floating_point() or outputs.dim() < 2 or labels.shape != per_row:
        raise InvalidValueError(
            f"{_name(loss)} takes scores [N, classes] and one class id per row, integers [N], but got outputs of the "
            f"shape {list(outputs.shape)} and labels {str(labels.dtype).removeprefix('torch.')} {list(labels.shape)}."
        )
    return labels.to(torch.int64)


def _name(loss: Any) -> str:
    while isinstance(loss, partial):
        loss = loss.func
    return type(loss).__name__ if isinstance(loss, nn.Module) else str(loss.__name__)
