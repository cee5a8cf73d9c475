"""Learning-rate schedules: the numbers torch gives them, resumed bit for bit, compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import torch_estimator as te
from tests.line_jobs import Line, assert_same_variables, points, squared_error
from torch_estimator.summary.scalar_reader import read_scalars
from torch_estimator.train.optimizers import optimizers_and_schedules
from torch_estimator.train.step import TrainStep

Factory = Callable[[Any], Any]


def one_cycle(named: Any, optimizer: Any = te.optim.AdamW, total_steps: int = 40) -> Any:
    return lr_scheduler.OneCycleLR(optimizer(named, lr=0.01), max_lr=0.1, total_steps=total_steps)


def warm_up_then_cosine(named: Any) -> Any:
    optimizer = te.optim.Adagrad(named, lr=0.1)
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, 15)], [5])


def chained(named: Any) -> Any:
    optimizer = te.optim.SGD(named, lr=0.1)
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.MultiStepLR(optimizer, [3, 11])]
    )


SCHEDULES: dict[str, Factory] = {
    "one cycle, AdamW": one_cycle,
    "one cycle, torch's AdamW": partial(one_cycle, optimizer=torch.optim.AdamW),
    "one cycle, torch's SGD": partial(one_cycle, optimizer=partial(torch.optim.SGD, momentum=0.9)),
    "one cycle, RMSProp": partial(one_cycle, optimizer=partial(te.optim.RMSProp, momentum=0.9)),
    "cosine": lambda named: lr_scheduler.CosineAnnealingLR(te.optim.Adam(named, lr=0.05), 20),
    "lambda": lambda named: lr_scheduler.LambdaLR(te.optim.Ftrl(named, lr=0.5), lambda step: 1 / (1 + step)),
    "warm restarts": lambda named: lr_scheduler.CosineAnnealingWarmRestarts(te.optim.SGD(named, lr=0.1), 4, 2),
    "cyclic": lambda named: lr_scheduler.CyclicLR(te.optim.Adam(named, lr=0.1), 0.01, 0.1, 3),
    "warm-up, then cosine": warm_up_then_cosine,
    "chained": chained,
}


def job(model_dir: object, factory: Factory, **settings: Any) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=factory)

    settings = {"random_seed": 1, "save_checkpoints_steps": 1000, **settings}
    return te.Estimator(model_fn, str(model_dir), te.RunConfig(**settings))


def groups_of(made: Any) -> list[dict[str, Any]]:
    optimizers, _ = optimizers_and_schedules(made)
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def moved(groups: Sequence[dict[str, Any]]) -> list[Any]:
    return [(group["lr"], group.get("betas"), group.get("momentum")) for group in groups]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_has_the_rate_that_a_plain_loop_gives_it(name: str) -> None:
    torch.manual_seed(0)
    module, plain = Line(), Line()
    plain.load_state_dict(module.state_dict())
    made, theirs = SCHEDULES[name](module.named_parameters()), SCHEDULES[name](plain.named_parameters())
    optimizers, schedules = optimizers_and_schedules(made)
    step = TrainStep(module, loss_of, optimizers, schedules=schedules)
    for x in torch.randn(30, 4, 2):
        y = x.sum(1, keepdim=True)
        assert moved(groups_of(made)) == moved(theirs.optimizer.param_groups)
        step({"x": x}, y, None)
        loss_of(plain, {"x": x}, y, None).backward()
        theirs.optimizer.step()
        theirs.optimizer.zero_grad()
        theirs.step()
    for ours, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-7)


def loss_of(module: nn.Module, features: Any, labels: Tensor, weights: Tensor | None) -> Tensor:
    return squared_error(module(features), labels)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_schedule_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", SCHEDULES[name]).train(points, max_steps=30)
    for steps in (7, 8, 15):
        resumed = job(tmp_path / "resumed", SCHEDULES[name]).train(points, steps=steps)
    assert_same_variables(resumed, whole)


class Counting(torch.optim.Optimizer):
    """Counts steps in its group, from the first step on, as the optimizers of the package pytorch_optimizer do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / group["steps"])


def test_an_optimizer_that_counts_in_its_group_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", Counting).train(points, max_steps=12)
    for steps in (5, 12):
        cut = job(tmp_path / "cut", Counting).train(points, max_steps=steps)
    assert_same_variables(cut, whole)


def test_raising_max_steps_goes_on_with_the_longer_schedule(tmp_path: Path) -> None:
    seen: list[float] = []

    def longer(named: Any) -> Any:
        schedule = one_cycle(named, total_steps=60)
        groups.append(schedule.optimizer.param_groups)
        return schedule

    class Note(te.Hook):
        def before_step(self, context: te.RunContext) -> None:
            seen.append(groups[-1][0]["lr"])

    groups: list[Any] = []
    job(tmp_path, one_cycle).train(points, max_steps=40)
    job(tmp_path, longer).train(points, hooks=[Note()], max_steps=60)
    expected = one_cycle(nn.Linear(1, 1).named_parameters(), total_steps=60)
    rates = []
    for _ in range(60):
        rates.append(expected.optimizer.param_groups[0]["lr"])
        expected.optimizer.step()
        expected.step()
    assert seen == rates[40:]


