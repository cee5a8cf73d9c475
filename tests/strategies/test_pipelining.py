"""Pipelined steps: how old gradients are, and what becomes of exchanges under way when a server dies."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tests.cluster_jobs import Cluster, ended
from tests.line_jobs import checkpoint_steps
from tests.strategies.test_parameter_servers import variables, wait_for_checkpoint

PROGRAM = """
import logging, sys
import numpy as np
import torch
import torch_estimator as te
from torch_estimator.parameter_server import push_pull

model_dir, max_steps, save = sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(message)s")


taken = push_pull.PushPullSteps.take


def take(self, most):
    losses = taken(self, most)
    if losses:
        print("took", len(losses), flush=True)
    return losses


push_pull.PushPullSteps.take = take
# Every call takes the largest number of steps, however fast they are.
push_pull._CALL_SECS = 1e9


def input_fn():
    numbers = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    return te.data.Dataset.from_arrays(numbers[:, :2], numbers[:, 2:]).repeat().batch(1)


module = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(module.weight)
estimator = te.Estimator.from_module(
    module,
    loss=torch.nn.MSELoss(),
    optimizer=te.optim.GradientDescent(lr=0.05),
    model_dir=model_dir,
    config=te.RunConfig(
        save_checkpoints_steps=int(save),
        compile=False,
        train_distribute=te.distribute.ParameterServerStrategy(pipeline=True),
    ),
)
te.train_and_evaluate(
    estimator, te.TrainSpec(input_fn, max_steps=int(max_steps)), te.EvalSpec(input_fn, steps=1, throttle_secs=1000)
)
"""


def trained(calls: list[int]) -> np.ndarray:
    """Train in numpy: a call begins with all gradients applied, and each later gradient is applied one step late."""
    numbers = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    weight = np.zeros(2, np.float32)
    number = 0
    for count in calls:
        waiting = np.zeros(2, np.float32)
        for _ in range(count):
            row, label = numbers[number, :2], numbers[number, 2]
            gradient = 2 * (row @ weight - label) * row
            weight, waiting = weight - np.float32(0.05) * waiting, gradient
            number += 1
        weight = weight - np.float32(0.05) * waiting
    return weight


def test_pipelined_gradients_are_one_step_old(tmp_path: Path) -> None:
    chief, _ = results = Cluster(PROGRAM, workers=0, servers=1).run(tmp_path, 300, 30)

    assert [result.status for result in results] == [0, 0], chief.output
    calls = [int(count) for count in re.findall(r"^took (\d+)$", chief.output, flags=re.MULTILINE)]
    assert sum(calls) == 300
    assert max(calls) > 20
    (weight,) = (value for name, value in variables(tmp_path).items() if name.endswith("weight"))
    np.testing.assert_allclose(weight[0], trained(calls), rtol=1e-4)
    # Without the delay the result would be clearly different.
    assert np.abs(trained(calls) - trained([1] * 300)).max() > 1e-2


def test_a_killed_server_is_restored_once_for_all_exchanges_under_way(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=2)
    arguments = (tmp_path, 20_000, 1000)
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    wait_for_checkpoint(tmp_path, 3000, running)
    running["ps", 0].kill()
    running["ps", 0].wait()
    running["ps", 0] = cluster.start(("ps", 0), *arguments)
    chief, *others = ended(list(running.values()))

    assert [result.status for result in (chief, *others)] == [0, 0, 0, 0], chief.output
    assert max(checkpoint_steps(tmp_path)) == 20_000
    assert chief.output.count("ps 0 has lost what it held; restoring it") == 1
