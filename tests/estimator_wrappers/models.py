"""A wide and deep model with a few columns, and data with an additional key column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc

WORDS = ["a", "b", "c"]
ROWS = 103
FIRST_KEY = 2**60 + 1
"""Too large for a float of any size to be exact about."""

WORD = fc.categorical_column_with_vocabulary_list("word", WORDS)
COLUMNS = [WORD, fc.numeric_column("x")]
DEEP = [fc.numeric_column("x"), fc.indicator_column(WORD), fc.embedding_column(WORD, 3)]


def columns(rows: int = ROWS) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        "x": random.normal(size=rows).astype(np.float32),
        "word": np.array(WORDS, object)[random.integers(0, 3, rows)],
        "key": np.arange(FIRST_KEY, FIRST_KEY + rows),
        "name": np.array([f"näme {row}" for row in range(rows)], object),
    }


def rows(rows: int = ROWS, batch: int = 10) -> te.data.Dataset:
    """Return batches with a numeric label; the last batch is smaller."""
    features = columns(rows)
    labels = (2 * features["x"] + (features["word"] == "a")).astype(np.float32)
    return te.data.Dataset.from_arrays(features, labels).batch(batch)


def regressor(model_dir: object, **arguments: Any) -> te.Estimator:
    return te.DNNLinearCombinedRegressor(
        model_dir=str(model_dir),
        linear_feature_columns=[WORD],
        dnn_feature_columns=DEEP,
        dnn_hidden_units=[6, 4],
        config=te.RunConfig(random_seed=1, save_checkpoints_steps=1000),
        **arguments,
    )


class Two(nn.Module):
    """Network with named layers that reads one column and ignores the others."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(1, 5), nn.Tanh())
        self.out = nn.Linear(5, 1)
        self.idle = nn.Linear(1, 1)

    def forward(self, features: Mapping[str, Any]) -> Tensor:
        result: Tensor = self.out(self.encoder(features["x"].reshape(-1, 1)))
        return result


def two_model_fn(mode: str) -> te.EstimatorSpec:
    """Return the spec of a model with plain functions instead of a head."""
    return te.EstimatorSpec(
        mode=mode,
        module=Two(),
        loss=lambda outputs, labels: ((outputs[:, 0] - labels) ** 2).mean(),
        optimizer=lambda named: torch.optim.SGD([parameter for _, parameter in named if parameter.requires_grad], 0.1),
    )


def two(model_dir: object) -> te.Estimator:
    return te.Estimator(two_model_fn, str(model_dir), te.RunConfig(random_seed=1, save_checkpoints_steps=1000))


def predicted(estimator: te.Estimator, batch: int = 10) -> dict[str, np.ndarray]:
    """Return all predictions as one array per key."""
    batches = list(estimator.predict(lambda: rows(batch=batch), yield_single_examples=False))
    return {key: np.concatenate([one[key] for one in batches]) for key in batches[0]}
