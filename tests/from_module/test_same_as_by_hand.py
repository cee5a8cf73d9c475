"""The Estimator and a plain loop train a module to the same weights."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.from_module.hand import SETTINGS, assert_same_weights, data, input_fn, train_by_hand
from tests.line_jobs import assert_same_variables, variables
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.train.model import Model


class Tied(nn.Module):
    """Module with a shared matrix, dropout, batch norm, a counting buffer, and a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(3, 1)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.shape[0]
        hidden = self.dropout(self.norm(torch.tanh(self.decoder(torch.tanh(self.encoder(x))))))
        return self.out(hidden + self.frozen)


def tied() -> Tied:
    torch.manual_seed(3)
    return Tied()


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs[:, 0], labels)


def estimator(module: nn.Module, model_dir: Path, **arguments: Any) -> te.Estimator:
    settings = {**SETTINGS, **arguments.pop("settings", {})}
    arguments = {"loss": nn.MSELoss(), "optimizer": partial(torch.optim.Adam, lr=0.01), **arguments}
    return te.Estimator.from_module(module, model_dir=str(model_dir), config=te.RunConfig(**settings), **arguments)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_every_kind_of_parameter_and_buffer(tmp_path: Path, compiled: bool) -> None:
    module = tied()
    before = copy.deepcopy(module.state_dict())
    x, y = data()
    # Fused compiled code draws the mask of dropout in another order.
    if compiled:
        module.dropout.p = 0.0
    ours = estimator(module, tmp_path, settings={"compile": compiled}).train(input_fn(x, y), steps=100)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert module.training
    hand = train_by_hand(module, [torch.optim.Adam(module.parameters(), lr=0.01)], loss, x, y)
    assert_same_weights(ours.trained_module(), hand, 1e-4 if compiled else 1e-5)
    assert int(hand.get_buffer("seen")) == 800


def test_training_in_pieces_is_bit_for_bit_training_at_once(tmp_path: Path) -> None:
    x, y = data()
    once = estimator(tied(), tmp_path / "once").train(input_fn(x, y), steps=40)
    pieces = estimator(tied(), tmp_path / "pieces").train(input_fn(x, y), steps=13)
    pieces.evaluate(lambda: (x, y))
    next(pieces.predict(lambda: x))
    pieces.trained_module()
    estimator(tied(), tmp_path / "pieces").train(input_fn(x, y), steps=27)
    assert_same_variables(once, pieces)


def test_shared_parameters_are_saved_once_and_stay_shared(tmp_path: Path) -> None:
    ours = estimator(tied(), tmp_path).train(input_fn(*data()), steps=2)
    assert "encoder.weight" in variables(ours)
    assert "decoder.weight" not in variables(ours)
    trained = ours.trained_module()
    assert isinstance(trained, Tied)
    assert trained.decoder.weight is trained.encoder.weight


def optimizers_of(module: Tied) -> list[torch.optim.Optimizer]:
    others = [parameter for name, parameter in module.named_parameters() if not name.startswith("out")]
    return [
        torch.optim.SGD(
            [
                {"params": [others[0]], "lr": 0.1, "momentum": 0.9},
                {"params": others[1:], "weight_decay": 0.1},
            ],
            lr=0.02,
        ),
        torch.optim.AdamW(module.out.parameters(), lr=0.01, betas=(0.8, 0.95), amsgrad=True),
    ]


def test_several_optimizers_made_on_the_modules_parameters(tmp_path: Path) -> None:
    x, y = data()
    module, hand = tied(), tied()
    given = optimizers_of(module)
    ours = estimator(module, tmp_path, optimizer=given)
    ours.train(input_fn(x, y), steps=60).train(input_fn(x, y), steps=40)
    assert not any(one.state for one in given)
    assert_same_weights(ours.trained_module(), train_by_hand(hand, optimizers_of(hand), loss, x, y))


def test_the_state_of_an_optimizer_that_has_taken_steps_is_taken_over(tmp_path: Path) -> None:
    x, y = data()
    hand = tied()
    hand.dropout.p = 0.0
    optimizer = torch.optim.Adam(hand.parameters(), lr=0.01)
    train_by_hand(hand, [optimizer], loss, x, y, steps=24)
    ours = estimator(hand, tmp_path, optimizer=optimizer).train(input_fn(x, y), steps=76)
    assert_same_weights(ours.trained_module(), train_by_hand(hand, [optimizer], loss, x, y, steps=76))


@pytest.mark.parametrize("name", ["Adam", "SGD", "Adagrad"])
def test_an_optimizer_by_name(tmp_path: Path, name: str) -> None:
    x, y = data()
    ours = estimator(tied(), tmp_path, optimizer=name).train(input_fn(x, y), steps=3)
    assert not np.array_equal(ours.get_variable_value("out.weight"), tied().out.weight.detach().numpy())


