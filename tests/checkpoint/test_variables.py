"""Names of a model's variables and slots in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import nn

from torch_estimator.checkpoint.variables import named_slots, named_variables, restore_slots
from torch_estimator.feature_column.table import Piece, Table
from torch_estimator.optim import Adagrad, Adam, Ftrl


class Bags(nn.Module):
    """Module with two columns in one table, and a dense layer with a buffer."""

    variable_separator = "/"

    def __init__(self) -> None:
        super().__init__()
        self.table = Table([Piece(name="wide/a/weights", rows=2), Piece(name="wide/b/weights", rows=3)], 4)
        self.dense = nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(1)
        nn.init.normal_(self.table.weight[:-1].detach())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.dense(self.table(ids).sum(1)))


OPTIMIZERS = [
    partial(Adagrad, lr=0.1),
    partial(Ftrl, lr=0.1),
    partial(Adam, lr=0.1),
    partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.5),
]

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def step(module: Bags, optimizer: torch.optim.Optimizer) -> None:
    module(torch.tensor([[0, 3], [1, 5], [0, 0]])).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_table_appears_under_its_columns_names_without_the_padding_row() -> None:
    module = Bags()
    variables = named_variables(module)
    assert list(variables) == [
        "wide/a/weights",
        "wide/b/weights",
        "dense/weight",
        "dense/bias",
        "norm/weight",
        "norm/bias",
        "norm/running_mean",
        "norm/running_var",
        "norm/num_batches_tracked",
    ]
    assert torch.equal(variables["wide/b/weights"], module.table.weight[2:5])


def test_modules_without_a_separator_keep_torchs_names() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False))
    assert list(named_variables(module)) == ["0.weight", "0.bias", "1.weight"]


def test_variables_are_views_without_gradients() -> None:
    module = Bags()
    for view in named_variables(module).values():
        assert not view.requires_grad
        view.fill_(1)
    assert module.table.weight[:-1].eq(1).all()
    assert module.table.weight[-1].eq(0).all()
    assert module.dense.bias.eq(1).all()


def test_slots_are_named_as_in_tensorflow() -> None:
    module = Bags()
    slots = named_slots(module, [Ftrl([module.table.weight], lr=0.1), Adagrad(module.dense.parameters(), lr=0.1)])
    assert sorted(slots) == [
        "dense/bias/Adagrad",
        "dense/weight/Adagrad",
        "wide/a/weights/Ftrl",
        "wide/a/weights/Ftrl_1",
        "wide/b/weights/Ftrl",
        "wide/b/weights/Ftrl_1",
    ]
    assert slots["wide/a/weights/Ftrl"].shape == (2, 4)


def test_a_scalar_slot_of_a_table_appears_once() -> None:
    module = Bags()
    slots = named_slots(module, [Adam([module.table.weight], lr=0.1)])
    assert [name for name in slots if name.endswith("/step")] == ["wide/a/weights/step"]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_restored_optimizer_continues_exactly(make: OptimizerFactory) -> None:
    torch.manual_seed(0)
    module = Bags()
    optimizer = make(module.parameters())
    step(module, optimizer)
    step(module, optimizer)
    variables = {name: view.clone() for name, view in named_variables(module).items()}
    slots = {name: view.clone() for name, view in named_slots(module, [optimizer]).items()}

    restored = Bags()
    for name, view in named_variables(restored).items():
        view.copy_(variables[name])
    other = make(restored.parameters())
    restore_slots(restored, [other], slots)

    assert sorted(named_slots(restored, [other])) == sorted(slots)
    for _ in range(3):
        step(module, optimizer)
        step(restored, other)
    for name, view in named_variables(module).items():
        assert torch.equal(view, named_variables(restored)[name]), name


def test_restored_slots_are_copies() -> None:
    module = Bags()
    optimizer = torch.optim.Adam(module.parameters())
    step(module, optimizer)
    slots = {name: view.clone() for name, view in named_slots(module, [optimizer]).items()}
    kept = {name: view.clone() for name, view in slots.items()}
    restored = torch.optim.Adam(module.parameters())
    restore_slots(module, [restored], slots)
    step(module, restored)
    assert all(torch.equal(slots[name], value) for name, value in kept.items())


def test_settings_of_a_restored_optimizer_are_the_new_ones() -> None:
    module = Bags()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    step(module, optimizer)
    changed = torch.optim.Adam(module.parameters(), lr=0.5)
    restore_slots(module, [changed], named_slots(module, [optimizer]))
    assert changed.param_groups[0]["lr"] == 0.5
