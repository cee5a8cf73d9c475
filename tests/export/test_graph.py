from __future__ import annotations

import numpy as np
import onnx
import pytest

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.signatures import TensorInfo

NUMBERS = TensorInfo(dtype="DT_FLOAT", shape=(-1, 2), tensor="x")


def run(graph: GraphBuilder, **feeds: np.ndarray) -> list[np.ndarray]:
    import onnxruntime

    model = graph.model(producer="test", version="1")
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_equal_expressions_and_constants_are_emitted_once() -> None:
    graph = GraphBuilder()
    x = graph.input("x", NUMBERS)
    first = graph.op("Add", x, graph.constant(1, np.float32))
    assert graph.op("Add", x, graph.constant(1, np.float32)) == first
    assert graph.op("Add", x, graph.constant(1, np.int64)) != first
    assert graph.op("Mul", x, x) != first


def test_a_tensor_may_be_two_outputs_or_an_input_an_output() -> None:
    graph = GraphBuilder()
    x = graph.input("x", NUMBERS)
    double = graph.op("Add", x, x)
    for name, tensor in (("a", double), ("b", double), ("c", x)):
        graph.output(name, tensor, NUMBERS)
    value = np.array([[1, 2]], np.float32)
    a, b, c = run(graph, x=value)
    np.testing.assert_array_equal(a, 2 * value)
    np.testing.assert_array_equal(b, 2 * value)
    np.testing.assert_array_equal(c, value)


def test_an_output_may_be_used_further() -> None:
    graph = GraphBuilder()
    x = graph.input("x", NUMBERS)
    double = graph.op("Add", x, x)
    graph.output("double", double, NUMBERS)
    graph.output("negative", graph.op("Neg", double), NUMBERS)
    results = run(graph, x=np.array([[1, 2]], np.float32))
    assert [result.tolist() for result in results] == [[[2, 4]], [[-2, -4]]]


def test_names_of_inputs_and_outputs_are_distinct() -> None:
    graph = GraphBuilder()
    graph.input("x", NUMBERS)
    with pytest.raises(ExportError, match="'x' is used twice"):
        graph.input("x", NUMBERS)


def test_an_input_called_like_a_node_is_no_clash() -> None:
    graph = GraphBuilder()
    add = graph.input("add", NUMBERS)
    graph.output("y", graph.op("Add", add, add), NUMBERS)
    assert run(graph, add=np.ones((1, 2), np.float32))[0].tolist() == [[2, 2]]


def test_constants_keep_strings_and_shapes() -> None:
    graph = GraphBuilder()
    ids = graph.input("ids", TensorInfo(dtype="DT_INT64", shape=(-1,), tensor="ids"))
    names = graph.constant(np.array(["", "füchse"], object))
    graph.output("name", graph.op("Gather", names, ids), TensorInfo(dtype="DT_STRING", shape=(-1,), tensor="name"))
    assert run(graph, ids=np.array([1, 0]))[0].tolist() == ["füchse", ""]
