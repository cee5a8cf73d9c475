"""The input function of TensorFlow's tutorial "Multi-worker training with Estimator", in its order of steps."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.data.positions import check_every_position
from torch_estimator.data import Dataset

ROWS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write idx files of images whose first pixel is their number and whose brightness is their digit."""
    random = np.random.default_rng(1)
    labels = (np.arange(ROWS) % 10).astype(np.uint8)
    images = (labels[:, None, None] * 20 + random.integers(0, 20, (ROWS, 28, 28))).astype(np.uint8)
    images[:, 0, 0] = np.arange(ROWS)
    (tmp_path / "images").write_bytes(struct.pack(">IIII", 2051, ROWS, 28, 28) + images.tobytes())
    (tmp_path / "labels").write_bytes(struct.pack(">II", 2049, ROWS) + labels.tobytes())
    return tmp_path


def scale(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return images.astype(np.float32) / 255, labels.astype(np.int64)


def make_input_fn(folder: Path, batch_size: int) -> Any:
    images = np.fromfile(folder / "images", np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.fromfile(folder / "labels", np.uint8, offset=8)

    def input_fn(mode: str, input_context: te.InputContext | None = None) -> Dataset:
        data = Dataset.from_arrays(images, labels).map(scale)
        if input_context:
            data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        data = data.cache()
        return (data.shuffle(10_000) if mode == te.ModeKeys.TRAIN else data).batch(batch_size)

    return input_fn


def model_fn(mode: str) -> te.EstimatorSpec:
    module = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(4 * 13 * 13, 16), nn.ReLU(), nn.Linear(16, 10)),
    )
    return te.EstimatorSpec(
        mode=mode,
        module=module,
        loss=nn.functional.cross_entropy,
        predictions=lambda logits: {"digit": logits.argmax(1)},
        optimizer=lambda parameters: torch.optim.SGD([p for _, p in parameters], lr=0.05),
    )


def numbers(data: Dataset) -> list[int]:
    return [round(float(image[0, 0, 0]) * 255) for images, _ in data for image in images]


def test_workers_read_parts_that_make_up_the_whole(folder: Path) -> None:
    input_fn = make_input_fn(folder, 8)
    parts = [numbers(input_fn("train", te.InputContext(3, worker, 3))) for worker in range(3)]
    assert [sorted(part) for part in parts] == [[*range(worker, ROWS, 3)] for worker in range(3)]
    assert parts[0] != sorted(parts[0])
    images, labels = next(iter(input_fn("eval")))
    assert (images.dtype, images.shape, labels.dtype) == (np.float32, (8, 1, 28, 28), np.int64)
    assert 0 < images.max() <= 1


def test_every_position_is_restored(folder: Path) -> None:
    input_fn = make_input_fn(folder, 8)
    torch.manual_seed(1)
    data = input_fn("train", te.InputContext(2, 1, 2)).repeat(2)
    assert check_every_position(lambda: data) == 8


def test_a_model_fn_is_trained_evaluated_and_resumed_with_it(folder: Path, tmp_path: Path) -> None:
    input_fn = make_input_fn(folder, 16)

    def estimator(name: str) -> te.Estimator:
        config = te.RunConfig(random_seed=3, save_checkpoints_steps=3)
        return te.Estimator(model_fn, str(tmp_path / name), config)

    def repeated(mode: str, input_context: te.InputContext) -> Dataset:
        return input_fn(mode, input_context).repeat()

    metrics, _ = te.train_and_evaluate(
        estimator("one"), te.TrainSpec(repeated, max_steps=10), te.EvalSpec(input_fn, throttle_secs=0)
    )
    assert metrics["global_step"] == 10
    for steps in (3, 7):
        other = estimator("two").train(repeated, steps=steps)
    for name in other.get_variable_names():
        np.testing.assert_array_equal(other.get_variable_value(name), estimator("one").get_variable_value(name))
    digits = [one["digit"] for one in other.predict(input_fn)]
    assert len(digits) == ROWS
