"""Which changes a snapshot of a model sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_estimator.compile.change_detector import ModelSnapshot
from torch_estimator.heads.function_head import FunctionHead


@dataclass(slots=True)
class Phase:
    factor: float = 1.0


def _shifted(x: float, by: dict[str, float]) -> float:
    return x + by["shift"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
        self.settings: Any = SimpleNamespace(scale=1.0, sizes=[1, 2])
        self.phase = Phase()
        self.factors = np.ones(3)
        self.shifted = partial(_shifted, by={"shift": 1.0})
        self.deep: Any = SimpleNamespace(loss=SimpleNamespace(weights={"aux": 1.0}))
        held = [1.0]
        self.gain = lambda x: x * held[0]


def _nothing(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model.inner[0].weight += 1
    optimizer.param_groups[0]["lr"] = 0.3


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "a number": lambda model, _: setattr(model.inner[1], "p", 0.1),
    "a new attribute": lambda model, _: setattr(model, "new", None),
    "a number in an object": lambda model, _: setattr(model.settings, "scale", 2.0),
    "a number in a list in an object": lambda model, _: model.settings.sizes.append(3),
    "a slot": lambda model, _: setattr(model.phase, "factor", 2.0),
    "an array in place": lambda model, _: model.factors.__imul__(2.0),
    "an argument of a partial": lambda model, _: model.shifted.keywords["by"].update(shift=2.0),
    "a number far inside": lambda model, _: model.deep.loss.weights.update(aux=2.0),
    "what a function closes over": lambda model, _: model.gain.__closure__[0].cell_contents.append(2.0),
    "the mode": lambda model, _: model.inner[1].eval(),
    "what is trained": lambda model, _: model.inner[0].weight.requires_grad_(False),
    "the layout of a parameter": lambda model, _: setattr(
        model.inner[0].weight, "data", model.inner[0].weight.data.t().contiguous().t()
    ),
    "the type of a parameter": lambda model, _: model.double(),
    "the shape of a parameter": lambda model, _: setattr(
        model.inner[0].weight, "data", model.inner[0].weight.data[:1].clone()
    ),
    "a module": lambda model, _: setattr(model, "inner", nn.Sequential(*model.inner)),
    "a forward hook": lambda model, _: model.inner[0].register_forward_hook(lambda *_: None),
    "the optimizer's state": lambda _, optimizer: optimizer.state.clear(),
    "the optimizer's groups": lambda _, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
}


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_a_snapshot_sees_changes_but_not_training(change: str | None) -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model.inner[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = ModelSnapshot(model, optimizer)
    (CHANGES[change] if change else _nothing)(model, optimizer)
    assert (ModelSnapshot(model, optimizer) == before) is (change is None)


class Loss:
    def __init__(self) -> None:
        self.beta = 1.0

    def __call__(self, outputs: Any, labels: Any) -> Any:
        return (outputs - labels).abs().sum() * self.beta

    def of(self, outputs: Any, labels: Any) -> Any:
        return self(outputs, labels)


def _closing_over(loss: Loss) -> Any:
    return lambda outputs, labels: loss(outputs, labels)


@pytest.mark.parametrize("form", [lambda loss: loss, lambda loss: loss.of, _closing_over, FunctionHead])
def test_a_snapshot_sees_changes_of_a_loss(form: Callable[[Loss], Any]) -> None:
    loss = Loss()
    given = FunctionHead(loss, None, None) if form is FunctionHead else form(loss)
    before = ModelSnapshot(given)
    assert ModelSnapshot(given) == before
    loss.beta = 5.0
    assert ModelSnapshot(given) != before
