"""Models on a simulated GPU have the numbers of the CPU, and no tensor of the CPU meets one of the GPU.

Only where tensors are is simulated, in the process itself: no real GPU is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.line_jobs import variables
from tests.train.simulated_gpu import NAME, READS, OnDevice, simulated_gpu
from torch_estimator import feature_column as fc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
IDS = RNG.integers(0, 7, 32)
WORDS = np.array(["a", "b", "c", "d"])[IDS % 4]
ROWS = {"x": X, "id": IDS, "word": WORDS, "steps": X}

NUMBER = fc.numeric_column("x", shape=(3,))
CATEGORY = fc.categorical_column_with_identity("id", 7)
WORD = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
DEEP = [NUMBER, fc.embedding_column(CATEGORY, 2), fc.indicator_column(WORD)]
CONFIG = te.RunConfig(random_seed=1, compile=False)

Make = Callable[[str], te.Estimator]


def data(labels: Any) -> te.data.Dataset:
    return te.data.Dataset.from_arrays(ROWS, labels).batch(8)


def module(model_dir: str) -> te.Estimator:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))

        def forward(self, features: Any) -> Any:
            return self.body(features["x"])

    optimizer = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    return te.Estimator.from_module(
        Net(), head=te.RegressionHead(), optimizer=optimizer, model_dir=model_dir, config=CONFIG
    )


BINARY, NUMBERS, CLASSES = (X[:, 0] > 0).astype(np.int64), X.sum(1), IDS % 3
MODELS: dict[str, tuple[Make, Any]] = {
    "baseline": (lambda d: te.BaselineRegressor(d, config=CONFIG), NUMBERS),
    "linear": (lambda d: te.LinearClassifier([NUMBER, CATEGORY, WORD], d, config=CONFIG), BINARY),
    "linear, multi-class": (lambda d: te.LinearClassifier([NUMBER, WORD], d, n_classes=3, config=CONFIG), CLASSES),
    "deep": (lambda d: te.DNNRegressor([4], DEEP, d, batch_norm=True, config=CONFIG), NUMBERS),
    "wide and deep": (
        lambda d: te.DNNLinearCombinedClassifier(
            d,
            linear_feature_columns=[CATEGORY],
            dnn_feature_columns=DEEP,
            dnn_hidden_units=[4],
            config=CONFIG,
        ),
        BINARY,
    ),
    "own module": (module, NUMBERS),
    "recurrent": (
        lambda d: te.experimental.RNNClassifier(
            [fc.sequence_numeric_column("steps")], units=[4], cell_type="simple_rnn", model_dir=d, config=CONFIG
        ),
        BINARY,
    ),
    "multi-label": (
        lambda d: te.DNNEstimator(te.MultiLabelHead(3), [4], DEEP, d, config=CONFIG),
        np.stack([one == CLASSES for one in range(3)], axis=1).astype(np.int64),
    ),
    "multi-head": (
        lambda d: te.DNNEstimator(
            te.MultiHead([te.BinaryClassHead(name="sign"), te.RegressionHead(name="sum")]), [4], DEEP, d, config=CONFIG
        ),
        {"sign": BINARY, "sum": NUMBERS},
    ),
    **{
        f"deep, {name}": (
            lambda d, optimizer=optimizer: te.DNNRegressor([4], DEEP, d, optimizer=optimizer, config=CONFIG),
            NUMBERS,
        )
        for name, optimizer in {
            "Adam": te.optim.Adam(lr=0.01),
            "AdamW": te.optim.AdamW(lr=0.01),
            "Ftrl": te.optim.Ftrl(lr=0.01),
            "GradientDescent": te.optim.GradientDescent(lr=0.01),
        }.items()
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_evaluates_predicts_and_exports_on_a_gpu_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    make, labels = MODELS[name]

    def run(model_dir: Path) -> tuple[Any, ...]:
        # Two trainings, so that the second restores the checkpoint of the first.
        for _ in range(2):
            job = make(str(model_dir)).train(lambda: data(labels).repeat(), steps=6)
        metrics = job.evaluate(lambda: data(labels))
        predicted = list(job.predict(lambda: data(None)))
        path = job.export_saved_model(str(model_dir / "export"), te.serving_input.like(ROWS, variable=["steps"]))
        return job, metrics, predicted, te.ExportedModel.load(path).predict(ROWS)

    with simulated_gpu():
        on_gpu = run(tmp_path / "gpu")
    on_cpu = run(tmp_path / "cpu")
    expected = variables(on_cpu[0])
    for key, value in variables(on_gpu[0]).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-5, atol=1e-6, err_msg=key)
    assert on_gpu[1] == pytest.approx(on_cpu[1], rel=1e-5)
    for one, other in zip(on_gpu[2], on_cpu[2], strict=True):
        assert all(np.allclose(one[key], other[key], atol=1e-5) for key in one if one[key].dtype.kind == "f")
    for key, value in on_gpu[3].items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, on_cpu[3][key], rtol=1e-4, atol=1e-5)


def test_the_model_is_on_the_gpu_while_it_trains_and_stays_there_when_a_hook_exports_it(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    class Exporting(te.Hook):
        def end(self, context: te.RunContext) -> None:
            job.export_saved_model(str(tmp_path / "export"), te.serving_input.like({"x": X}))
            weight = context.module.body[0].weight
            seen.append((weight.device.type, isinstance(weight.data, OnDevice)))

    with simulated_gpu():
        job = module(str(tmp_path))
        job.train(lambda: data(NUMBERS).repeat(), steps=2)
        job.train(lambda: data(NUMBERS).repeat(), steps=2, hooks=[Exporting()])
    assert seen == [(NAME, True)]


@pytest.mark.parametrize("name", ["linear", "own module", "multi-label"])
def test_the_host_reads_from_the_gpu_at_most_once_in_fifty_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Log lines and summaries read the loss.
    quiet = CONFIG.replace(log_step_count_steps=None, save_summary_steps=None, save_checkpoints_steps=1000)
    monkeypatch.setitem(globals(), "CONFIG", quiet)
    make, labels = MODELS[name]
    counts = []
    with simulated_gpu():
        for steps in (50, 150):
            before = len(READS)
            make(str(tmp_path / str(steps))).train(lambda: data(labels).repeat(), steps=steps)
            counts.append(len(READS) - before)
    # Both trainings read the same at their beginnings and ends.
    assert counts[1] - counts[0] <= 100 / 50


def test_a_read_by_the_host_is_seen() -> None:
    with simulated_gpu():
        tensor = torch.ones(2, device=f"{NAME}:0")
        before = len(READS)
        tensor.sum().item()
        tensor.cpu()
        tensor.tolist()
        torch.zeros(2).copy_(tensor)
        assert bool(tensor.sum() > 1)
        assert len(READS) == before + 5
        _ = tensor + 1
        tensor.mul_(2)
        assert len(READS) == before + 5


def test_mixing_the_devices_is_an_error() -> None:
    with simulated_gpu():
        layer = nn.Linear(3, 1).to(f"{NAME}:0")
        with pytest.raises(RuntimeError, match="same device"):
            layer(torch.ones(2, 3))
        with pytest.raises(TypeError, match="numpy"):
            layer.weight.detach().numpy()