def test_a_schedule_that_is_over_says_so(tmp_path: Path) -> None:
    with pytest.raises(te.UserError, match=r"^The schedule OneCycleLR has no further step.*as many steps as max_steps"):
        job(tmp_path, partial(one_cycle, total_steps=5)).train(points, steps=8)


def test_a_schedule_that_wants_a_metric_is_refused(tmp_path: Path) -> None:
    def factory(named: Any) -> Any:
        return lr_scheduler.ReduceLROnPlateau(te.optim.SGD(named, lr=0.1))

    with pytest.raises(te.UserError, match=r"^ReduceLROnPlateau cannot be stepped after every training step"):
        job(tmp_path, factory).train(points, steps=1)


def test_a_factory_may_return_schedules_and_optimizers_side_by_side(tmp_path: Path) -> None:
    def several(named: Any) -> Any:
        named = dict(named)
        scheduled = te.optim.SGD([named["linear.weight"]], lr=0.1)
        return [scheduled, lr_scheduler.StepLR(scheduled, 2), torch.optim.Adam([named["linear.bias"]], lr=0.1)]

    whole = job(tmp_path / "whole", several).train(points, steps=9)
    job(tmp_path / "resumed", several).train(points, steps=4)
    assert_same_variables(job(tmp_path / "resumed", several).train(points, steps=5), whole)


@pytest.mark.parametrize("name", ["one cycle, AdamW", "warm-up, then cosine"])
def test_a_schedule_compiles_once_and_gives_what_it_gives_eagerly(
    name: str, tmp_path: Path, compilations: Callable[[], list[int]]
) -> None:
    eager = job(tmp_path / "eager", SCHEDULES[name]).train(points, steps=20)
    compiled = job(tmp_path / "compiled", SCHEDULES[name], compile=True).train(points, steps=20)
    assert compilations() == [4]
    for variable in ("linear.weight", "linear.bias"):
        torch.testing.assert_close(
            compiled.get_variable_value(variable), eager.get_variable_value(variable), rtol=1e-5, atol=1e-6
        )


def test_a_scheduled_learning_rate_is_a_summary_and_hooks_can_read_it(tmp_path: Path) -> None:
    seen: dict[int, float] = {}

    class Rates(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            (seen[context.global_step],) = context.learning_rates

    factory = SCHEDULES["lambda"]
    job(tmp_path / "one", factory, save_summary_steps=2).train(points, hooks=[Rates()], steps=5)
    assert seen == {step: 0.5 / (1 + step) for step in range(1, 6)}
    rates = read_scalars(tmp_path / "one")["learning_rate"]
    assert rates.by_step() == pytest.approx({step: seen[step] for step in (1, 3, 5)})

    def two(named: Any) -> Any:
        return [factory([one]) for one in named]

    job(tmp_path / "two", two, save_summary_steps=1).train(points, steps=1)
    assert {"learning_rate_0", "learning_rate_1"} <= set(read_scalars(tmp_path / "two"))
    job(tmp_path / "constant", te.optim.SGD(lr=0.1), save_summary_steps=1).train(points, steps=1)
    assert "learning_rate" not in read_scalars(tmp_path / "constant")


class DecayingDecay(lr_scheduler.LRScheduler):
    """A schedule of the user's own, which moves the weight decay, too."""

    def get_lr(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.5 / (1 + self.last_epoch)
        return [0.9**self.last_epoch * rate for rate in self.base_lrs]


@pytest.mark.slow
def test_a_schedule_of_ones_own_may_move_the_decay_without_compiling_for_every_value(
    tmp_path: Path, compilations: Callable[[], list[int]]
) -> None:
    def factory(named: Any) -> Any:
        return DecayingDecay(te.optim.AdamW(named, lr=0.1))

    whole = job(tmp_path / "whole", factory).train(points, steps=12)
    job(tmp_path / "resumed", factory).train(points, steps=5)
    assert_same_variables(job(tmp_path / "resumed", factory).train(points, steps=7), whole)
    assert not np.array_equal(
        job(tmp_path / "constant", te.optim.AdamW(lr=0.1)).train(points, steps=12).get_variable_value("linear.weight"),
        whole.get_variable_value("linear.weight"),
    )
    compiled = job(tmp_path / "compiled", factory, compile=True).train(points, steps=12)
    assert compilations() == [4]
    for name in ("linear.weight", "linear.bias"):
        torch.testing.assert_close(
            compiled.get_variable_value(name), whole.get_variable_value(name), rtol=1e-5, atol=1e-6
        )
