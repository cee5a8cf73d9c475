from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator.export.elementwise import Elementwise
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.signatures import TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline

Function = Callable[[Any], Any]

WIDTH = 2
PAIRS = TensorInfo(dtype="DT_FLOAT", shape=(-1, WIDTH), tensor="x")

MEAN, DEVIATION = 38.58, np.float32(13.64)
SHIFTS, SCALES = torch.tensor([1.5, -2.0]), nn.Parameter(torch.tensor([3.0, 0.1]))
LIMIT = torch.tensor(2.5)


def _scaled(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return (x - low) / (high - low)


class Scaler:
    """A method of an object, as users pass it."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


SIMPLE: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "absolute", "neg", "negative", "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sqrt"),
            *("rsqrt", "square", "reciprocal", "sigmoid", "tanh", "relu", "sign", "floor", "ceil", "round", "sin"),
            *("cos", "atan", "asinh", "erf"),
        )
    },
    "method": lambda x: x.log1p(),
    "special": torch.special.log1p,
    "functional": functional.relu,
    "identity": lambda x: x,
    "float": lambda x: x.float() + 1,
    "operators": lambda x: -(abs(x + 0.1) - 1) * 3 / 7,
    "reflected": lambda x: (1 - x) + (2 / x) + 3 * x + (1 + x),
    "named": lambda x: torch.sub(torch.add(torch.mul(torch.div(x, 3), 2), 1), 0.5),
    "twice": lambda x: torch.mul(x, x) - torch.subtract(x, x + 1),
    "rsub": lambda x: torch.rsub(x, 3),
    "powers": lambda x: x**2 + x**3 - x**0.5 + x**-1 + torch.pow(x, 1.5) + x.pow(0),
    "power of a number": lambda x: 2**x + 2.5**x,
    "power of itself": lambda x: torch.pow(x.abs(), x),
    "standardized": lambda x: (x - MEAN) / DEVIATION,
    "numpy": lambda x: x * np.float64(0.3) + np.int64(3),
    "vectors": lambda x: (x - SHIFTS) / SCALES,
    "made inside": lambda x: x / torch.tensor([3.0, 7.0]),
    "partial": functools.partial(_scaled, low=17, high=90),
    "object": Scaler(0.1),
    "clamp": lambda x: x.clamp(0.2, 0.9),
    "clamp to the lower": lambda x: x.clamp(min=0.5),
    "clamp to the upper": lambda x: torch.clamp(x, max=2),
    "clip": lambda x: torch.clip(x, -0.7, 1.3),
    "clamp_min": lambda x: x.clamp_min(1),
    "clamp_max": lambda x: torch.clamp_max(x, 1),
    "minimum": lambda x: torch.minimum(x, LIMIT),
    "maximum": lambda x: torch.maximum(x, 3 * x),
    "min": lambda x: torch.min(x, LIMIT),
    "max": lambda x: x.max(2 * x),
    "where": lambda x: torch.where(x > 0, x.log1p(), 0.0) + torch.where(x <= 0.5, x, 1),
    "where of two": lambda x: torch.where(x >= x * x, x, LIMIT) + torch.where(x < 3, 1.0, 0.0),
    "where equal": lambda x: torch.where(x == 1, x, 2.0) + torch.where(x != 1, x, 3.0),
    "missing": lambda x: torch.where(torch.isnan(x), 0.0, x),
    "indicator": lambda x: (x > 3).float(),
}


@pytest.fixture(scope="module")
def by_torch() -> dict[str, npt.NDArray[np.float32]]:
    """What the graphs of torch's exporter compute. A trace takes a second, so there are only two."""
    # Torch 2.13 cannot trace clamp with a number that the trace already has as an operand of another function.
    clamps = [name for name in SIMPLE if name.startswith("cl")]
    return {**_by_torch(clamps), **_by_torch([name for name in SIMPLE if name not in clamps])}


def _by_torch(names: list[str]) -> dict[str, npt.NDArray[np.float32]]:
    graph = GraphBuilder()
    x = Inlined(tensor=graph.input("x", PAIRS), row_shape=(WIDTH,), dtype="float32")

    def call(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(SIMPLE[name](tensor) for name in names)

    return dict(zip(names, _run(graph, inline(graph, call, [x], what="all")), strict=True))


@pytest.mark.parametrize("name", SIMPLE)
def test_the_numbers_are_those_of_torchs_exporter(name: str, by_torch: dict[str, npt.NDArray[np.float32]]) -> None:
    graph = GraphBuilder()
    elementwise = Elementwise.of(SIMPLE[name], (WIDTH,))
    assert elementwise is not None
    (numbers,) = _run(graph, [elementwise.lower(graph, graph.input("x", PAIRS))])
    np.testing.assert_array_equal(numbers.view(np.int32), by_torch[name].view(np.int32))


def _branches(x: torch.Tensor) -> torch.Tensor:
    return x if float(x.sum()) > 0 else -x


def _in_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sqrt(x.numpy()))


def _unseen_by_torch(x: torch.Tensor) -> torch.Tensor:
    return x * torch.from_dlpack(np.from_dlpack(x.detach()).mean(keepdims=True))


def _writes(x: torch.Tensor) -> torch.Tensor:
    x += 1
    return x


def _fails(x: torch.Tensor) -> torch.Tensor:
    raise ValueError


@pytest.mark.parametrize(
    "function",
    [
        *(_branches, _in_numpy, _unseen_by_torch, _writes, _fails),
        lambda x: x / x.sum(1, keepdim=True),
        lambda x: x * torch.rand(1),
        lambda x: x + torch.rand_like(x),
        lambda x: x[:, :1],
        lambda x: x.double() / 3,
        lambda x: x > 0,
        lambda x: (x > 0) * x,
        lambda x: torch.stack([x, x]).sum(0),
        lambda x: torch.add(x, x, alpha=2),
        lambda x: x * torch.ones(3, 1),
        lambda x: x * torch.tensor(2.0, dtype=torch.float64),
        lambda x: torch.tensor([[1.0, 2.0]]).expand(len(x), 2),
        lambda x: torch.clamp(x, min=LIMIT),
        lambda x: x.relu_(),
        lambda x: None,
        nn.ReLU(),
        nn.Dropout(),
    ],
)
def test_other_functions_are_left_to_torchs_exporter(function: Function) -> None:
    assert Elementwise.of(function, (WIDTH,)) is None


def test_a_random_generator_is_where_it_was_after_a_simple_function() -> None:
    before = torch.get_rng_state()
    Elementwise.of(torch.log1p, (WIDTH,))
    assert torch.equal(before, torch.get_rng_state())


def test_shaped_columns_and_other_normalizers_go_side_by_side(tmp_path: Path) -> None:
    shaped = fc.numeric_column("s", shape=(2, 2), normalizer_fn=lambda x: x / torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
    summed = fc.numeric_column("t", shape=2, normalizer_fn=lambda x: x / x.sum(1, keepdim=True))
    logs = fc.numeric_column("l", normalizer_fn=torch.log1p)
    built = model_of([], [shaped, summed, logs])
    raw = {"s": np.arange(12.0).reshape(3, 2, 2), "t": np.ones((3, 2)), "l": np.arange(3.0)}
    expected, exported = built.predict(raw), built.export(tmp_path).predict(raw)
    np.testing.assert_allclose(exported["logits"], expected["logits"], rtol=1e-5, atol=1e-6)


def test_a_simple_normalizer_needs_nothing_of_torchs_exporter(tmp_path: Path) -> None:
    program = f"""
import sys, torch, torch_estimator as te
from torch_estimator import feature_column as fc
x = fc.numeric_column("x", normalizer_fn=torch.log1p)
estimator = te.LinearRegressor([x], {str(tmp_path)!r})
estimator.train(lambda: ({{"x": [1.0, 2.0]}}, [2.0, 4.0]), steps=1)
estimator.export_saved_model({str(tmp_path / "export")!r}, te.serving_input.raw_features([x]))
sys.exit("onnxscript" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def _run(graph: GraphBuilder, tensors: tuple[str, ...] | list[str]) -> list[npt.NDArray[np.float32]]:
    """What a graph computes from numbers of all kinds."""
    import onnxruntime

    for index, tensor in enumerate(tensors):
        graph.output(graph.name(f"y{index}"), tensor, PAIRS)
    model = graph.model(producer="test", version="1").SerializeToString()
    random = np.random.default_rng(0)
    edges = [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-8, 1e-40, 3e38, -1e5, 2.5]
    numbers = np.concatenate([edges, random.normal(size=500), random.uniform(-1e4, 1e6, 500)]).astype(np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": numbers.reshape(-1, WIDTH)})
