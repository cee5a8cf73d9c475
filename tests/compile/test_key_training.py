"""Training does not change the cache key of what is trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.compile import key_models as models
from tests.compile.key_models import MOVING, Everything
from torch_estimator.compile.key import CacheKey, cache_key
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.train.model import Model
from torch_estimator.train.optimizers import Schedules
from torch_estimator.train.step import TrainStep

ROWS = 24


def rows(classes: int) -> te.data.Dataset:
    random = np.random.default_rng(0)
    features = {
        "city": random.choice(["Oslo", "Rome", "Lima"], ROWS).astype(object),
        "job": random.choice(["a", "b", "c"], ROWS).astype(object),
        "age": random.uniform(0, 3, ROWS).astype(np.float32),
    }
    return te.data.Dataset.from_arrays(features, random.integers(0, classes, ROWS)).repeat().batch(8)


def digests_of_training(estimator: te.Estimator, dataset: te.data.Dataset) -> list[CacheKey]:
    """Return the cache keys before the first of four steps, and after each of them."""
    model = Model(estimator.job.builder.model_fn(mode=ModeKeys.TRAIN))
    optimizers, schedules = model.make_optimizers()
    step = TrainStep(model.module, model.loss, optimizers, schedules=schedules)

    def now() -> CacheKey:
        return cache_key(model.module, model.loss, optimizers, leave_out=MOVING)

    found = [now()]
    with closing(model.batches(dataset)) as batches:
        for batch in itertools.islice(batches, 4):
            model.note_structure(batch)
            step(batch.features, batch.labels, batch.weights)
            found.append(now())
    return found


WIDE, DEEP = models.columns()
HIDDEN = {"feature_columns": DEEP, "hidden_units": [4, 3]}
BOTH = {"linear_feature_columns": WIDE, "dnn_feature_columns": DEEP, "dnn_hidden_units": [4]}
HEAD = te.MultiClassHead(3)
CANNED: dict[str, Callable[..., te.Estimator]] = {
    "linear classifier": partial(te.LinearClassifier, feature_columns=WIDE),
    "linear regressor": partial(te.LinearRegressor, feature_columns=WIDE, optimizer="Adagrad"),
    "linear estimator": partial(te.LinearEstimator, head=HEAD, feature_columns=WIDE),
    "dnn classifier": partial(te.DNNClassifier, **HIDDEN, dropout=0.3, batch_norm=True),
    "dnn with torch's Adam": partial(te.DNNRegressor, **HIDDEN, optimizer=partial(torch.optim.Adam, lr=0.1)),
    "dnn estimator": partial(te.DNNEstimator, head=HEAD, **HIDDEN, activation_fn=nn.PReLU()),
    "both, classifier": partial(te.DNNLinearCombinedClassifier, **BOTH, dnn_dropout=0.1, batch_norm=True),
    "both, regressor": partial(te.DNNLinearCombinedRegressor, **BOTH),
    "both, estimator": partial(te.DNNLinearCombinedEstimator, head=HEAD, **BOTH),
    "baseline classifier": te.BaselineClassifier,
    "baseline regressor": te.BaselineRegressor,
    "baseline estimator": partial(te.BaselineEstimator, head=HEAD),
}


@pytest.mark.parametrize("make", CANNED.values(), ids=CANNED.keys())
def test_training_a_canned_model_does_not_change_its_digest(make: Callable[..., te.Estimator], tmp_path: Path) -> None:
    classes = 3 if getattr(make, "keywords", {}).get("head") else 2
    found = digests_of_training(make(model_dir=str(tmp_path)), rows(classes))
    # Optimizers of `torch.optim` make their state in their first step.
    made = 1 if isinstance(getattr(make, "keywords", {}).get("optimizer"), partial) else 0
    assert found[made:] == found[-1:] * (5 - made)
    assert found[-1].portable, found[-1].obstacle


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": partial(torch.optim.Adam, lr=0.1),
    "AdamW, one after the other": partial(torch.optim.AdamW, lr=0.1, foreach=False),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, centered=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.1),
    "Adagrad of ours": partial(te.optim.Adagrad, lr=0.1),
    "Ftrl of ours": partial(te.optim.Ftrl, lr=0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_steps_do_not_change_the_digest_of_an_own_module(make: Callable[[Any], Any]) -> None:
    module = Everything()
    optimizer = make(module.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = TrainStep(module, loss_of, [optimizer], schedules=Schedules([schedule]))
    digests = []
    for _ in range(4):
        step(torch.randn(6, 3), torch.randn(6, 1), None)
        digests.append(cache_key(module, loss_of, optimizer, leave_out=MOVING))
    assert digests == digests[:1] * 4
    assert digests[0].portable, digests[0].obstacle


def loss_of(module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
    return models.mean_squared(module(features), labels)


def test_a_module_that_counts_its_own_steps_in_python_changes_with_every_step() -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) / self.calls

    module = Counting(3, 1)
    step = TrainStep(module, loss_of, [te.optim.Adagrad(module.parameters(), lr=0.1)])
    before = cache_key(module)
    step(torch.randn(6, 3), torch.randn(6, 1), None)
    assert cache_key(module) != before


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", ["stateful", "classifier", "subclassed"])
def test_training_a_keras_model_does_not_change_its_digest(name: str, tmp_path: Path) -> None:
    pytest.importorskip("keras")
    from tests.models.keras import models as keras_models

    shape = (8, 8, 1) if name == "classifier" else (3,)
    features = np.random.default_rng(0).normal(size=(ROWS, *shape)).astype(np.float32)
    labels = np.zeros(ROWS, np.int64) if name == "classifier" else features[:, :1]
    estimator = te.model_to_estimator(getattr(keras_models, name)(), model_dir=str(tmp_path))
    found = digests_of_training(estimator, te.data.Dataset.from_arrays(features, labels).repeat().batch(8))
    # Keras makes its compiled loss in the first step.
    assert found[1:] == found[-1:] * 4
    # It writes addresses of objects into other objects.
    assert not found[-1].portable
