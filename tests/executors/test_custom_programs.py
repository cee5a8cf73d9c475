"""TensorFlow's MNIST tutorial with a ``model_fn``, through train_and_evaluate and its export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te

ROWS, BATCH = 64, 16


class Convolutions(nn.Module):
    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name
        self.convolution = nn.Conv2d(1, 4, 3)
        self.hidden = nn.Linear(4 * 3 * 3, 8)
        self.logits = nn.Linear(8, 10)

    def forward(self, features: Any) -> Tensor:
        images = features if self.name is None else features[self.name]
        pooled = nn.functional.max_pool2d(torch.relu(self.convolution(images)), 2)
        return self.logits(torch.relu(self.hidden(pooled.flatten(1))))


def scaled(images: np.ndarray, labels: np.ndarray, name: str | None, mode: str) -> te.data.Dataset:
    features: Any = images.astype(np.float64) / 255
    dataset = te.data.Dataset.from_arrays(features if name is None else {name: features}, labels)
    if mode == te.ModeKeys.TRAIN:
        dataset = dataset.shuffle(1000, seed=1).repeat(2)
    return dataset.batch(BATCH)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels.long(), reduction="sum") / BATCH


def predictions(outputs: Tensor) -> dict[str, Tensor]:
    return {"logits": outputs, "class": outputs.argmax(1)}


def accuracy(labels: Tensor, predictions: dict[str, Tensor]) -> Tensor:
    return (predictions["class"] == labels).float().mean()


def model_fn(mode: str, params: dict[str, Any]) -> te.EstimatorSpec:
    module = Convolutions(params["name"])
    if mode == te.ModeKeys.PREDICT:
        return te.EstimatorSpec(mode=mode, module=module, predictions=predictions)
    return te.EstimatorSpec(
        mode=mode,
        module=module,
        loss=loss,
        predictions=predictions,
        metrics={"accuracy": accuracy},
        optimizer=partial(torch.optim.SGD, lr=0.05) if mode == te.ModeKeys.TRAIN else None,
    )


@pytest.mark.parametrize("name", ["image", None])
def test_a_convolutional_model_fn_trains_evaluates_and_exports(tmp_path: Path, name: str | None) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (ROWS, 1, 8, 8)).astype(np.uint8)
    labels = (images.mean((1, 2, 3)) > 127).astype(np.int32)
    given = partial(scaled, images, labels, name)
    config = te.RunConfig(model_dir=str(tmp_path), random_seed=1, save_checkpoints_steps=100)
    estimator = te.Estimator(model_fn, config=config, params={"name": name})

    def input_fn(mode: str) -> te.data.Dataset:
        return given(mode)

    floats = (images / 255.0)[:1]
    serving = te.serving_input.like(floats if name is None else {name: floats})
    # Without max_steps, training ends with its input.
    metrics, exports = te.train_and_evaluate(
        estimator,
        te.TrainSpec(input_fn),
        te.EvalSpec(input_fn, steps=100, throttle_secs=0, exporters=te.FinalExporter("mnist", serving)),
    )
    assert metrics is not None
    assert metrics["global_step"] == 2 * ROWS // BATCH
    assert 0 <= metrics["accuracy"] <= 1

    exported = te.ExportedModel.load(exports[0])
    answer = exported.predict({name or "features": images / 255.0})
    (predicted,) = estimator.predict(lambda: given("infer").take(ROWS).batch(ROWS), yield_single_examples=False)
    np.testing.assert_allclose(answer["logits"], predicted["logits"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(answer["class"], predicted["class"])
