"""Models that hold about everything a module can hold; run as a program, this prints their digests."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
import math
import pathlib
import random
import re
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, timedelta
from fractions import Fraction
from random import random as draw
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.random import rand
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.compile.environment import environment_digest
from torch_estimator.compile.key import CacheKey, cache_key

SCALE = 2.0
TABLE = {"a": [1, 2, {"b": 3}]}
OFFSETS = torch.arange(4.0)


class Color(enum.Enum):
    RED = "r"
    BLUE = ("b", 1)


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    sizes: tuple[int, ...] = (3, 4)
    color: Color = Color.BLUE


class Span(NamedTuple):
    start: int
    stop: int


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: Any) -> None:
        self.left = left


class Knot:
    """An element of a set that refers to the owner of the set."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name = name
        self.owner = owner


class Straight(torch.autograd.Function):
    """Rounds in the forward pass, and passes gradients on unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def doubled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def twice(x: Tensor) -> Tensor:
        return function(function(x))

    return twice


@doubled
def squashed(x: Tensor) -> Tensor:
    return torch.tanh(x * SCALE) + TABLE["a"][0]


def power(exponent: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x**exponent


class Everything(nn.Module):
    """A module with batch norm, dropout, and values of all kinds as attributes."""

    limit = 3.0
    rounds = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.25))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.recurrent = nn.GRU(4, 4, batch_first=True)
        self.out = nn.Linear(4, 1)
        self.tied = self.out
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("offset", torch.ones(1), persistent=False)
        self.view = self.steps.view(1)
        self.temperature = 0.7
        self.settings = Settings()
        self.span = Span(1, 2)
        self.colors = {Color.RED, Color.BLUE}
        self.words = {"spam", "eggs", "ham", "a", "b", "c"}
        self.frozen = frozenset({("x", 1), ("y", 2)})
        self.nested = [1, [2, [3, {"deep": (4, 5)}]]]
        self.activation = power(2)
        self.partial = functools.partial(torch.clamp, max=2.0)
        self.method = self.scaled
        self.path = pathlib.PurePosixPath("a/b")
        self.array = np.arange(6.0).reshape(2, 3)
        self.objects = np.array(["x", None, 3], dtype=object)
        self.number = np.float32(1.5)
        self.rows = range(3)
        self.cut = slice(0, None, 2)
        self.many = defaultdict(list, {"k": [1]})
        self.ordered = OrderedDict(a=1)
        self.counted = Counter("aab")
        self.queue = deque([1, 2], maxlen=4)
        self.arrow = pa.array(["x", "y", None])
        self.day = date(2020, 1, 2)
        self.span_of_time = timedelta(seconds=3)
        self.fraction = Fraction(1, 3)
        self.random = random.Random(4)
        self.generator = np.random.default_rng(5)
        self.counter = itertools.count(3)
        self.pattern = re.compile("a+b")
        self.slotted = Slotted(1)
        self.reference = weakref.ref(self.out)
        self.dtype = torch.float32
        self.device = torch.device("cpu")
        self.raw = b"x" * 1000
        self.knots = {Knot(name, self) for name in ("one", "two", "three")}
        self.parts = {nn.Linear(2, 2), nn.Linear(3, 3)}
        self.inner.register_forward_hook(lambda module, inputs, output: output + self.temperature)
        self.out.register_forward_pre_hook(self._watch, with_kwargs=True)

    def scaled(self, x: Tensor) -> Tensor:
        return self.activation(x) * self.temperature

    def _watch(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Do nothing; registered as a hook of each call."""

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        hidden = self.spectral(self.normed(squashed(self.inner(x))) + OFFSETS)
        hidden, _ = self.recurrent(hidden.unsqueeze(1))
        hidden = Straight.apply(self.scaled(hidden.squeeze(1))) if self.rounds else self.scaled(hidden.squeeze(1))
        return self.out(hidden.clamp(-self.limit, math.pi))

    def reset(self) -> None:
        """Draw from the global generators of Python and numpy; never called."""
        self.bias = random.random() + np.random.rand() + draw() + rand()


def mean_squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs - labels) ** 2).mean()


def columns() -> tuple[list[Any], list[Any]]:
    city = fc.categorical_column_with_vocabulary_list("city", ["Oslo", "Rome"])
    job = fc.categorical_column_with_hash_bucket("job", 10)
    age = fc.numeric_column("age", normalizer_fn=lambda x: torch.log1p(x) * SCALE)
    wide = [city, job, fc.crossed_column(["city", "job"], 50), fc.bucketized_column(age, (1, 2))]
    return wide, [fc.indicator_column(city), fc.embedding_column(job, 3), age]


def canned() -> Any:
    wide, deep = columns()
    transform = fc.FeatureTransform(wide, deep)
    return [fc.LinearModel(transform.linear, 2), fc.InputLayer(transform.dnn), te.BinaryClassHead(thresholds=[0.3])]


def of_everything() -> dict[str, Any]:
    module = Everything()
    optimizer = te.optim.clip_gradients_by_norm(functools.partial(torch.optim.Adam, lr=0.1, weight_decay=0.2), 2.0)
    other = te.optim.Adagrad(lr=0.1)
    made = [optimizer(module.inner.named_parameters()), other(module.out.named_parameters())]
    return {"module": module, "loss": mean_squared, "optimizers": made, "mixed_precision": True}


MODELS: dict[str, Callable[[], Any]] = {"everything": of_everything, "canned": canned}


def keys_of_all() -> dict[str, CacheKey]:
    return {name: cache_key(make()) for name, make in MODELS.items()}


MOVING = ("lr", "initial_lr")
"""Keys of the settings that schedules move."""


def key_of(roots: Any) -> CacheKey:
    """Return the cache key as a training computes it, without the numbers of settings that may move."""
    return cache_key(roots, leave_out=(*MOVING, "betas"))


if __name__ == "__main__":
    found = {
        name: {"digest": one.digest, "obstacle": one.obstacle, "paths": [path for path, _ in one.tensors]}
        for name, one in keys_of_all().items()
    }
    print(json.dumps({**found, "environment": environment_digest(2)}))
