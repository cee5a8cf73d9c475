"""Every parameter that a loss depends on is trained or frozen; anything else is an error, however a step runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.cluster_jobs import Cluster
from torch_estimator.compile import runner_choice

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X @ np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
SENTENCE = r"^The loss depends on a parameter of shape \[1, 4\] that is not one of the trained module's, so it would"


def rows() -> te.data.Dataset:
    return te.data.Dataset.from_arrays(X, Y).repeat().batch(16)


def penalised(net: nn.Linear) -> Any:
    return lambda outputs, labels: ((outputs - labels) ** 2).mean() + 10 * net.weight.square().sum()


def sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.02)


def estimator(net: nn.Module, loss: Any, model_dir: Path, **config: Any) -> te.Estimator:
    settings = te.RunConfig(random_seed=1, **{"compile": False, **config})
    return te.Estimator.from_module(net, loss=loss, optimizer=sgd, model_dir=str(model_dir), config=settings)


@pytest.mark.runs_in_python
@pytest.mark.parametrize("beside", [True, False], ids=["compiled beside", "compiled here"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_loss_that_reads_a_module_that_is_not_trained_is_refused_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile: bool, beside: bool
) -> None:
    monkeypatch.setattr(runner_choice, "SUPPORTED", beside)
    for attempt in range(2):
        with pytest.raises(te.errors.InvalidValueError, match=SENTENCE):
            estimator(nn.Linear(4, 1), penalised(nn.Linear(4, 1)), tmp_path / str(attempt), compile=compile).train(
                rows, steps=3
            )


def test_a_loss_that_reads_the_module_of_its_model_fn_trains_with_its_penalty(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        net = nn.Linear(4, 1)
        return te.EstimatorSpec(mode=mode, module=net, loss=penalised(net), optimizer=sgd)

    trained = te.Estimator(model_fn, model_dir=str(tmp_path)).train(rows, steps=100)
    assert np.abs(trained.get_variable_value("weight")).max() < 0.6


def test_a_frozen_parameter_and_features_that_require_gradients_may_be_part_of_a_loss(tmp_path: Path) -> None:
    teacher = nn.Linear(4, 1).requires_grad_(False)

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
            rows = rows.detach().requires_grad_()
            outputs = self.linear(rows)
            return outputs, torch.autograd.grad(outputs.sum(), rows, create_graph=True)[0]

    def loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        return (outputs[0] - labels).square().mean() + (outputs[1] - teacher.weight).square().mean()

    estimator(Slope(), loss, tmp_path).train(rows, steps=2)


CLUSTER = """
import sys
import torch
from torch import nn
import torch_estimator as te
from tests.train.test_foreign_parameters import estimator, penalised, rows

net, other = nn.Linear(4, 1), nn.Linear(4, 1)
strategy = eval(sys.argv[2], vars(te.distribute))
with te.errors.exit_on_user_error():
    job = estimator(net, penalised(other), sys.argv[1], train_distribute=strategy)
    te.train_and_evaluate(job, te.TrainSpec(rows, max_steps=3), te.EvalSpec(rows, steps=1))
"""


@pytest.mark.parametrize(
    ("strategy", "servers"),
    [("MultiWorkerMirroredStrategy()", 0), ("FullyShardedStrategy()", 0), ("ParameterServerStrategy()", 1)],
)
def test_the_chief_of_a_cluster_refuses_it(tmp_path: Path, strategy: str, servers: int) -> None:
    cluster = Cluster(CLUSTER, servers=servers)
    processes = [cluster.start(task, tmp_path, strategy) for task in cluster.tasks]
    try:
        told = processes[0].wait()
    finally:
        for process in processes:
            process.kill()
    assert "error: The loss depends on a parameter of shape [1, 4]" in told
    assert processes[0].status == 2
