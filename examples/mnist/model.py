"""The convolutional network, as a `model_fn` for every mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import torch_estimator as te

from . import digits

WEIGHT_DECAY = 5e-4


class ConvolutionalNetwork(nn.Module):
    """32 3x3 filters, max-pooling, 64 hidden units."""

    def __init__(self) -> None:
        super().__init__()
        pooled = (digits.SIZE - 2) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * pooled * pooled, 64),
            nn.ReLU(),
            nn.Linear(64, digits.CLASSES),
        )

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Logits, float32 ``[N, 10]``, of ``image``, float32 ``[N, 28, 28]`` within 0 and 1."""
        logits: Tensor = self.layers(features["image"].unsqueeze(1))
        return logits


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy summed over the batch, divided by its size."""
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / len(labels)


def predictions(logits: Tensor) -> dict[str, Tensor]:
    """What `predict` and the export give."""
    return {"class_ids": logits.argmax(1), "probabilities": logits.softmax(1), "logits": logits}


def accuracy(labels: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
    """Part of the digits that are told right."""
    return (predictions["class_ids"] == labels).float().mean()


def model_fn(mode: str, params: Mapping[str, Any]) -> te.EstimatorSpec:
    """The model; `params` holds ``learning_rate``, the schedule's highest, and ``steps``, its length."""

    def optimizer(named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.lr_scheduler.LRScheduler:
        descent = torch.optim.SGD(
            named, lr=params["learning_rate"], momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY
        )
        return torch.optim.lr_scheduler.OneCycleLR(descent, max_lr=params["learning_rate"], total_steps=params["steps"])

    return te.EstimatorSpec(
        mode=mode,
        module=ConvolutionalNetwork(),
        loss=loss,
        predictions=predictions,
        metrics={"accuracy": accuracy},
        optimizer=optimizer,
    )
