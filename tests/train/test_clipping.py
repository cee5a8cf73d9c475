"""Clipping inside the step equals clipping the whole gradient by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.line_jobs import Line, assert_same_variables, points, squared_error
from tests.train.test_step import Bag, Twice, assert_same, batches, loss_of
from torch_estimator.optim import clip_gradients_by_norm, clip_gradients_by_value
from torch_estimator.train.optimizers import optimizers_and_schedules
from torch_estimator.train.step import TrainStep

# What does not depend on how many steps a row has been met in: there sparse equals dense.
FACTORIES = {
    "rows": te.optim.SGD(lr=0.005),
    "rows with state": te.optim.Adagrad(lr=0.05),
    "dense": partial(torch.optim.SGD, lr=0.005),
}


def trained(module: nn.Module, factory: Any) -> nn.Module:
    optimizers, schedules = optimizers_and_schedules(factory(module.named_parameters()))
    step = TrainStep(module, loss_of, optimizers, schedules=schedules)
    for ids, labels in batches():
        step(ids, labels, None)
    return module


def trained_by_hand(module: nn.Module, factory: Any, clip: Any) -> nn.Module:
    optimizer = factory(module.named_parameters())
    for ids, labels in batches():
        loss_of(module, ids, labels, None).backward()
        clip(list(module.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    return module


@pytest.mark.parametrize("clip_norm", [0.5, 20.0, 1e9])
@pytest.mark.parametrize("kind", [Bag, Twice])
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("name", FACTORIES)
def test_the_norm_is_that_of_the_whole_gradient(name: str, dim: int, kind: type[Bag], clip_norm: float) -> None:
    torch.manual_seed(0)
    module = kind(dim)
    nn.init.normal_(module.table.weight[:-1].detach())
    plain = trained_by_hand(copy.deepcopy(module), FACTORIES[name], lambda ps: nn.utils.clip_grad_norm_(ps, clip_norm))
    assert_same(trained(module, clip_gradients_by_norm(FACTORIES[name], clip_norm)), plain, rtol=1e-4)


def test_a_small_norm_changes_what_is_learnt() -> None:
    torch.manual_seed(0)
    module = Bag(2)
    clipped = trained(copy.deepcopy(module), clip_gradients_by_norm(te.optim.SGD(lr=0.02), 0.5))
    assert not torch.allclose(clipped.dense.weight, trained(module, te.optim.SGD(lr=0.02)).dense.weight, atol=1e-3)


@pytest.mark.parametrize("name", FACTORIES)
def test_clipping_by_value_clips_the_sums_of_repeated_rows(name: str) -> None:
    torch.manual_seed(0)
    module = Bag(3)
    nn.init.normal_(module.table.weight[:-1].detach())
    plain = trained_by_hand(copy.deepcopy(module), FACTORIES[name], lambda ps: nn.utils.clip_grad_value_(ps, 0.3))
    assert_same(trained(module, clip_gradients_by_value(FACTORIES[name], 0.3)), plain)


@pytest.mark.parametrize("by_norm_first", [True, False])
def test_clippings_are_done_from_the_inside_out(by_norm_first: bool) -> None:
    by_value = partial(clip_gradients_by_value, clip_value=0.3)
    by_norm = partial(clip_gradients_by_norm, clip_norm=0.7)
    inner, outer = (by_norm, by_value) if by_norm_first else (by_value, by_norm)

    def clip(parameters: Any) -> None:
        steps = [lambda: nn.utils.clip_grad_norm_(parameters, 0.7), lambda: nn.utils.clip_grad_value_(parameters, 0.3)]
        for step in steps if by_norm_first else reversed(steps):
            step()

    torch.manual_seed(0)
    module = Bag(3)
    factory = te.optim.Adagrad(lr=0.05)
    plain = trained_by_hand(copy.deepcopy(module), factory, clip)
    assert_same(trained(module, outer(inner(factory))), plain, rtol=1e-4)


def test_what_one_factory_makes_has_one_norm_schedules_and_kinds_of_optimizers_mixed() -> None:
    def several(named: Any) -> Any:
        named = dict(named)
        sparse = te.optim.SGD([named["table.weight"]], lr=0.02)
        dense = torch.optim.SGD([named["dense.weight"], named["dense.bias"]], lr=0.02)
        return [torch.optim.lr_scheduler.ConstantLR(sparse, 1.0, 1), dense]

    torch.manual_seed(0)
    module = Bag(3)
    plain = trained_by_hand(copy.deepcopy(module), te.optim.SGD(lr=0.02), lambda ps: nn.utils.clip_grad_norm_(ps, 0.5))
    assert_same(trained(module, clip_gradients_by_norm(several, 0.5)), plain, rtol=1e-4)


def test_each_call_of_a_factory_has_a_norm_of_its_own() -> None:
    factory = clip_gradients_by_norm(te.optim.SGD(lr=0.02), 0.5)

    def clip(parameters: Any) -> None:
        nn.utils.clip_grad_norm_(parameters[:1], 0.5)
        nn.utils.clip_grad_norm_(parameters[1:], 0.5)

    def halves(named: Any) -> Any:
        (first, *others) = named
        return [factory([first]), factory(others)]

    torch.manual_seed(0)
    module = Bag(3)
    plain = trained_by_hand(copy.deepcopy(module), te.optim.SGD(lr=0.02), clip)
    assert_same(trained(module, halves), plain, rtol=1e-4)


def test_a_parameter_without_a_gradient_is_left_out() -> None:
    module = Bag(2)
    module.unused = nn.Linear(1, 1)
    before = module.unused.weight.detach().clone()
    trained(module, clip_gradients_by_norm(te.optim.SGD(lr=0.02), 0.5))
    assert torch.equal(module.unused.weight, before)


def clipped_job(model_dir: Path, **settings: Any) -> te.Estimator:
    factory = clip_gradients_by_norm(clip_gradients_by_value(te.optim.AdamW(lr=0.05), 1.0), 0.1)

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=factory)

    config = te.RunConfig(str(model_dir), random_seed=1, save_checkpoints_steps=1000, **settings)
    return te.Estimator(model_fn, config=config)


def test_clipped_training_resumes_bit_for_bit_and_compiles_into_one_graph(
    tmp_path: Path, compilations: Callable[[], list[int]]
) -> None:
    whole = clipped_job(tmp_path / "whole").train(points, steps=12)
    clipped_job(tmp_path / "resumed").train(points, steps=5)
    assert_same_variables(clipped_job(tmp_path / "resumed").train(points, steps=7), whole)
    compiled = clipped_job(tmp_path / "compiled", compile=True).train(points, steps=12)
    assert compilations() == [4]
    for name in ("linear.weight", "linear.bias"):
        torch.testing.assert_close(
            compiled.get_variable_value(name), whole.get_variable_value(name), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("clip", [clip_gradients_by_norm, clip_gradients_by_value])
def test_mistakes_are_told_at_once(clip: Any) -> None:
    with pytest.raises(te.UserError, match=r"^clip_(norm|value) must be greater than 0, but got 0\.$"):
        clip(te.optim.SGD(lr=0.1), 0)
    with pytest.raises(te.UserError, match=r"but got SGD with parameters; write functools\.partial\(torch\.optim\.SGD"):
        clip(torch.optim.SGD(nn.Linear(1, 1).parameters()), 1.0)
