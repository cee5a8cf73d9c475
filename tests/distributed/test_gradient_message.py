"""Gradients that replicas exchange in messages train what one process trains, and messages are as large as needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from examples.census.trainer import input, model
from torch_estimator.distributed.gradient_message import (
    CODE,
    HAS_BATCH,
    Layout,
    MessageTooSmall,
    Packing,
    ReceivingStep,
    SendingStep,
)
from torch_estimator.feature_column.table import LargeTables, Piece, Table, tables_of_checkpoint
from torch_estimator.optim import Adagrad
from torch_estimator.train.step import TrainStep


class Wide(nn.Module):
    """Has a float64 buffer that counts on from a number above which float32 cannot count by one."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 1)
        self.register_buffer("count", torch.full((), 2.0**24, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.out(x)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 1, dtype=torch.complex64))
        self.register_buffer("turned", torch.tensor([1.0 + 1.0j]))

    def forward(self, x: Tensor) -> Tensor:
        self.turned *= 1j
        return (x.to(torch.complex64) @ self.weight * self.turned).abs()


class Alternating(nn.Module):
    """Takes its branches by turns, so that the parameters of one branch have no gradient in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 1), nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.one(x) if self.calls % 2 else self.other(x)


def mean_squared(module: nn.Module, features: Any, labels: Any, weights: Any) -> Tensor:
    return (module(features) - labels).square().mean()


@pytest.mark.parametrize("model", [Wide, Complex, Alternating])
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_of_the_same_batches_train_what_one_process_trains(
    model: Callable[[], nn.Module], replicas: int
) -> None:
    def parts() -> tuple[nn.Module, Any, list[torch.optim.Optimizer]]:
        torch.manual_seed(0)
        module = model()
        return module, mean_squared, [torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.5)]

    alone, together = parts(), parts()
    step = TrainStep(*alone)
    layout = Layout((True,) * len(step.dense), ())
    sending, receiving = SendingStep(*together, layout=layout), ReceivingStep(*together, layout=layout, averages=True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        x, y = torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator)
        loss = step(x, y, None)
        sending(x, y, None)
        sending.message[CODE] = HAS_BATCH
        torch.testing.assert_close(
            receiving(torch.stack([sending.message] * replicas), None, None), loss, check_dtype=False
        )
    torch.testing.assert_close(together[0].state_dict(), alone[0].state_dict())
    assert together[0].state_dict().keys() == alone[0].state_dict().keys()


class ManyRows(nn.Module):
    """Adds up rows of a table."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = Table([Piece(name="crossed", rows=rows)], 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(1)


@pytest.mark.parametrize("rows", [1_000, 1_020_257])
def test_a_message_grows_with_the_rows_that_a_batch_touches_not_with_the_table(rows: int) -> None:
    module = ManyRows(rows)
    step = TrainStep(module, mean_squared, [Adagrad(module.parameters(), learning_rate=0.1)])
    (none, some, more) = (Packing(step, Layout((), (mentions,))) for mentions in (0, 512, 5120))
    assert (some.size - none.size) == 2 * 512
    assert (more.size - none.size) == 2 * 5120
    assert more.message().nbytes < 200_000


def test_a_message_of_the_census_model_is_of_the_rows_of_its_batch(shared_data: Path, tmp_path: Path) -> None:
    config = te.RunConfig(model_dir=str(tmp_path), random_seed=1)
    estimator = model.build_estimator(config, embedding_size=8, units=[100, 70, 48, 34])
    built = estimator.job.builder.build(te.ModeKeys.TRAIN, estimator.config)
    optimizers, _ = built.make_optimizers()
    whole = TrainStep(built.module, built.loss, optimizers)
    none = Layout.of([None] * len(whole.dense), [None] * len(whole.tables))

    def size(rows: int) -> int:
        data = input.read_csv([str(shared_data / "census" / "adult.data.csv")], batch_size=rows)
        batch = next(built.batches(data))
        with pytest.raises(MessageTooSmall) as unsent:
            SendingStep(built.module, built.loss, optimizers, layout=none)(*batch[:3])
        return SendingStep(built.module, built.loss, optimizers, layout=unsent.value.needed).message.nbytes

    few, some, many = size(128), size(256), size(512)
    assert many < 200_000
    # Dense gradients are the same for all.
    assert many - some == pytest.approx(2 * (some - few), rel=0.05)


def test_more_rows_than_a_message_can_name_are_refused() -> None:
    with tables_of_checkpoint(restored=False, large=LargeTables.ON_SERVERS):
        module = Table([Piece(name="town", rows=2**31)], dim=1)
    step = TrainStep(module, lambda *_: torch.zeros(()), [Adagrad(module.parameters(), lr=0.1)])
    with pytest.raises(te.errors.InvalidValueError, match="The table of 'town' has 2147483648 rows, but in a cluster"):
        Packing(step, Layout.of([], [None]))
