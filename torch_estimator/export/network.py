"""Models in the graph: the canned ones by a lowering of their own, any other module through torch's exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_estimator.custom.column_module import ColumnsThenModule
from torch_estimator.export.any_module import lower_logits, lower_module
from torch_estimator.export.graph import DOUBLE, FLOAT, GraphBuilder
from torch_estimator.export.hash_chains import concat, select
from torch_estimator.export.heads import Prediction
from torch_estimator.export.module_inputs import ModuleInputs
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.input_layer import InputLayer
from torch_estimator.feature_column.layouts import (
    DNN_INDICATOR_IDS,
    DNN_NUMERIC,
    LINEAR_IDS,
    LINEAR_NUMERIC,
    EmbeddingTableLayout,
    PlacedIds,
)
from torch_estimator.feature_column.linear_model import LinearModel
from torch_estimator.feature_column.table import Table

FloatArray = npt.NDArray[np.float32]

_ACTIVATIONS: dict[Any, str] = {
    torch.relu: "Relu",
    nn.functional.relu: "Relu",
    torch.tanh: "Tanh",
    nn.functional.tanh: "Tanh",
    torch.sigmoid: "Sigmoid",
    nn.functional.sigmoid: "Sigmoid",
}
_ACTIVATION_MODULES: dict[type, str] = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid"}


def lower_network(graph: GraphBuilder, module: Any, inputs: ModuleInputs, width: int) -> Prediction:
    """Emits a model; returns its logits, float32 ``[N, width]``.

    Args:
        graph: Where the nodes go.
        module: A canned model (attributes `linear` and `dnn`), or any module from features to logits.
        inputs: What the module is called with.
        width: Number of logits.
    """
    if is_canned(module):
        tensors = {key: item.tensor for key, item in inputs.tensors.items()}
        parts = []
        if module.linear is not None:
            parts.append(_linear(graph, module.linear.linear_model, tensors))
        if module.dnn is not None:
            parts.append(_dnn(graph, module.dnn, tensors))
        return Prediction(tensor=_sum(graph, parts), dtype="DT_FLOAT", row_shape=(width,))
    return lower_logits(graph, *_behind_columns(graph, module, inputs))


def lower_functions(
    graph: GraphBuilder,
    module: nn.Module,
    inputs: ModuleInputs,
    predictions: Callable[[Any], Mapping[str, torch.Tensor]],
) -> dict[str, Prediction]:
    """Emits a module and the function that makes predictions of its outputs; see `lower_module`."""
    behind, taken = _behind_columns(graph, module, inputs)
    return lower_module(graph, behind, taken, predictions)


def is_canned(module: Any) -> bool:
    """Whether a module is made of our linear model and network."""
    linear, dnn = getattr(module, "linear", None), getattr(module, "dnn", None)
    known = isinstance(getattr(linear, "linear_model", None), LinearModel)
    deep = getattr(getattr(dnn, "input_from_feature_columns", None), "input_layer", None)
    return (linear is None or known) and (dnn is None or isinstance(deep, InputLayer)) and (known or dnn is not None)


def _behind_columns(graph: GraphBuilder, module: nn.Module, inputs: ModuleInputs) -> tuple[nn.Module, ModuleInputs]:
    """The module behind an input layer, and that layer's output, which has a lowering of its own."""
    if not isinstance(module, ColumnsThenModule):
        return module, inputs
    layer = module.input_layer
    tensor = _input_layer(graph, layer, {key: item.tensor for key, item in inputs.tensors.items()})
    columns = Inlined(tensor=tensor, row_shape=(layer.width,), dtype="float32")
    return module.module, ModuleInputs(tensors={"columns": columns}, assemble=lambda values: values[0])


