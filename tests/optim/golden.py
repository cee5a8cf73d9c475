"""The trainings of `tensorflow_optimizers.json`, which `make_golden.py` writes, with the optimizers of this package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torch_estimator.checkpoint.variables import named_slots, named_variables
from torch_estimator.feature_column.table import Piece, Table
from torch_estimator.optim import OptimizerFactory
from torch_estimator.optim.companions import with_companions
from torch_estimator.train.accumulation import mask_rows
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.optimizers import optimizers_and_schedules
from torch_estimator.train.step import TrainStep

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("tensorflow_optimizers.json").read_text())


class Given(nn.Module):
    """A dense parameter and a table, with the values that TensorFlow's variables began with."""

    def __init__(self) -> None:
        super().__init__()
        given = GOLDEN["given"]
        self.dense = nn.Parameter(torch.tensor(given["dense"]))
        self.rows = Table([Piece(name="table", rows=len(given["table"]))], len(given["table"][0]))
        with torch.no_grad():
            self.rows.weight[:-1] = torch.tensor(given["table"])


def loss_fn(module: Any, features: Mapping[str, Tensor], labels: Any, weights: Tensor | None) -> Tensor:
    return (module.dense * features["dense"]).sum() + (module.rows(features["ids"]) * features["rows"]).sum()


def batches() -> list[TensorBatch]:
    given = GOLDEN["given"]["batches"]
    return [TensorBatch({name: torch.tensor(value) for name, value in one.items()}, None, None) for one in given]


def step_of(factory: OptimizerFactory) -> TrainStep:
    module = Given()
    optimizers, _ = optimizers_and_schedules(factory(module.named_parameters()))
    mask_rows(module, optimizers)
    return TrainStep(module, loss_fn, optimizers)


def found(step: TrainStep) -> dict[str, Tensor]:
    """Return copies of the variables and slots of a step by their names in checkpoints."""
    named = {**named_variables(step.module), **named_slots(step.module, with_companions(step.optimizers))}
    return {name: tensor.clone() for name, tensor in named.items()}


def check(name: str, factory: OptimizerFactory) -> None:
    """Check that an optimizer ends with the variables and slots of a case of TensorFlow."""
    step = step_of(factory)
    for batch in batches():
        step(batch.features, None, None)
    ours = found(step)
    for key, value in GOLDEN["cases"][name].items():
        np.testing.assert_allclose(ours[key].numpy(), value, rtol=2e-6, atol=1e-7, err_msg=key)
