"""Compiled steps train the layers of torch.nn as Python does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import variables


class Attention(nn.Module):
    """Self-attention with one input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        return self.attention(rows, rows, rows)[0]


class Recurrent(nn.Module):
    """A GRU without its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 4, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        return self.gru(rows)[0]


class Around(nn.Module):
    """A layer between two linear ones, and the shape of its input."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.first = nn.Linear(48, 48)
        self.layer = layer
        with torch.no_grad():
            width = layer.eval()(torch.zeros(2, *shape)).flatten(1).shape[1]
        layer.train()
        self.last = nn.Linear(width, 1)

    def forward(self, rows: Tensor) -> Tensor:
        inputs = self.first(rows).reshape(-1, *self.shape)
        return self.last(self.layer(inputs).flatten(1))


class Image(nn.Module):
    """A convolution of the batch itself, as images of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(24, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.pool(torch.relu(self.convolution(rows[:, None].reshape(-1, 1, 6, 8)))).flatten(1))


class InPlace(nn.Module):
    """A module that changes its input, and so the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(48, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows.mul_(0.5))


class Sums(nn.Module):
    """Sums by scattered indices, which are read by several kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 12)
        self.last = nn.Linear(18, 1)

    def forward(self, rows: Tensor) -> Tensor:
        inputs = torch.tanh(self.first(rows))
        values = torch.cat([inputs.topk(3, 1).values, inputs.abs()], 1)[:, ::2]
        places = (values.detach() * 3).long().remainder(6)
        sums = torch.tanh(torch.zeros(len(rows), 6).scatter_add(1, places, values))
        return self.last(torch.cat([sums.abs(), rows[:, :12]], 1))


class TimesZero(nn.Module):
    """A module that multiplies NaN by zero, which gives NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(48, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows) + rows.log().sum(1, keepdim=True) * 0


class Products(nn.Module):
    """Products with matrices by rows and by columns, of which some have more than 256 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 300)
        self.second = nn.Linear(300, 270, bias=False)
        self.weights = nn.Parameter(torch.randn(270, 33) / 16)
        self.last = nn.Linear(33, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.second(self.first(rows).tanh()).tanh() @ self.weights)


def channels_last() -> nn.Module:
    layer = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return layer.to(memory_format=torch.channels_last)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Conv1d of one channel": (lambda: nn.Conv1d(1, 4, 3), (1, 48)),
    "Conv2d in channels-last": (lambda: nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last), (1, 6, 8)),
    "Conv2d to one channel": (lambda: nn.Conv2d(3, 1, 3), (3, 4, 4)),
    "Conv2d by channel": (lambda: nn.Conv2d(3, 3, 3, groups=3), (3, 4, 4)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(1, 2, 2, stride=2), (1, 6, 8)),
    "several in channels-last": (channels_last, (3, 4, 4)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), (3, 4, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(3, 6), (6, 8)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, affine=True), (3, 16)),
    "LayerNorm": (lambda: nn.LayerNorm([6, 8]), (6, 8)),
    "PReLU": (lambda: nn.PReLU(6), (6, 8)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), (3, 4, 4)),
    "Dropout": (lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2)), (6, 8)),
    "MultiheadAttention": (Attention, (6, 8)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (6, 8)),
    "GRU": (Recurrent, (6, 8)),
}


def train(folder: Path, module: Callable[[], nn.Module], compile: bool, batch_size: int = 8) -> dict[str, np.ndarray]:
    """Take five steps, and return the weights."""
    rng = np.random.default_rng(0)
    rows, labels = (rng.normal(size=(max(64, batch_size), width)).astype(np.float32) for width in (48, 1))
    torch.manual_seed(0)
    estimator = te.Estimator.from_module(
        module(),
        head=te.RegressionHead(),
        optimizer=te.optim.GradientDescent(lr=0.05),
        model_dir=str(folder / str(compile)),
        config=te.RunConfig(compile=compile, random_seed=1),
    )
    dataset = te.data.Dataset.from_arrays(rows, labels).repeat()
    return variables(estimator.train(lambda: dataset.batch(batch_size), steps=5))


def assert_trains_as_in_python(folder: Path, module: Callable[[], nn.Module], batch_size: int = 8) -> None:
    """Check that a few compiled steps give the same weights as steps in Python."""
    python, compiled = (train(folder, module, compile, batch_size) for compile in (False, True))
    for name, value in python.items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("batch_size", "threads"), [(300, 1), (64, 2)])
def test_matrix_products(tmp_path: Path, batch_size: int, threads: int) -> None:
    # On processors with AVX-512 that are not made by Intel, matrix_product.h computes these.
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_trains_as_in_python(tmp_path, Products, batch_size)
    finally:
        torch.set_num_threads(before)


def test_images_of_one_channel(tmp_path: Path) -> None:
    assert_trains_as_in_python(tmp_path, Image)


def test_scattered_sums(tmp_path: Path) -> None:
    assert_trains_as_in_python(tmp_path, Sums)


def test_a_module_that_changes_its_input(tmp_path: Path) -> None:
    assert_trains_as_in_python(tmp_path, InPlace)


def test_nan_times_zero_stops_the_training(tmp_path: Path) -> None:
    with pytest.raises(te.NanLossDuringTrainingError):
        train(tmp_path, TimesZero, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers(tmp_path: Path, name: str) -> None:
    layer, shape = LAYERS[name]
    assert_trains_as_in_python(tmp_path, lambda: Around(layer(), shape))