def _linear(graph: GraphBuilder, model: LinearModel, features: Mapping[str, str]) -> str:
    parts = []
    for table in model.modules():
        if isinstance(table, Table):
            weights = array(table.weight)
            single = table.dim == 1
            stored = graph.constant(weights.ravel() if single else weights, hint="linear")
            rows = graph.op("Gather", stored, features[LINEAR_IDS])
            parts.append(graph.op("ReduceSum", rows, graph.constant([1], np.int64), keepdims=int(single)))
    total = _sum(graph, [graph.constant(array(model.bias_weights), hint="linear_bias"), *parts])
    if not model.layout.numeric:
        return total
    state = model.state_dict()
    numeric = [array(state[f"{placed.name}.weights"]) for placed in model.layout.numeric]
    return graph.op("Add", total, _product(graph, features[LINEAR_NUMERIC], np.concatenate(numeric)))


def _dnn(graph: GraphBuilder, dnn: Any, features: Mapping[str, str]) -> str:
    layer: InputLayer = dnn.input_from_feature_columns.input_layer
    hidden = [getattr(dnn, f"hiddenlayer_{index}") for index in range(dnn.num_hidden)]
    value = _input_layer(graph, layer, features)
    for index, dense in enumerate(hidden):
        value = _activation(graph, dnn.activation_fn, _dense(graph, dense, value), dense.kernel.shape[1])
        if dnn.batch_norm:
            value = _batch_norm(graph, getattr(dnn, f"batchnorm_{index}"), value)
    return _dense(graph, dnn.logits, value)


def _dense(graph: GraphBuilder, dense: Any, value: str) -> str:
    return _product(graph, value, array(dense.kernel), array(dense.bias))


def _product(graph: GraphBuilder, value: str, kernel: FloatArray, bias: FloatArray | None = None) -> str:
    """``value @ kernel + bias``, rounded as torch rounds it."""
    constants = [kernel] if bias is None else [kernel, bias]
    if kernel.shape[1] > 1:
        # torch adds the same products in the same order: the results are bit for bit the same.
        return graph.multi("Gemm", [value, *(graph.constant(c, hint="dense") for c in constants)], outputs=1)[0]
    # A product with one column is where the libraries differ in order; in double the order does not matter.
    wide = [graph.op("Cast", value, to=DOUBLE), *(graph.constant(c, np.float64, hint="dense") for c in constants)]
    return graph.op("Cast", graph.multi("Gemm", wide, outputs=1)[0], to=FLOAT)


def _batch_norm(graph: GraphBuilder, norm: nn.BatchNorm1d, value: str) -> str:
    assert norm.running_mean is not None and norm.running_var is not None
    scale = array(norm.weight) / np.sqrt(array(norm.running_var) + np.float32(norm.eps))
    shift = array(norm.bias) - array(norm.running_mean) * scale
    scaled = graph.op("Mul", value, graph.constant(scale, hint="scale"))
    return graph.op("Add", scaled, graph.constant(shift, hint="shift"))


def _input_layer(graph: GraphBuilder, layer: InputLayer, features: Mapping[str, str]) -> str:
    """The input of a network, float32 ``[N, width]``, columns in the order of their names."""
    layout = layer.layout
    by_source: dict[str, list[int]] = {}
    for part in sorted(layout.parts, key=lambda part: part.index):
        by_source.setdefault(part.source, []).extend(range(part.start, part.stop))
    pieces: list[str] = []
    rows: list[int] = []
    if layout.indicators:
        ids = features[DNN_INDICATOR_IDS]
        pieces.append(_counts(graph, ids, layout.indicators, layout.indicator_width))
        rows += by_source[DNN_INDICATOR_IDS]
    for table, placed in zip(layer.tables, layout.tables, strict=True):
        assert isinstance(table, Table)
        pieces.append(_embeddings(graph, table, placed, features[placed.feature]))
        rows += by_source[placed.feature]
    if layout.numeric:
        pieces.append(features[DNN_NUMERIC])
        rows += by_source[DNN_NUMERIC]
    # The order of a sum decides its rounding, and raw numbers of 1e5 make that visible in probabilities.
    in_order = sorted(range(len(rows)), key=rows.__getitem__)
    return select(graph, concat(graph, pieces), in_order, len(rows))


