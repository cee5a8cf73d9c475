"""Gradients of several small batches give the update of one large batch, also after a restart between two updates."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import torch_estimator as te
from tests.compile.test_tracing import Traced
from tests.line_jobs import Line, assert_same_variables, points, squared_error
from tests.optim import golden
from tests.train.test_step import Bag, Twice, assert_same, batches, loss_of
from torch_estimator import feature_column as fc
from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim import accumulate, clip_gradients_by_norm
from torch_estimator.optim.gradient_accumulation import COUNT
from torch_estimator.train.accumulation import mask_rows
from torch_estimator.train.optimizers import OptimizerNumbers, optimizers_and_schedules
from torch_estimator.train.step import TrainStep
from torch_estimator.train.training import check_companions

OPTIMIZERS = {
    "SGD": te.optim.SGD(lr=0.005),
    "Adam": te.optim.Adam(lr=0.05),
    "Ftrl": te.optim.Ftrl(lr=0.05),
    "torch's AdamW": partial(torch.optim.AdamW, lr=0.05),
    "torch's SGD with momentum": partial(torch.optim.SGD, lr=0.005, momentum=0.9),
    "clipped": clip_gradients_by_norm(te.optim.Adagrad(lr=0.05), 0.5),
    "torch's, clipped": clip_gradients_by_norm(partial(torch.optim.SGD, lr=0.05), 0.5),
}


def trained(module: nn.Module, factory: Any, data: Any, *, averages: bool) -> nn.Module:
    optimizers, schedules = optimizers_and_schedules(factory(module.named_parameters()))
    mask_rows(module, optimizers)
    loss = (lambda *given: loss_of(*given) / len(given[2])) if averages else loss_of
    step = TrainStep(module, loss, optimizers, schedules=schedules, averages=averages)
    for ids, labels in data:
        step(ids, labels, None)
    return module


def joined(data: list[tuple[Tensor, Tensor]], k: int) -> list[tuple[Tensor, Tensor]]:
    parts = [data[start : start + k] for start in range(0, len(data), k)]
    return [(torch.cat([ids for ids, _ in one]), torch.cat([labels for _, labels in one])) for one in parts]


@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("kind", [Bag, Twice])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_k_batches_update_as_one_batch_of_all_their_rows(name: str, kind: type[Bag], averages: bool) -> None:
    torch.manual_seed(0)
    module = kind(3)
    nn.init.normal_(module.table.weight[:-1].detach())
    whole = trained(copy.deepcopy(module), OPTIMIZERS[name], joined(batches(), 4), averages=averages)
    assert not torch.equal(whole.dense.weight, module.dense.weight)
    assert_same(trained(module, accumulate(OPTIMIZERS[name], 4), batches(), averages=averages), whole, rtol=1e-4)


def test_nothing_changes_between_two_updates() -> None:
    torch.manual_seed(0)
    module = Bag(2)
    before = copy.deepcopy(module)
    for kind in (te.optim.Adagrad(lr=0.1), partial(torch.optim.AdamW, lr=0.1)):
        trained(module, accumulate(kind, 13), batches(), averages=True)
        assert_same(module, before, rtol=0.0)


def test_a_part_of_the_model_may_accumulate_alone() -> None:
    def halves(named: Any) -> Any:
        (first, *others) = named
        return [accumulate(te.optim.SGD(lr=0.02), 13)([first]), te.optim.SGD(others, lr=0.02)]

    torch.manual_seed(0)
    module = Bag(2)
    nn.init.normal_(module.table.weight[:-1].detach())
    before = copy.deepcopy(module)
    trained(module, halves, batches(), averages=True)
    assert torch.equal(module.table.weight, before.table.weight)
    assert not torch.equal(module.dense.weight, before.dense.weight)


def line(model_dir: object, optimizer: Any, **settings: Any) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=optimizer)

    return te.Estimator(model_fn, str(model_dir), te.RunConfig(random_seed=1, save_checkpoints_steps=1000, **settings))


@pytest.mark.parametrize("optimizer", [te.optim.Adam(lr=0.05), partial(torch.optim.AdamW, lr=0.05)])
def test_a_training_that_ends_between_two_updates_goes_on_bit_for_bit(optimizer: Any, tmp_path: Path) -> None:
    factory = accumulate(optimizer, 4)
    whole = line(tmp_path / "whole", factory).train(points, max_steps=24)
    for steps in (3, 6, 8, 13, 24):
        cut = line(tmp_path / "cut", factory).train(points, max_steps=steps)
    assert_same_variables(cut, whole)


def test_a_table_of_columns_goes_on_bit_for_bit(tmp_path: Path) -> None:
    words = np.array(["a", "b", "c", "d", "e"])[np.random.default_rng(1).integers(0, 5, 80)]
    column = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c", "d", "e"])

    def data() -> te.data.Dataset:
        return te.data.Dataset.from_arrays({"word": words}, labels=np.arange(80) % 2).repeat().batch(4)

    def trained_to(name: str, *steps: int) -> te.Estimator:
        config = te.RunConfig(random_seed=1)
        optimizer = accumulate(te.optim.Adam(lr=0.1), 5)
        for last in steps:
            estimator = te.DNNClassifier(
                [4], [fc.embedding_column(column, 2)], str(tmp_path / name), optimizer=optimizer, config=config
            ).train(data, max_steps=last)
        return estimator

    assert_same_variables(trained_to("cut", 7, 23), trained_to("whole", 23))


@pytest.mark.parametrize("optimizer", [te.optim.Adam(lr=0.05), partial(torch.optim.AdamW, lr=0.05)])
def test_accumulation_may_begin_and_end_between_two_runs(optimizer: Any, tmp_path: Path) -> None:
    runs = [(2, optimizer), (5, accumulate(optimizer, 4)), (7, accumulate(optimizer, 2)), (8, optimizer)]
    for steps, factory in runs:
        estimator = line(tmp_path, factory).train(points, max_steps=steps)
    assert not [name for name in estimator.get_variable_names() if "accumulated" in name]
    assert estimator.get_variable_value("global_step") == 8


def test_schedules_and_the_global_step_count_batches(tmp_path: Path) -> None:
    rates = te.FinalOpsHook(lambda context: context.learning_rates)
    factory = accumulate(lambda named: StepLR(te.optim.SGD(named, lr=0.1), 4, 0.1), 2)
    estimator = line(tmp_path, factory).train(points, hooks=[rates], max_steps=5)
    assert rates.final_ops_values == pytest.approx([0.01])
    assert estimator.get_variable_value("global_step") == 5


TRACED = [
    te.optim.Adam(lr=0.3),
    partial(torch.optim.AdamW, lr=0.3),
    clip_gradients_by_norm(te.optim.SGD(lr=1.0), 0.5),
]


@pytest.mark.parametrize("optimizer", TRACED)
def test_traced_steps_with_updates_in_python_end_where_steps_in_python_do(optimizer: Any) -> None:
    factory = accumulate(optimizer, 2)
    eager, other = golden.step_of(factory), golden.step_of(factory)
    traced = Traced(other, golden.batches()[0])
    for batch in golden.batches()[:5]:
        eager(batch.features, None, None)
        traced(batch, [])
        other.end()
    expected = golden.found(eager)
    for name, tensor in golden.found(other).items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda text, name=name: f"{name}: {text}")


def test_a_count_of_zero_is_restored_over_another_one() -> None:
    optimizer: Any = accumulate(te.optim.SGD(lr=0.1), 4)(Bag(1).named_parameters())
    numbers = OptimizerNumbers([optimizer])
    at_update = numbers.state()
    optimizer.param_groups[0][COUNT] = 3
    numbers.restore(at_update)
    assert optimizer.param_groups[0][COUNT] == 0


def test_parameter_servers_refuse_it() -> None:
    optimizer: Any = accumulate(te.optim.SGD(lr=0.1), 2)(Bag(1).named_parameters())
    task = Task(type="chief", cluster={"chief": ("a:1",), "ps": ("b:1",)})
    with pytest.raises(InvalidValueError, match="accumulate does not work with parameter servers"):
        check_companions([optimizer], task)


def test_mistakes_are_sentences() -> None:
    sgd = te.optim.SGD(lr=0.1)
    with pytest.raises(InvalidValueError, match="k, the number of batches of an update, must be at least 1, but"):
        accumulate(sgd, 0)
    with pytest.raises(InvalidTypeError, match=r"must be a whole number, but got 2\.5"):
        accumulate(sgd, 2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="must be given without parameters"):
        accumulate(te.optim.SGD(Bag(1).parameters(), lr=0.1), 2)
    with pytest.raises(InvalidValueError, match="GradientDescent accumulates the gradients of 2 batches already"):
        accumulate(accumulate(sgd, 2), 3)(Bag(1).named_parameters())
