"""bfloat16 in the forward pass of training, and nowhere else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables, points, squared_error
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import load_checkpoint


class Watched(nn.Module):
    """Two layers; notes the dtypes it meets."""

    seen: list[tuple[bool, torch.dtype, torch.dtype]] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, features: Mapping[str, Tensor]) -> Any:
        hidden = torch.relu(self.hidden(features["x"]))
        out = self.out(hidden)
        if not torch.compiler.is_compiling():
            self.seen.append((self.training, hidden.dtype, out.dtype))
        return out


def job(model_dir: object, seen_by_loss: list[torch.dtype] | None = None, **settings: Any) -> te.Estimator:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        if seen_by_loss is not None:
            seen_by_loss.append(outputs.dtype)
        return squared_error(outputs, labels)

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Watched(), loss=loss, optimizer=te.optim.Adam(lr=0.01))

    settings = {"random_seed": 1, "mixed_precision": "bf16", **settings}
    return te.Estimator(model_fn, str(model_dir), te.RunConfig(**settings))


def test_training_computes_in_bfloat16_and_all_else_in_float32(tmp_path: Path) -> None:
    seen_by_loss: list[torch.dtype] = []
    Watched.seen.clear()
    estimator = job(tmp_path, seen_by_loss).train(points, steps=3)
    assert set(Watched.seen) == {(True, torch.bfloat16, torch.bfloat16)}
    assert set(seen_by_loss) == {torch.float32}
    Watched.seen.clear()
    estimator.evaluate(points)
    next(iter(estimator.predict(points)))
    assert set(Watched.seen) == {(False, torch.float32, torch.float32)}
    checkpoint = load_checkpoint(tmp_path)
    assert {tensor.dtype for tensor in [*checkpoint.variables.values(), *checkpoint.slots.values()]} == {torch.float32}


def test_it_learns_what_float32_learns_about(tmp_path: Path) -> None:
    rough, exact = (
        job(tmp_path / str(precision), mixed_precision=precision).train(lambda: points().repeat(), steps=300)
        for precision in ("bf16", None)
    )
    start = job(tmp_path / "start").train(points, steps=1).evaluate(points)["loss"]
    assert not np.array_equal(rough.get_variable_value("out.weight"), exact.get_variable_value("out.weight"))
    assert rough.evaluate(points)["loss"] < 0.1 * start
    assert rough.evaluate(points)["loss"] == pytest.approx(exact.evaluate(points)["loss"], abs=0.02 * start)


def census_like(model_dir: Path, *, batch_norm: bool = True, **settings: Any) -> te.Estimator:
    city = fc.categorical_column_with_vocabulary_list("city", ["Oslo", "Rome", "Lima"])
    return te.DNNLinearCombinedClassifier(
        str(model_dir),
        linear_feature_columns=[city],
        dnn_feature_columns=[fc.embedding_column(city, 4), fc.numeric_column("age")],
        dnn_hidden_units=[8, 4],
        dnn_dropout=0.2,
        batch_norm=batch_norm,
        dnn_optimizer=te.optim.Adagrad(lr=0.05),
        config=te.RunConfig(random_seed=3, mixed_precision="bf16", **settings),
    )


def people() -> te.data.Dataset:
    random = np.random.default_rng(5)
    city = random.choice(["Oslo", "Rome", "Lima"], 60).astype(object)
    age = random.uniform(-1, 1, 60).astype(np.float32)
    return te.data.Dataset.from_arrays({"city": city, "age": age}, (city == "Rome").astype(np.int64)).batch(10).repeat()


def test_a_wide_and_deep_model_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = census_like(tmp_path / "whole").train(people, steps=12)
    census_like(tmp_path / "resumed").train(people, steps=5)
    assert_same_variables(census_like(tmp_path / "resumed").train(people, steps=7), whole)


@pytest.mark.slow
def test_compiled_it_learns_about_the_same(tmp_path: Path) -> None:
    start, eager, compiled = (
        census_like(tmp_path / f"{steps} {compile}", batch_norm=False, compile=compile)
        .train(people, steps=steps)
        .evaluate(people, steps=6)["loss"]
        for steps, compile in ((1, False), (40, False), (40, True))
    )
    assert eager < 0.9 * start
    assert compiled == pytest.approx(eager, rel=0.02)


def test_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    features = {"x": np.full((8, 2), np.nan, np.float32)}
    data = te.data.Dataset.from_arrays(features, np.ones((8, 1), np.float32)).batch(4)
    with pytest.raises(te.NanLossDuringTrainingError):
        job(tmp_path).train(lambda: data, steps=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fp16", r"^mixed_precision='fp16' is not supported, since .* use 'bf16', which has the range of float32\.$"),
        ("float8", r"^mixed_precision must be 'bf16' or None, but got 'float8'\.$"),
        (True, r"^mixed_precision must be 'bf16' or None, but got True\.$"),
    ],
)
def test_other_precisions_are_refused(value: Any, message: str) -> None:
    with pytest.raises(te.UserError, match=message):
        te.RunConfig(mixed_precision=value)


class Ends(NamedTuple):
    mean: Tensor
    others: list[Tensor]


class Record(OrderedDict[str, Tensor]):
    @property
    def mean(self) -> Tensor:
        return self["mean"]


@dataclass
class Answer:
    mean: Tensor
    others: tuple[Tensor, ...] = ()


@pytest.mark.parametrize(
    "end",
    [
        lambda out: Ends(out, [out]),
        lambda out: Record(mean=out),
        lambda out: Answer(out, (out,)),
    ],
)
def test_outputs_of_any_kind_keep_it(tmp_path: Path, end: Any) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, features: Mapping[str, Tensor]) -> Any:
            return end(self.linear(features["x"]))

    dtypes: set[torch.dtype] = set()

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        dtypes.update({outputs.mean.dtype, *(other.dtype for other in getattr(outputs, "others", ()))})
        return squared_error(outputs.mean, labels)

    te.Estimator.from_module(
        Network(),
        loss=loss,
        optimizer="Adam",
        model_dir=str(tmp_path),
        config=te.RunConfig(mixed_precision="bf16"),
    ).train(points, steps=2)
    assert dtypes == {torch.float32}