def test_later_changes_of_the_module_have_no_effect(tmp_path: Path) -> None:
    x, y = data()
    module = tied()
    ours = estimator(module, tmp_path / "one")
    with torch.no_grad():
        module.out.weight.fill_(9)
    ours.train(input_fn(x, y), steps=2)
    assert_same_variables(ours, estimator(tied(), tmp_path / "other").train(input_fn(x, y), steps=2))


def test_a_module_in_half_or_double_precision(tmp_path: Path) -> None:
    x, y = data()
    for dtype in (torch.float64, torch.bfloat16):
        module = nn.Linear(3, 1, dtype=dtype)
        ours = estimator(module, tmp_path / str(dtype)).train(input_fn(x, y), steps=2)
        weight = ours.trained_module().get_parameter("weight")
        assert weight.dtype == dtype
        assert ours.get_variable_value("weight").tolist() == weight.tolist()
        assert ours.evaluate(lambda: (x, y))["loss"] > 0
        assert next(ours.predict(lambda: x))["output"].shape == (1,)


class Passing(nn.Module):
    """Module with non-persistent buffers: a running mean, one created in the first pass, and an expanded view."""

    mean: Tensor

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("scratch", torch.zeros(size), persistent=False)
        self.register_buffer("ones", torch.ones(1).expand(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        if not hasattr(self, "rows"):
            self.register_buffer("rows", torch.arange(5), persistent=False)
        outputs: Tensor = self.out(x - self.mean).squeeze(1)
        return outputs


def passing(size: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return Passing(size)


def test_buffers_that_torch_does_not_save_are_saved_too(tmp_path: Path) -> None:
    x, y = data()
    once = estimator(passing(), tmp_path / "once").train(input_fn(x, y), steps=20)
    pieces = estimator(passing(), tmp_path / "pieces").train(input_fn(x, y), steps=9)
    resumed = estimator(passing(), tmp_path / "pieces").train(input_fn(x, y), steps=11)
    assert_same_variables(once, resumed)
    mean = resumed.trained_module().get_buffer("mean")
    assert not torch.equal(mean, torch.zeros(3))
    assert torch.equal(mean, once.trained_module().get_buffer("mean"))
    assert pieces.evaluate(lambda: (x, y)) == once.evaluate(lambda: (x, y))


def test_a_buffer_that_torch_does_not_save_may_be_missing_or_of_another_size(tmp_path: Path) -> None:
    x, y = data()
    before = estimator(passing(), tmp_path).train(input_fn(x, y), steps=2).trained_module()
    larger = estimator(passing(5), tmp_path)
    assert torch.equal(larger.trained_module().get_buffer("mean"), before.get_buffer("mean"))
    larger.train(input_fn(x, y), steps=1)
    assert larger.trained_module().get_buffer("scratch").shape == (5,)
    path = tmp_path / "model.ckpt-3"
    kept = {"out.weight": torch.ones(1, 3), "out.bias": torch.ones(1)}
    saved = load_checkpoint(path)
    state = {key: value for key, value in saved.state.items() if key != "passing_buffers"}
    old = dataclasses.replace(saved, variables=kept, state=state)
    model = Model(te.EstimatorSpec(mode=te.ModeKeys.EVAL, module=passing(), loss=nn.MSELoss()))
    model.restore(old)
    assert torch.equal(model.module.get_parameter("out.weight"), kept["out.weight"])
    assert torch.equal(model.module.get_buffer("mean"), torch.zeros(3))


def test_an_evaluation_in_memory_has_buffers_that_torch_does_not_save(tmp_path: Path) -> None:
    x, y = data()
    ours = estimator(passing(), tmp_path)
    hook = te.InMemoryEvaluatorHook(ours, lambda: (x, y), every_n_iter=5)
    ours.train(input_fn(x, y), steps=10, hooks=[hook])
    assert "mean" in variables(ours)


class Summed(nn.Module):
    """A module whose loss depends on the sum of a parameter, so that all elements of its gradient are one in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.shifts = nn.Parameter(torch.ones(40))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) + 0.01 * self.shifts.sum()


def test_a_fused_optimizer_gets_gradients_that_lie_in_memory_as_their_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Summed()
    ours = estimator(
        copy.deepcopy(module),
        tmp_path,
        loss=loss,
        optimizer=partial(torch.optim.Adam, lr=0.01, fused=True),
        settings={"compile": False},
    )
    ours.train(input_fn(*data()), steps=20)
    train_by_hand(module, [torch.optim.Adam(module.parameters(), lr=0.01, fused=True)], loss, *data(), steps=20)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(ours.get_variable_value(name), parameter.detach().numpy(), rtol=1e-5)
