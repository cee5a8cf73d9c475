"""The training step: row-sparse updates equal dense ones, and any optimizer works."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_estimator.feature_column.table import Piece, Table
from torch_estimator.optim import Adagrad, Adam, AdamW, Ftrl, GradientDescent
from torch_estimator.train.step import TrainStep
from torch_estimator.train.variables import named_slots

ROWS = 6
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Bag(nn.Module):
    """Sums rows of a table, which starts at zero, and passes them through a dense layer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = Table([Piece(name="a", rows=4), Piece(name="b", rows=2)], dim)
        self.dense = nn.Linear(dim, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.table(ids).sum(1))


class Twice(Bag):
    """Looks the table up in two places."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.table(ids[:, :1]).sum(1) + 2 * self.table(ids[:, 1:]).sum(1))


def loss_of(module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
    return (module(features) - labels).pow(2).sum()


def batches(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    """Ids with repetitions inside and across rows, and padding; row 5 of the table is never touched."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(count):
        ids = torch.randint(0, 5, (7, 3), generator=generator)
        ids[0] = 2
        ids[1, 1:] = ROWS
        ids[2] = ROWS
        made.append((ids, torch.randn(7, 1, generator=generator)))
    return made


def train(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[float]:
    step = TrainStep(module, loss_of, optimizers)
    return [float(step(ids, labels, None)) for ids, labels in batches()]


def train_densely(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[float]:
    losses = []
    for ids, labels in batches():
        loss = loss_of(module, ids, labels, None)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def assert_same(one: nn.Module, other: nn.Module, *, rtol: float = 1e-5) -> None:
    for (name, ours), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol / 10, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kind", [Bag, Twice])
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        partial(Adagrad, lr=0.05),
        partial(Ftrl, lr=0.05),
        partial(Ftrl, lr=0.05, l1_regularization_strength=0.01, l2_regularization_strength=0.1),
        partial(GradientDescent, lr=0.01),
    ],
)
def test_updating_rows_equals_updating_the_whole_table(make: OptimizerFactory, dim: int, kind: type[Bag]) -> None:
    torch.manual_seed(0)
    sparse = kind(dim)
    dense = copy.deepcopy(sparse)
    of_sparse, of_dense = make(sparse.parameters()), make(dense.parameters())

    losses = train(sparse, [of_sparse])

    assert losses == pytest.approx(train_densely(dense, [of_dense]), rel=1e-5)
    assert_same(sparse, dense)
    slots = named_slots(dense, [of_dense])
    for name, slot in named_slots(sparse, [of_sparse]).items():
        torch.testing.assert_close(slot, slots[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [Adagrad(lr=0.1), Adam(lr=0.1), AdamW(lr=0.1, weight_decay=0.5), Ftrl(lr=0.1)])
def test_rows_no_batch_touches_stay_bit_for_bit(make: OptimizerFactory) -> None:
    module = Bag(3)
    nn.init.normal_(module.table.weight[:-1].detach())
    before = module.table.weight[5].detach().clone()
    optimizer = make(module.parameters())
    state = {key: value.clone() for key, value in optimizer.state[module.table.weight].items()}
    train(module, [optimizer])
    assert torch.equal(module.table.weight[5], before)
    for key, value in optimizer.state[module.table.weight].items():
        if value.dim():
            assert torch.equal(value[5], state[key][5])
    assert not torch.equal(module.table.weight[:5], torch.zeros(5, 3))


@pytest.mark.parametrize("make", [Adagrad(lr=0.1), AdamW(lr=0.1), Ftrl(lr=0.1), partial(torch.optim.Adam, lr=0.1)])
def test_the_row_of_missing_values_stays_zero(make: OptimizerFactory) -> None:
    module = Bag(2)
    train(module, [make(module.parameters())])
    assert module.table.weight[ROWS].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.Adam, lr=0.05),
        partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1),
        partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    ],
)
def test_optimizers_of_torch_do_exactly_what_they_do_in_a_plain_loop(make: OptimizerFactory) -> None:
    torch.manual_seed(0)
    module = Bag(3)
    plain = copy.deepcopy(module)
    losses = train(module, [make(module.parameters())])
    assert losses == train_densely(plain, [make(plain.parameters())])
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_rows_that_every_batch_touches_are_updated_as_torch_does_it_densely() -> None:
    torch.manual_seed(0)
    module = Bag(3)
    nn.init.normal_(module.table.weight[:-1].detach())
    plain = copy.deepcopy(module)
    every_row = torch.arange(ROWS + 1).expand(4, ROWS + 1)
    labels = torch.randn(4, 1)
    step = TrainStep(module, loss_of, [AdamW(module.parameters(), lr=0.05, weight_decay=0.3)])
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.05, weight_decay=0.3)
    for _ in range(8):
        step(every_row, labels, None)
        loss_of(plain, every_row, labels, None).backward()
        theirs.step()
        theirs.zero_grad()
    assert_same(module, plain)


