"""What training changes beside variables and slots is in the checkpoint, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import Line, assert_same_variables, points, squared_error
from torch_estimator.checkpoint.checkpoint import load_checkpoint

SGD = partial(torch.optim.SGD, lr=0.05)


class Counting(torch.optim.Optimizer):
    """Keeps counts as Python's numbers, in its state and in its groups."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                slots = self.state[parameter]
                if not slots:
                    slots.update(step=0, mean=torch.zeros_like(parameter))
                slots["step"] += 1
                slots["mean"].lerp_(parameter.grad, 0.1)
                parameter.sub_(slots["mean"] / (1 - 0.9 ** slots["step"]), alpha=group["lr"] / group["steps"])


class Centred(nn.Module):
    """A loss that follows a mean and weighs by a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))
        self.register_buffer("weight", torch.ones(()))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            self.centre.mul_(0.9).add_(outputs.mean(), alpha=0.1)
        return squared_error(outputs - self.centre, labels) * self.weight


class Lowering(te.Hook):
    every_n_steps = 1

    def after_step(self, context: te.RunContext) -> None:
        if context.global_step == 3:
            context.optimizers[0].param_groups[0]["lr"] *= 0.1


def job(folder: Path, optimizer: Any = SGD, loss: Callable[[], Any] = lambda: squared_error) -> te.Estimator:
    torch.manual_seed(0)
    config = te.RunConfig(random_seed=1, compile=False)
    return te.Estimator.from_module(Line(), loss=loss(), optimizer=optimizer, model_dir=str(folder), config=config)


@pytest.mark.parametrize(
    ("given", "hooks"),
    [
        ({"optimizer": partial(Counting, lr=0.5)}, ()),
        ({"loss": Centred}, ()),
        ({}, (Lowering(),)),
        ({"optimizer": partial(te.optim.Adagrad, lr=0.1)}, (Lowering(),)),
    ],
    ids=["an optimizer's counts", "a loss's buffer", "a setting", "a setting of ours"],
)
def test_what_training_changes_is_there_after_a_resume(tmp_path: Path, given: Any, hooks: Any) -> None:
    def data() -> te.data.Dataset:
        return points().repeat()

    whole = job(tmp_path / "whole", **given).train(data, max_steps=12, hooks=hooks)
    for steps in (5, 6, 12):
        resumed = job(tmp_path / "resumed", **given).train(data, max_steps=steps, hooks=hooks)
    assert_same_variables(resumed, whole)


def test_what_the_program_gives_anew_wins(tmp_path: Path) -> None:
    seen: dict[str, float] = {}

    class Looking(te.Hook):
        def begin(self, context: te.RunContext) -> None:
            seen["lr"] = context.optimizers[0].param_groups[0]["lr"]

    def data() -> te.data.Dataset:
        return points().repeat()

    job(tmp_path, loss=Centred).train(data, max_steps=5, hooks=[Lowering()])
    job(tmp_path, loss=Centred).train(data, max_steps=6, hooks=[Looking()])
    assert seen["lr"] == pytest.approx(0.005)
    assert list(load_checkpoint(str(tmp_path)).state["loss_buffers"]) == ["centre"]
    job(tmp_path, partial(torch.optim.SGD, lr=0.2), loss=Centred).train(data, max_steps=7, hooks=[Looking()])
    assert seen["lr"] == 0.2
