from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.signatures import TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline

VECTOR = TensorInfo(dtype="DT_FLOAT", shape=(-1, 3), tensor="x")


def run(function: object, x: np.ndarray, times: int = 1) -> list[np.ndarray]:
    import onnxruntime

    graph = GraphBuilder()
    tensor = graph.input("x", VECTOR)
    for _ in range(times):
        (tensor,) = inline(graph, function, [Inlined(tensor=tensor, row_shape=(3,), dtype="float32")], what="it")  # type: ignore[arg-type]
    graph.output("y", tensor, VECTOR)
    model = graph.model(producer="test", version="1").SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_module_with_weights_runs_at_every_batch_size(rows: int) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 3))
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(module, x)[0], expected, atol=1e-6)


def test_a_function_may_be_inlined_twice() -> None:
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(run(lambda x: x * 2 + 1, x, times=2)[0], x * 7)


def test_a_function_may_return_its_argument() -> None:
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(lambda x: x, x)[0], x)


def test_an_operator_without_an_onnx_form_gives_one_sentence() -> None:
    with pytest.raises(
        ExportError,
        match=r"^it cannot be exported to ONNX: the operator aten.sort.* has no ONNX form; use other operators",
    ) as error:
        run(lambda x: torch.from_numpy(np.sort(x.numpy())), np.ones((1, 3), np.float32))
    assert "\n" not in str(error.value)
