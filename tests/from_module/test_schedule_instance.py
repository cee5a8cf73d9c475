"""A learning-rate schedule of the optimizer of a user's module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.from_module.hand import assert_same_weights, batches, data, input_fn
from tests.from_module.test_same_as_by_hand import estimator, loss
from tests.line_jobs import assert_same_variables


def scheduled(module: nn.Module) -> torch.optim.lr_scheduler.LRScheduler:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200)


def own(module: nn.Module) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(te.optim.SGD(module.parameters(), lr=0.1), 10, 0.9)


def module_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


@pytest.mark.parametrize("make", [scheduled, own])
def test_a_schedule_made_on_the_modules_optimizer(
    tmp_path: Path, make: Callable[[nn.Module], torch.optim.lr_scheduler.LRScheduler]
) -> None:
    x, y = data()
    module, hand = module_of(), module_of()
    ours = estimator(module, tmp_path / "a", optimizer=make(module)).train(input_fn(x, y), steps=100)
    scheduler = make(hand)
    for features, labels in batches(x, y, steps=100):
        scheduler.optimizer.zero_grad()
        loss(hand(features), labels).backward()
        scheduler.optimizer.step()
        scheduler.step()
    assert_same_weights(ours.trained_module(), hand)
    again = module_of()
    pieces = estimator(again, tmp_path / "b", optimizer=make(again)).train(input_fn(x, y), steps=37)
    pieces.train(input_fn(x, y), steps=63)
    assert_same_variables(ours, pieces)
