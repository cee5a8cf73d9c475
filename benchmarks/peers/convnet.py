"""The network of `examples/mnist` and its data for peers that train PyTorch modules; runs in `.bench/torch`."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import mnist_digits
from benchmarks.peers.report import Report


class ConvNet(nn.Sequential):
    """32 3x3 filters, max-pooling, 64 hidden units: logits, ``[N, 10]``, of images ``[N, 28, 28]``."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 28)),
            nn.Conv2d(1, 32, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 13 * 13, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


def loss_of(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The mean cross entropy."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def optimizer_of(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Momentum with the one-cycle schedule of the example, moved on by every step."""
    descent = torch.optim.SGD(
        model.parameters(),
        lr=mnist_digits.LEARNING_RATE,
        momentum=mnist_digits.MOMENTUM,
        nesterov=True,
        weight_decay=mnist_digits.WEIGHT_DECAY,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(descent, max_lr=mnist_digits.LEARNING_RATE, total_steps=steps)
    return descent, schedule


def loader(digits: mnist_digits.Digits, args: argparse.Namespace) -> DataLoader[tuple[Tensor, ...]]:
    """Shuffled batches, collated image by image as a DataLoader does."""
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    rows = TensorDataset(torch.from_numpy(digits.images), torch.from_numpy(digits.labels))
    return DataLoader(rows, batch_size=args.batch, shuffle=True, drop_last=True)


def evaluate(model: nn.Module, digits: mnist_digits.Digits, found: Report) -> None:
    """Enters the accuracy."""
    with torch.no_grad():
        chosen = model(torch.from_numpy(digits.images)).argmax(1)
    found.accuracy = float((chosen.numpy() == digits.labels).mean())
