"""Programs that differ in one thing never share a compiled step; the same program, made again, finds its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.code_cache import CodeCache
from torch_estimator.compile import compiled_runner

ROWS = 16
SLOPE = 0.5
Make = Callable[..., te.Estimator]


def times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def sloped(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * SLOPE)


def weighted(weight: float, power: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, labels: weight * ((outputs - labels) ** power).abs().mean()


class Network(nn.Module):
    def __init__(self, hidden: nn.Module, scale: Callable[[Tensor], Tensor], factor: float, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.hidden = hidden
        self.drop = nn.Dropout(dropout)
        self.scale = scale
        self.factor = factor
        self.last = nn.Linear(3, 1)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.last(self.drop(self.hidden(self.scale(self.first(features["x"]))))) * self.factor


def of_module(model_dir: Path, given: dict[str, Any]) -> te.Estimator:
    return te.Estimator.from_module(
        Network(given["hidden"](), given["scale"], given["factor"], given["dropout"]),
        loss=weighted(given["loss weight"], given["loss power"]),
        optimizer=given["optimizer"],
        model_dir=str(model_dir),
        config=te.RunConfig(random_seed=1, mixed_precision=given["mixed precision"]),
    )


def canned(model_dir: Path, given: dict[str, Any]) -> te.Estimator:
    age = fc.numeric_column("age", normalizer_fn=given["normalizer"])
    city = fc.categorical_column_with_vocabulary_list("city", given["vocabulary"])
    job = fc.categorical_column_with_hash_bucket("job", given["buckets"])
    bucketized = fc.bucketized_column(fc.numeric_column("age"), given["boundaries"])
    return te.DNNLinearCombinedEstimator(
        te.BinaryClassHead(loss_reduction=given["reduction"], loss_fn=given["loss"]),
        str(model_dir),
        linear_feature_columns=[city, bucketized, fc.crossed_column(["city", "job"], 20)],
        linear_optimizer=given["linear optimizer"],
        dnn_feature_columns=[age, fc.embedding_column(job, given["dimension"], combiner=given["combiner"])],
        dnn_optimizer="Adagrad",
        dnn_hidden_units=given["units"],
        dnn_activation_fn=given["activation"],
        batch_norm=given["batch norm"],
        config=te.RunConfig(random_seed=1),
    )


def focal(labels: Tensor, logits: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none") * 2


# Each thing that a program may have one of.
OF_MODULE: dict[str, list[Any]] = {
    "hidden": [nn.ReLU, nn.Tanh, partial(nn.LeakyReLU, 0.1), partial(nn.LeakyReLU, 0.2), partial(nn.Linear, 3, 3)],
    "scale": [times(2.0), times(3.0), torch.sin, sloped, partial(torch.clamp, max=1.0)],
    "factor": [1.0, 2.0, 1],
    "dropout": [0.0, 0.1, 0.2],
    "loss weight": [1.0, 0.5],
    "loss power": [2, 4],
    "optimizer": [
        "Adam",
        "SGD",
        te.optim.Adagrad(lr=0.1),
        te.optim.Adagrad(lr=0.1, initial_accumulator_value=0.2),
        partial(torch.optim.Adam, lr=0.1, eps=1e-6),
        partial(torch.optim.Adam, lr=0.1, weight_decay=0.1),
        partial(torch.optim.Adam, lr=0.1, amsgrad=True),
        te.optim.clip_gradients_by_norm(te.optim.Adam(lr=0.1), 1.0),
        te.optim.clip_gradients_by_norm(te.optim.Adam(lr=0.1), 2.0),
    ],
    "mixed precision": [None, "bf16"],
    "slope": [0.5, 0.25],
    "batch": [4, 8],
}
CANNED: dict[str, list[Any]] = {
    "normalizer": [None, times(2.0), times(3.0), torch.log1p],
    "vocabulary": [["Oslo", "Rome"], ["Oslo", "Rome", "Lima"]],
    "buckets": [5, 6],
    "boundaries": [(1, 2), (1, 3), (1, 2, 3)],
    "reduction": ["sum", "mean"],
    "loss": [None, focal],
    "linear optimizer": ["Ftrl", te.optim.Ftrl(lr=0.1, l1_regularization_strength=0.1), "Adagrad", "SGD"],
    "dimension": [2, 3],
    "combiner": ["mean", "sum"],
    "units": [[3], [4], [3, 3]],
    "activation": [torch.relu, torch.tanh, sloped, times(2.0), times(3.0)],
    "batch norm": [False, True],
    "slope": [0.5, 0.25],
}

# A global counts only in a program with a function that reads it.
NEEDED: dict[str, dict[str, Any]] = {"slope": {"scale": sloped, "activation": sloped}}


def data(given: dict[str, Any]) -> te.data.Dataset:
    drawn = np.random.default_rng(0)
    features = {
        "x": drawn.normal(size=(ROWS, 2)).astype(np.float32),
        "age": drawn.uniform(0, 3, ROWS).astype(np.float32),
        "city": drawn.choice(["Oslo", "Rome"], ROWS).astype(object),
        "job": drawn.choice(["a", "b"], ROWS).astype(object),
    }
    needed = ("x",) if "hidden" in given else ("age", "city", "job")
    labels = drawn.integers(0, 2, (ROWS, 1)).astype(np.float32)
    return (
        te.data.Dataset.from_arrays({name: features[name] for name in needed}, labels)
        .repeat()
        .batch(given.get("batch", 4))
    )


@pytest.fixture
def key_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Make, dict[str, Any]], str]:
    """Return a function that trains a program a little, and returns the entry of the cache that it looks for."""
    asked: list[str] = []
    monkeypatch.setattr(CodeCache, "find", lambda self, key: asked.append(key))
    monkeypatch.setattr(compiled_runner, "is_worth_compiling_in_background", lambda *_: False)

    def look(make: Make, given: dict[str, Any]) -> str:
        asked.clear()
        monkeypatch.setitem(globals(), "SLOPE", given["slope"])
        # Optimizers of `torch.optim` make their state in the first step, which is always taken in Python.
        make(tmp_path / str(next(count)), given).train(lambda: data(given), steps=2)
        (key,) = set(asked)
        return key

    count = itertools.count()
    return look


@pytest.mark.parametrize(("make", "things"), [(of_module, OF_MODULE), (canned, CANNED)])
def test_programs_that_differ_in_one_thing_have_different_keys(
    make: Make, things: dict[str, list[Any]], key_of: Callable[[Make, dict[str, Any]], str]
) -> None:
    drawn = random.Random(1)
    base = {name: drawn.choice(choices) for name, choices in things.items()}
    last = {name: choices[-1] for name, choices in things.items()}
    known: dict[tuple[int, ...], str] = {}

    def key(given: dict[str, Any]) -> str:
        program = tuple(map(id, given.values()))
        if program not in known:
            known[program] = key_of(make, given)
        return known[program]

    for name, choices in things.items():
        common = base | {other: value for other, value in NEEDED.get(name, {}).items() if other in things}
        keys = {key({**common, name: choice}) for choice in choices}
        assert len(keys) == len(choices), f"programs with another {name}: {common}"
    for given in (base, last):
        assert key_of(make, given) == key(given), f"the same program twice: {given}"
