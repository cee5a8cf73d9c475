"""Copies of modules together with their optimizers and schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torch_estimator as te
from torch_estimator.from_module.optimizers import copy_together, optimizers_in


def step(module: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None) -> None:
    optimizer.zero_grad()
    module(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()


def module_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def test_an_optimizer_is_copied_with_its_module_and_state() -> None:
    module = module_of()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, betas=(0.5, 0.9))
    step(module, optimizer)
    again, copy = copy_together(module, optimizer)
    assert list(copy.state) == list(again.parameters())
    step(again, copy)
    assert not torch.equal(again.weight, module.get_parameter("weight"))
    step(module, optimizer)
    assert torch.equal(again.weight, module.get_parameter("weight"))
    assert copy.param_groups[0]["betas"] == (0.5, 0.9)


def test_a_schedule_is_copied_with_its_optimizer() -> None:
    module = module_of()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10)
    before = optimizer.param_groups[0]["lr"]
    again, other = copy_together(module, scheduler)
    assert list(optimizers_in(other)) == [other.optimizer]
    for _ in range(3):
        step(again, other.optimizer, other)
    assert optimizer.param_groups[0]["lr"] == before
    for _ in range(3):
        step(module, optimizer, scheduler)
    assert other.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] != before


class Counting(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.steps = 0
        self.held = [parameter for group in self.param_groups for parameter in group["params"]]

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


def test_attributes_of_a_users_optimizer_are_copied() -> None:
    module = module_of()
    optimizer = Counting(module.parameters())
    step(module, optimizer)
    again, copy = copy_together(module, optimizer)
    assert copy.steps == 1
    assert copy.held == list(again.parameters())


def test_the_packages_own_optimizers_are_copied() -> None:
    module = module_of()
    again, copy = copy_together(module, te.optim.Adagrad(module.parameters(), lr=0.1))
    assert list(copy.state) == list(again.parameters())


def test_tied_parameters_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    (again,) = copy_together(module)
    assert again[1].weight is again[0].weight


def test_a_module_that_cannot_be_copied_is_one_sentence() -> None:
    module = module_of()
    module.kept = module.get_parameter("weight") * 2
    with pytest.raises(TypeError, match=r"^The module Linear cannot be copied, which each training and .* model_fn"):
        copy_together(module)
