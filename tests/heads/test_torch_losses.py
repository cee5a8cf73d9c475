"""Shape and dtype of labels for torch's own losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from torch_estimator.heads.torch_losses import fitted_labels, loss_kind


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (nn.MSELoss(), "values"),
        (functional.huber_loss, "values"),
        (partial(functional.binary_cross_entropy_with_logits, reduction="sum"), "values"),
        (nn.CrossEntropyLoss(), "classes"),
        (partial(functional.nll_loss, reduction="sum"), "classes"),
        (nn.CTCLoss(), None),
        (lambda outputs, labels: outputs.sum(), None),
    ],
)
def test_losses_are_known(loss: Any, kind: str | None) -> None:
    assert loss_kind(loss) == kind


def fitted(loss: Any, outputs: list[int], labels: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = fitted_labels(loss_kind(loss), loss, torch.zeros(outputs), labels)
    return result


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "shape", "dtype"),
    [
        (nn.MSELoss(), [4, 1], torch.ones(4, dtype=torch.float64), [4, 1], torch.float32),
        (nn.MSELoss(), [4], torch.ones(4, 1, dtype=torch.int32), [4], torch.float32),
        (nn.MSELoss(), [4, 2], torch.ones(4, 2), [4, 2], torch.float32),
        (nn.CrossEntropyLoss(), [4, 3], torch.ones(4, 1, dtype=torch.int32), [4], torch.int64),
        (nn.CrossEntropyLoss(), [4, 3, 5, 5], torch.ones(4, 5, 5, dtype=torch.uint8), [4, 5, 5], torch.int64),
        (nn.CrossEntropyLoss(), [4, 3], torch.ones(4, 3, dtype=torch.float64), [4, 3], torch.float32),
        (nn.CTCLoss(), [4, 3], torch.ones(4, 1, dtype=torch.int32), [4, 1], torch.int32),
    ],
)
def test_labels_get_the_shape_and_dtype(
    loss: Any, outputs: list[int], labels: torch.Tensor, shape: list[int], dtype: torch.dtype
) -> None:
    result = fitted(loss, outputs, labels)
    assert list(result.shape) == shape
    assert result.dtype == dtype


@pytest.mark.parametrize(
    ("loss", "outputs", "labels"),
    [
        (nn.MSELoss(), [4, 2], torch.ones(4)),
        (nn.MSELoss(), [4], torch.ones(3)),
        (nn.CrossEntropyLoss(), [4, 3], torch.ones(4)),
        (nn.CrossEntropyLoss(), [4], torch.ones(4, dtype=torch.int64)),
        (nn.CrossEntropyLoss(), [4, 3], torch.ones(3, dtype=torch.int64)),
    ],
)
def test_labels_that_cannot_be_compared_are_refused(loss: Any, outputs: list[int], labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^(MSELoss compares|CrossEntropyLoss takes)") as raised:
        fitted(loss, outputs, labels)
    assert "\n" not in str(raised.value)