def _counts(graph: GraphBuilder, ids: str, placed: Sequence[PlacedIds], width: int) -> str:
    """How often each id occurs in a row, float32 ``[N, width]``."""
    # Comparing every position with the slot that may hold it is a sixth of the work of OneHot and a sum.
    positions = graph.constant([list(range(width))], np.int64, hint="positions")
    most = max(item.column.slots for item in placed)
    total = ""
    for turn in range(most):
        slots = [item.start + min(turn, item.column.slots - 1) for item in placed for _ in range(item.rows)]
        hit = graph.op("Equal", graph.op("Gather", ids, graph.constant(slots, np.int64), axis=1), positions)
        if turn:
            # Columns with fewer slots have been counted.
            open_ = [[turn < item.column.slots for item in placed for _ in range(item.rows)]]
            hit = graph.op("And", hit, graph.constant(open_, np.bool_))
        count = graph.op("Cast", hit, to=FLOAT)
        total = graph.op("Add", total, count) if total else count
    return total


def _embeddings(graph: GraphBuilder, table: Table, layout: EmbeddingTableLayout, ids: str) -> str:
    """The combined vectors of all columns of a table, float32 ``[N, columns * dimension]``."""
    weight = graph.constant(array(table.weight), hint=f"embeddings_{layout.dimension}")
    vectors = graph.op("Gather", weight, ids)
    if layout.slots != len(layout.columns):
        vectors = graph.op("MatMul", _combiner(graph, layout, ids), vectors)
    width = len(layout.columns) * layout.dimension
    return graph.op("Reshape", vectors, graph.constant([-1, width], np.int64))


def _combiner(graph: GraphBuilder, layout: EmbeddingTableLayout, ids: str) -> str:
    """The share of each slot in each column's vector, float32 ``[N, columns, slots]``."""
    member = np.zeros((1, len(layout.columns), layout.slots), np.float32)
    power = np.zeros((1, len(layout.columns), 1), np.float32)
    exponents = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}
    for index, (column, placed) in enumerate(zip(layout.columns, layout.placed, strict=True)):
        member[0, index, placed.start : placed.stop] = 1
        power[0, index, 0] = exponents[column.combiner]
    padding = graph.constant(layout.rows, np.int64)
    missing = graph.op("Equal", graph.op("Unsqueeze", ids, graph.constant([1], np.int64)), padding)
    zero = graph.constant(0, np.float32)
    shares = graph.op("Where", missing, zero, graph.constant(member, hint="combiner"))
    count = graph.op("ReduceSum", shares, graph.constant([2], np.int64), keepdims=1)
    at_least_one = graph.op("Max", count, graph.constant(1, np.float32))
    return graph.op("Div", shares, graph.op("Pow", at_least_one, graph.constant(power)))


def _activation(graph: GraphBuilder, function: Any, value: str, width: int) -> str:
    if function is None or isinstance(function, nn.Identity):
        return value
    kind = _ACTIVATION_MODULES.get(type(function))
    if kind is None and getattr(function, "__hash__", None) is not None:
        kind = _ACTIVATIONS.get(function)
    if kind is not None:
        return graph.op(kind, value)
    inputs = [Inlined(tensor=value, row_shape=(width,), dtype="float32")]
    name = getattr(function, "__name__", type(function).__name__)
    return inline(graph, function, inputs, what=f"activation_fn {name}")[0]


def _sum(graph: GraphBuilder, parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = graph.op("Add", total, part)
    return total


def array(tensor: torch.Tensor) -> FloatArray:
    """A tensor's values on the host, float32."""
    values: FloatArray = tensor.detach().cpu().to(torch.float32).numpy()
    return values
