"""Hooks of parameters change gradients in training as they do in a plain loop, or the module is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc

ROWS = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
MASK = torch.tensor([1.0, 0.0, 1.0, 0.0])


class Hooked(nn.Module):
    """A module whose parameters have hooks of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.masked, self.scaled, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 1)
        self.register_buffer("rows", MASK[:, None].clone())
        self.masked.weight.register_hook(lambda gradient: gradient * MASK.new_tensor([0.0, 1.0, 1.0, 0.0]))
        # The second hook gets the result of the first.
        self.first.weight.register_hook(lambda gradient: gradient + 1)
        self.first.weight.register_hook(lambda gradient: gradient * 2)
        # A method may read the module: its copy reads the copy.
        self.frozen.weight.register_hook(self.only_rows)
        self.scaled.weight.register_post_accumulate_grad_hook(scale)
        self.out.bias.register_post_accumulate_grad_hook(drop)

    def only_rows(self, gradient: Tensor) -> Tensor:
        return gradient * self.rows

    def forward(self, rows: Tensor) -> Tensor:
        for layer in (self.masked, self.scaled, self.frozen, self.first):
            rows = torch.tanh(layer(rows))
        return self.out(rows)  # type: ignore[no-any-return]


def scale(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(7)


def drop(parameter: Tensor) -> None:
    parameter.grad = None


def hooked() -> Hooked:
    torch.manual_seed(0)
    return Hooked()


def by_hand(steps: int) -> Hooked:
    module = hooked()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    rows = torch.from_numpy(ROWS)
    for _ in range(steps):
        nn.functional.mse_loss(module(rows), rows[:, :1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module


def estimator(module: nn.Module, model_dir: Path, *, compile: bool = False, **given: Any) -> te.Estimator:
    given = {"optimizer": lambda named: torch.optim.SGD([one for _, one in named], lr=0.1, momentum=0.9)} | given
    config = te.RunConfig(compile=compile)
    return te.Estimator.from_module(module, loss=nn.MSELoss(), model_dir=str(model_dir), config=config, **given)


def input_fn() -> te.data.Dataset:
    return te.data.Dataset.from_arrays(ROWS, ROWS[:, :1]).repeat().batch(32)


@pytest.mark.parametrize("compile", [False, True])
def test_hooks_change_gradients_as_in_a_plain_loop(compile: bool, tmp_path: Path) -> None:
    trained = estimator(hooked(), tmp_path, compile=compile).train(input_fn, max_steps=2)
    # The copy of a later training, which resumes from the checkpoint, has the hooks as well.
    trained.train(input_fn, max_steps=5)
    for name, expected in by_hand(5).named_parameters():
        np.testing.assert_allclose(
            trained.get_variable_value(name), expected.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name
        )


def test_hooks_of_a_module_of_a_model_fn_are_called(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        module = hooked()
        return te.EstimatorSpec(
            mode=mode,
            module=module,
            loss=nn.MSELoss(),
            optimizer=lambda named: torch.optim.SGD([v for _, v in named], 0.1),
        )

    of_function = te.Estimator(model_fn, str(tmp_path / "function")).train(input_fn, steps=1)
    np.testing.assert_allclose(
        of_function.get_variable_value("scaled.weight"), by_hand(1).scaled.weight.detach().numpy(), rtol=1e-4, atol=1e-6
    )


def test_hooks_are_called_before_gradients_of_batches_are_added_up(tmp_path: Path) -> None:
    def clamped() -> nn.Linear:
        torch.manual_seed(0)
        module = nn.Linear(4, 1)
        module.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.02))
        return module

    module, rows = clamped(), torch.from_numpy(ROWS)
    gradients = [
        torch.autograd.grad(nn.functional.mse_loss(module(half), half[:, :1]), module.weight)[0]
        for half in (rows[:16], rows[16:])
    ]
    expected = module.weight - 0.1 * (gradients[0] + gradients[1]) / 2
    optimizer = te.optim.accumulate(lambda named: te.optim.GradientDescent(named, lr=0.1), 2)
    trained = estimator(clamped(), tmp_path, optimizer=optimizer)
    trained.train(lambda: te.data.Dataset.from_arrays(ROWS, ROWS[:, :1]).batch(16), steps=2)
    np.testing.assert_allclose(trained.get_variable_value("weight"), expected.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_hooks_of_tables_of_columns_are_refused(tmp_path: Path) -> None:
    word = fc.categorical_column_with_identity("word", 8)
    transform = fc.FeatureTransform(dnn_columns=[fc.embedding_column(word, 1)])
    assert transform.dnn is not None
    module = fc.InputLayer(transform.dnn)
    for parameter in module.parameters():
        parameter.register_hook(torch.zeros_like)
    trained = estimator(module, tmp_path, transform=transform, optimizer="Adam")

    def words() -> te.data.Dataset:
        return te.data.Dataset.from_arrays({"word": [1, 2]}, [[1.0], [2.0]]).batch(2)

    with pytest.raises(te.errors.InvalidValueError, match=r"The table of '.*word_embedding.*' has a hook for its"):
        trained.train(words, steps=1)
    # As the error says, the hook is called with an optimizer of torch.optim, which gets the whole gradient.
    trained = estimator(module, tmp_path / "of torch", transform=transform)
    (name,) = (one for one in trained.train(words, steps=1).get_variable_names() if one.endswith("embedding_weights"))
    before = trained.get_variable_value(name)
    np.testing.assert_array_equal(trained.train(words, steps=1).get_variable_value(name), before)


def test_a_hook_that_reads_the_given_module_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(4, 1)
    module.bias.register_hook(lambda gradient: gradient * module.weight.sum())
    with pytest.raises(te.errors.InvalidValueError, match="The hook of the parameter 'bias' reads the given Linear"):
        estimator(module, tmp_path)


def test_hooks_of_frozen_parameters_are_left_out(tmp_path: Path) -> None:
    module = nn.Linear(4, 1)
    module.weight.register_hook(lambda gradient: gradient * 2)
    module.weight.requires_grad_(False)
    before = module.weight.detach().numpy().copy()
    trained = estimator(module, tmp_path, optimizer="SGD").train(input_fn, steps=1)
    np.testing.assert_array_equal(trained.get_variable_value("weight"), before)