def test_parts_may_have_different_optimizers() -> None:
    torch.manual_seed(0)
    module = Bag(3)
    plain = copy.deepcopy(module)

    def make(bag: Bag) -> list[torch.optim.Optimizer]:
        return [Ftrl([bag.table.weight], lr=0.1), torch.optim.Adam(bag.dense.parameters(), lr=0.01)]

    train(module, make(module))
    train_densely(plain, make(plain))
    assert_same(module, plain)


def test_the_loss_is_the_one_before_the_update_and_has_no_graph() -> None:
    module = Bag(1)
    ids, labels = batches()[0]
    expected = loss_of(module, ids, labels, None).item()
    loss = TrainStep(module, loss_of, [GradientDescent(module.parameters(), lr=0.1)])(ids, labels, None)
    assert loss.item() == expected
    assert not loss.requires_grad


def test_parameters_nobody_trains_stay() -> None:
    module = Bag(2)
    frozen = module.dense.weight.detach().clone()
    module.dense.weight.requires_grad_(False)
    train(module, [torch.optim.Adam(module.parameters(), lr=0.1)])
    assert torch.equal(module.dense.weight, frozen)
    assert module.table.weight.any()


def test_parameters_the_loss_does_not_depend_on_stay() -> None:
    module = Bag(2)
    module.unused = nn.Linear(1, 1)
    before = module.unused.weight.detach().clone()
    train(module, [Adagrad(module.parameters(), lr=0.1)])
    assert torch.equal(module.unused.weight, before)


def test_outside_of_a_step_the_module_is_an_ordinary_one() -> None:
    module = Bag(2)
    train(module, [Adagrad(module.parameters(), lr=0.1)])
    ids, labels = batches()[0]
    loss_of(module, ids, labels, None).backward()
    assert module.table.weight.grad is not None


def test_a_failing_loss_leaves_the_module_an_ordinary_one() -> None:
    module = Bag(2)

    def failing(*_: Any) -> Tensor:
        raise KeyError("x")

    with pytest.raises(KeyError):
        TrainStep(module, failing, [Adagrad(module.parameters(), lr=0.1)])(None, None, None)
    assert module.table.recorder is None


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    module = Bag(2)
    optimizers = [Adagrad(module.parameters(), lr=0.1), Ftrl([module.dense.bias], lr=0.1)]
    with pytest.raises(ValueError, match=r"^A parameter is held by two optimizers"):
        TrainStep(module, loss_of, optimizers)


def test_a_parameter_of_another_module_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^An optimizer holds a parameter that is not one of the module's"):
        TrainStep(Bag(2), loss_of, [Adagrad(Bag(2).parameters(), lr=0.1)])


def test_a_parameter_that_is_frozen_or_thawed_in_training_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    module = Bag(2)
    module.dense.bias.requires_grad_(False)
    step = TrainStep(module, loss_of, [Adagrad(module.parameters(), lr=0.1)])
    step.warn_of_thawed()
    assert not caplog.messages
    module.dense.bias.requires_grad_(True)
    for _ in range(2):
        step.warn_of_thawed()
    (message,) = caplog.messages
    assert message.startswith("dense.bias may be trained now (requires_grad), but is not")
    module.dense.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="A parameter was frozen"):
        step(*batches()[0], None)
