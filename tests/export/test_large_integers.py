"""onnxruntime 1.31 compares int64 numbers above 2**31 wrongly; an export must give torch's numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.signatures import TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline

_NUMBERS = [0, 1, -1, 5, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 2**31, -(2**31), -(2**31) - 1, -(2**32), -(2**40)]
_PAIRS = torch.tensor(list(itertools.product(_NUMBERS, repeat=2)))

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "maximum": lambda x: torch.maximum(x[:, 0], x[:, 1]),
    "minimum": lambda x: torch.minimum(x[:, 0], x[:, 1]),
    "max of two": lambda x: torch.max(x, x.flip(1)),
    "a constant": lambda x: torch.maximum(x, torch.tensor(2**31)),
    "clamp": lambda x: x.clamp(-1, 2**31),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_max": lambda x: x.clamp(max=7),
    "clamp between tensors": lambda x: x.clamp(x[:, :1], x[:, 1:]),
    "relu": torch.relu,
    "sign": torch.sign,
    "amax": lambda x: x.repeat_interleave(4, 1).amax(1),
    "amin, kept": lambda x: x.repeat_interleave(4, 1).amin(-1, keepdim=True),
    "largest with its place": lambda x: x.repeat_interleave(4, 1).max(1).values,
    "amax of two dimensions": lambda x: x.repeat_interleave(4, 1).reshape(-1, 2, 4).amax((1, 2)),
    "largest of all": lambda x: x * 0 + x.max(),
    "smallest of all": lambda x: x * 0 + x.min(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_give_torchs_large_integers(name: str) -> None:
    import onnxruntime

    info = TensorInfo(dtype="DT_INT64", shape=(-1, 2), tensor="x")
    graph = GraphBuilder()
    inputs = [Inlined(tensor=graph.input("x", info), row_shape=(2,), dtype="int64")]
    (tensor,) = inline(graph, FUNCTIONS[name], inputs, what="it")
    wanted = FUNCTIONS[name](_PAIRS).numpy()
    graph.output("y", tensor, TensorInfo(dtype="DT_INT64", shape=(-1, *wanted.shape[1:]), tensor="y"))
    model = graph.model(producer="test", version="1").SerializeToString()
    (found,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": _PAIRS.numpy()})
    np.testing.assert_array_equal(found, wanted)


def test_comparisons_of_floats_keep_their_operators() -> None:
    graph = GraphBuilder()
    info = TensorInfo(dtype="DT_FLOAT", shape=(-1, 2), tensor="x")
    inputs = [Inlined(tensor=graph.input("x", info), row_shape=(2,), dtype="float32")]
    (tensor,) = inline(graph, lambda x: x.clamp(0.0, 1.0), inputs, what="it")
    graph.output("y", tensor, info)
    assert "Clip" in {node.op_type for node in graph.model(producer="test", version="1").graph.node}
