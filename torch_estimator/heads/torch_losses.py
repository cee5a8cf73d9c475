"""What torch's own losses want of labels: a dtype and a shape that the input seldom has by itself."""

from __future__ import annotations

from collections.abc import Callable
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
    """Returns what a loss of torch compares outputs with, or None for any other function.

    ``"values"`` are as many as the outputs; ``"classes"`` are one id for each row of scores.
    """
    while isinstance(loss, partial):
        loss = loss.func
    if isinstance(loss, _CLASS_MODULES) or any(loss is one for one in _CLASS_FUNCTIONS):
        return "classes"
    if isinstance(loss, _VALUE_MODULES) or any(loss is one for one in _VALUE_FUNCTIONS):
        return "values"
    return None


def fitted_labels(kind: Kind | None, loss: Callable[..., Any], outputs: Any, labels: Any) -> Any:
    """Returns labels as a loss of torch takes them: ``[N]`` for ``[N, 1]`` or the reverse, of the dtype it needs.

    Args:
        kind: Of the loss; see `loss_kind`.
        loss: Named in errors.
        outputs: Of the module.
        labels: As the input has them.

    Raises:
        InvalidTypeError: The labels are strings.
        InvalidValueError: They cannot be compared: torch would broadcast ``[N]`` against ``[N, 1]`` to ``[N, N]``.
    """
    if kind is not None and isinstance(labels, np.ndarray):
        raise InvalidTypeError(
            f"{_name(loss)} takes labels that are numbers, but these are strings, such as {labels.ravel()[0]!r}; give "
            "numbers, or a head with a label_vocabulary in the place of the loss."
        )
    if kind is None or not isinstance(outputs, Tensor) or not isinstance(labels, Tensor):
        return labels
    return _values(loss, outputs, labels) if kind == "values" else _classes(loss, outputs, labels)


def reshaped_labels(kind: Kind | None, outputs: Any, labels: Any) -> Any:
    """Return labels of the shape that `fitted_labels` gives them, in their own dtype."""
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
    return outputs.dim() > 1 and labels.shape == outputs.shape and labels.is_floating_point()


def _values(loss: Callable[..., Any], outputs: Tensor, labels: Tensor) -> Tensor:
    labels = reshaped_labels("values", outputs, labels)
    if labels.shape != outputs.shape:
        raise InvalidValueError(
            f"{_name(loss)} compares outputs and labels one by one, but outputs have the shape {list(outputs.shape)} "
            f"and labels {list(labels.shape)}."
        )
    return labels.to(outputs.dtype)


def _classes(loss: Callable[..., Any], outputs: Tensor, labels: Tensor) -> Tensor:
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
