"""Export of models to ONNX: premade models by hand-written code, all other modules by torch's exporter.

The graph of the hand-written code has about half the latency of the graph that torch's exporter makes of the same
model.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_estimator.export.any_module import ModuleInputs, logits_of, lower_module
from torch_estimator.export.extra_outputs import LayerRecorder
from torch_estimator.export.graph import DOUBLE, FLOAT, GraphBuilder
from torch_estimator.export.hash_chains import concat, select
from torch_estimator.export.recurrent_network import lower_outputs
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.dense_features import InputLayer
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.layouts import Bag, EmbeddingTableLayout, PlacedIds
from torch_estimator.feature_column.table import Table, clip_norms, tables_of
from torch_estimator.feature_column.weighted_sum import LinearModel
from torch_estimator.from_module.module_model import ColumnsThenModule
from torch_estimator.heads.serving import Prediction
from torch_estimator.networks import ROWS, Baseline
from torch_estimator.recurrent_network import RecurrentNetwork
from torch_estimator.train.mapped_tables import StoredTable

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


def lower_network(
    graph: GraphBuilder,
    module: Any,
    inputs: ModuleInputs,
    width: int,
    recorder: LayerRecorder | None = None,
    joined: Callable[[Any], torch.Tensor] | None = None,
) -> Prediction:
    """Add the nodes of a model to the graph; return its logits, float32 ``[N, width]``.

    `module` is a premade model (with attributes `linear` and `dnn`), or any module from features to logits. `joined`
    joins logits given by head into one tensor; None for a module with one output.
    """
    if isinstance(module, Baseline):
        return _baseline(graph, module, inputs.tensors[ROWS].tensor)
    recorder = recorder or LayerRecorder(module, {})
    tensors = {key: item.tensor for key, item in inputs.tensors.items()}
    if isinstance(module, RecurrentNetwork):
        context = None if module.dense_features is None else _input_layer(graph, module.dense_features, tensors)
        outputs, mask = lower_outputs(graph, module, tensors, context)
        dense: Any = module.rnn_model["logits"]
        if mask is None:
            return Prediction(tensor=_dense(graph, dense, outputs), dtype="DT_FLOAT", row_shape=(width,))
        flat = graph.op("Reshape", outputs, graph.constant([-1, dense.kernel.shape[0]], np.int64))
        shape = graph.op("Concat", graph.op("Shape", mask), graph.constant([width], np.int64), axis=0)
        logits = graph.op("Reshape", _dense(graph, dense, flat), shape)
        return Prediction(tensor=logits, dtype="DT_FLOAT", row_shape=(-1, width), mask=mask)
    if is_canned(module):
        parts = []
        if module.linear is not None:
            parts.append(_linear(graph, module.linear.linear_model, tensors, recorder))
            recorder.record(graph, ("linear", "linear.linear_model"), parts[-1], width)
        if module.dnn is not None:
            parts.append(_dnn(graph, module.dnn, tensors, recorder))
            recorder.record(graph, ("dnn", "dnn.logits"), parts[-1], width)
        return Prediction(tensor=_sum(graph, parts), dtype="DT_FLOAT", row_shape=(width,))
    body, body_inputs = _after_input_layer(graph, module, inputs, recorder)
    return recorder.lower(lambda extend: lower_module(graph, body, body_inputs, extend(logits_of(body, joined))))[
        "logits"
    ]


def lower_functions(
    graph: GraphBuilder,
    module: nn.Module,
    inputs: ModuleInputs,
    predictions: Callable[[Any], Mapping[str, torch.Tensor]],
    recorder: LayerRecorder,
) -> dict[str, Prediction]:
    """Add the nodes of a module, and of the function from its outputs to predictions; return the predictions by key."""
    body, body_inputs = _after_input_layer(graph, module, inputs, recorder)
    return recorder.lower(lambda extend: lower_module(graph, body, body_inputs, extend(predictions)))


def _baseline(graph: GraphBuilder, module: Baseline, anything: str) -> Prediction:
    """Return the logits of a baseline: the bias, once per row. `anything` is any tensor with the batch's rows."""
    bias = array(module.baseline.bias)
    batch = graph.op("Shape", anything, start=0, end=1)
    shape = graph.op("Concat", batch, graph.constant([len(bias)], np.int64), axis=0)
    logits = graph.op("Expand", graph.constant(bias[None], hint="bias"), shape)
    return Prediction(tensor=logits, dtype="DT_FLOAT", row_shape=bias.shape)


def is_canned(module: Any) -> bool:
    """Return whether a module is a premade model with a linear part, a deep part, or both."""
    linear, dnn = getattr(module, "linear", None), getattr(module, "dnn", None)
    known = isinstance(getattr(linear, "linear_model", None), LinearModel)
    deep = getattr(getattr(dnn, "input_from_feature_columns", None), "input_layer", None)
    return (linear is None or known) and (dnn is None or isinstance(deep, InputLayer)) and (known or dnn is not None)


def tables_read_by_block(module: nn.Module) -> list[Table]:
    """Return the large tables of which an export reads each block once, and nothing else reads anything."""
    parts = [module] if is_canned(module) else [module.input_layer] if isinstance(module, ColumnsThenModule) else []
    owners = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    tables = [one for part in parts for one in tables_of(part)]
    return [one for one in tables if one.is_in_file and owners[one.weight] == 1]


def _after_input_layer(
    graph: GraphBuilder, module: nn.Module, inputs: ModuleInputs, recorder: LayerRecorder
) -> tuple[nn.Module, ModuleInputs]:
    """Add the nodes of a module's input layer, if it has one. Return the rest of the module and its inputs."""
    if not isinstance(module, ColumnsThenModule):
        return module, inputs
    layer = module.input_layer
    tensor = _input_layer(graph, layer, {key: item.tensor for key, item in inputs.tensors.items()})
    recorder.record(graph, ("input_layer",), tensor, layer.width)
    columns = Inlined(tensor=tensor, row_shape=(layer.width,), dtype="float32")
    return module.module, ModuleInputs(tensors={"columns": columns}, assemble=lambda values: values[0])


def _linear(graph: GraphBuilder, model: LinearModel, features: Mapping[str, str], recorder: LayerRecorder) -> str:
    parts = [] if model.table is None else _categorical(graph, model, model.table, features)
    total = _sum(graph, [graph.constant(array(model.bias_weights), hint="linear_bias"), *parts])
    if model.dense is None:
        return total
    dense = _input_layer(graph, model.dense, features)
    recorder.record(graph, ("linear.linear_model._dense",), dense, model.dense.width)
    return graph.op("Add", total, _product(graph, dense, array(model.dense_weights())))


def _categorical(graph: GraphBuilder, model: LinearModel, table: Table, features: Mapping[str, str]) -> list[str]:
    layout = model.layout
    weights = _rows_of(table)
    single = table.dim == 1
    stored = graph.constant(weights.ravel() if single else weights, hint="linear")
    parts = []
    if layout.categorical:
        ids = features[layout.feature]
        rows = graph.op("Gather", stored, ids)
        if model.sparse_combiner != "sum" and layout.slots != len(layout.categorical):
            rows = graph.op("Unsqueeze", rows, graph.constant([2], np.int64)) if single else rows
            combiners = [model.sparse_combiner] * len(layout.categorical)
            rows = graph.op("MatMul", _combiner(graph, layout.categorical, combiners, layout.rows, ids), rows)
            single = False
        parts.append(graph.op("ReduceSum", rows, graph.constant([1], np.int64), keepdims=int(single)))
    for bag in layout.bags:
        rows = graph.op("Gather", stored, features[bag.feature])
        if table.dim == 1:
            rows = graph.op("Unsqueeze", rows, graph.constant([2], np.int64))
        parts.append(_pooled(graph, rows, _weights(graph, bag, features), model.sparse_combiner))
    return parts


def _weights(graph: GraphBuilder, bag: Bag, features: Mapping[str, str]) -> str:
    """Return the weight of each id in a column's lists, float32 ``[N, n]``. Ids that are padding have weight 0."""
    if bag.weights is not None:
        return features[bag.weights]
    missing = graph.op("Equal", features[bag.feature], graph.constant(bag.padding, np.int64))
    return graph.op("Cast", graph.op("Not", missing), to=FLOAT)


def _pooled(graph: GraphBuilder, rows: str, weights: str, combiner: Combiner) -> str:
    """Combine the vectors of each list, ``[N, n, dimension]``, by sum, mean or sqrtn, float32 ``[N, dimension]``."""
    if combiner != "sum":
        weights = graph.op("Relu", weights)
    axis = graph.constant([1], np.int64)
    weighted = graph.op("Mul", rows, graph.op("Unsqueeze", weights, graph.constant([2], np.int64)))
    total = graph.op("ReduceSum", weighted, axis, keepdims=0)
    if combiner == "sum":
        return total
    if combiner == "mean":
        divisor = graph.op("ReduceSum", weights, axis, keepdims=1)
    else:
        divisor = graph.op("Sqrt", graph.op("ReduceSum", graph.op("Mul", weights, weights), axis, keepdims=1))
    something = graph.op("Greater", divisor, graph.constant(0, np.float32))
    return graph.op("Div", total, graph.op("Where", something, divisor, graph.constant(1, np.float32)))


def _dnn(graph: GraphBuilder, dnn: Any, features: Mapping[str, str], recorder: LayerRecorder) -> str:
    layer: InputLayer = dnn.input_from_feature_columns.input_layer
    hidden = [getattr(dnn, f"hiddenlayer_{index}") for index in range(dnn.num_hidden)]
    value = _input_layer(graph, layer, features)
    scope = "dnn.input_from_feature_columns"
    recorder.record(graph, (scope, f"{scope}.input_layer"), value, layer.width)
    for index, dense in enumerate(hidden):
        width = dense.kernel.shape[1]
        value = _activation(graph, dnn.activation_fn, _dense(graph, dense, value), width)
        recorder.record(graph, (f"dnn.hiddenlayer_{index}",), value, width)
        if dnn.batch_norm:
            value = _batch_norm(graph, getattr(dnn, f"batchnorm_{index}"), value)
            recorder.record(graph, (f"dnn.batchnorm_{index}",), value, width)
    return _dense(graph, dnn.logits, value)


def _dense(graph: GraphBuilder, dense: Any, value: str) -> str:
    return _product(graph, value, array(dense.kernel), array(dense.bias))


def _product(graph: GraphBuilder, value: str, kernel: FloatArray, bias: FloatArray | None = None) -> str:
    """Add nodes that compute ``value @ kernel + bias`` with the same rounding as in torch."""
    constants = [kernel] if bias is None else [kernel, bias]
    if kernel.shape[1] > 1:
        # Use float32 for several columns. For these, onnxruntime and torch add the products in the same order.
        # Their results are then equal bit for bit.
        return graph.multi("Gemm", [value, *(graph.constant(c, hint="dense") for c in constants)], outputs=1)[0]
    # Use float64 for a single column, because onnxruntime and torch then add the products in different orders.
    # In float64, the order does not change the result that is rounded to float32.
    wide = [graph.op("Cast", value, to=DOUBLE), *(graph.constant(c, np.float64, hint="dense") for c in constants)]
    return graph.op("Cast", graph.multi("Gemm", wide, outputs=1)[0], to=FLOAT)


def _batch_norm(graph: GraphBuilder, norm: nn.BatchNorm1d, value: str) -> str:
    assert norm.running_mean is not None and norm.running_var is not None
    scale = array(norm.weight) / np.sqrt(array(norm.running_var) + np.float32(norm.eps))
    shift = array(norm.bias) - array(norm.running_mean) * scale
    scaled = graph.op("Mul", value, graph.constant(scale, hint="scale"))
    return graph.op("Add", scaled, graph.constant(shift, hint="shift"))


def _input_layer(graph: GraphBuilder, layer: InputLayer, features: Mapping[str, str]) -> str:
    """Return the output of an input layer: all feature columns side by side, by name, float32 ``[N, width]``."""
    layout = layer.layout
    by_source: dict[str, list[int]] = {}
    for part in sorted(layout.parts, key=lambda part: part.index):
        by_source.setdefault(part.source, []).extend(range(part.start, part.stop))
    pieces: list[str] = []
    rows: list[int] = []
    if layout.indicators:
        ids = features[layout.indicator_feature]
        pieces.append(_counts(graph, ids, layout.indicators, layout.indicator_width))
        rows += by_source[layout.indicator_feature]
    for bag in layout.indicator_bags:
        pieces.append(_bag_counts(graph, bag, features))
        rows += by_source[bag.feature]
    for table, placed in zip(layer.tables, layout.tables, strict=True):
        assert isinstance(table, Table)
        clip = None if placed.max_norm is None else functools.partial(_clipped, max_norm=placed.max_norm)
        weight = graph.constant(_rows_of(table), hint=f"embeddings_{placed.dimension}", change=clip)
        if placed.placed:
            pieces.append(_embeddings(graph, weight, placed, features[placed.feature]))
            rows += by_source[placed.feature]
        for bag, column in zip(placed.bags, placed.bag_columns, strict=True):
            vectors = graph.op("Gather", weight, features[bag.feature])
            pieces.append(_pooled(graph, vectors, _weights(graph, bag, features), column.combiner))
            rows += by_source[bag.feature]
    if layout.numeric:
        pieces.append(features[layout.numeric_feature])
        rows += by_source[layout.numeric_feature]
    # Keep the columns in the order of training, because the rounding of a sum depends on the order.
    # If raw numbers are as large as 1e5, different rounding is visible in the probabilities.
    in_order = sorted(range(len(rows)), key=rows.__getitem__)
    if in_order == list(range(len(rows))):
        return concat(graph, pieces)
    # Select rows of the transposed tensor: this copies N numbers at once, and a selection of columns single ones.
    columns = graph.op("Concat", *(_transposed(graph, piece) for piece in pieces), axis=0)
    return _transposed(graph, graph.op("Gather", columns, graph.constant(in_order, np.int64), axis=0))


def _clipped(rows: FloatArray, max_norm: float) -> FloatArray:
    return array(clip_norms(torch.from_numpy(rows), max_norm))


def _transposed(graph: GraphBuilder, tensor: str) -> str:
    return graph.op("Transpose", tensor, perm=[1, 0])


def _counts(graph: GraphBuilder, ids: str, placed: Sequence[PlacedIds], width: int) -> str:
    """Return how often each id occurs in each row, for indicator columns, float32 ``[N, width]``."""
    # In each turn, compare every position of the output with one of the ids that its column has in the row.
    # This takes a sixth of the time of OneHot and a sum. All tensors are [width, N], as in `_input_layer`.
    positions = graph.constant([[position] for position in range(width)], np.int64, hint="positions")
    by_slot = _transposed(graph, ids)
    most = max(item.column.slots for item in placed)
    total = ""
    for turn in range(most):
        slots = [item.start + min(turn, item.column.slots - 1) for item in placed for _ in range(item.rows)]
        hit = graph.op("Equal", graph.op("Gather", by_slot, graph.constant(slots, np.int64), axis=0), positions)
        if turn:
            # Skip columns whose ids have all been counted in earlier turns.
            open_ = [[turn < item.column.slots] for item in placed for _ in range(item.rows)]
            hit = graph.op("And", hit, graph.constant(open_, np.bool_))
        count = graph.op("Cast", hit, to=FLOAT)
        total = graph.op("Add", total, count) if total else count
    return _transposed(graph, total)


def _bag_counts(graph: GraphBuilder, bag: Bag, features: Mapping[str, str]) -> str:
    """Return the sum of each id's weights in each row, for an indicator column of lists, float32 ``[N, ids]``."""
    ids = features[bag.feature]
    batch = graph.op("Shape", ids, start=0, end=1)
    shape = graph.op("Concat", batch, graph.constant([bag.padding + 1], np.int64), axis=0)
    zeros = graph.op("Expand", graph.constant(0, np.float32), shape)
    counts = graph.op("ScatterElements", zeros, ids, _weights(graph, bag, features), axis=1, reduction="add")
    return select(graph, counts, list(range(bag.padding)), bag.padding + 1)


def _embeddings(graph: GraphBuilder, weight: str, layout: EmbeddingTableLayout, ids: str) -> str:
    """Look up and combine the vectors of the columns in one embedding table, float32 ``[N, columns * dimension]``.

    Columns with lists or weights are not included.
    """
    vectors = graph.op("Gather", weight, ids)
    if layout.slots != len(layout.columns):
        combiners = [column.combiner for column in layout.columns]
        vectors = graph.op("MatMul", _combiner(graph, layout.placed, combiners, layout.rows, ids), vectors)
    width = len(layout.columns) * layout.dimension
    return graph.op("Reshape", vectors, graph.constant([-1, width], np.int64))


def _combiner(
    graph: GraphBuilder, columns: Sequence[PlacedIds], combiners: Sequence[Combiner], rows: int, ids: str
) -> str:
    """Return the weight of each id in the combined vector of each column, float32 ``[N, columns, ids per row]``."""
    member = np.zeros((1, len(columns), columns[-1].stop), np.float32)
    power = np.zeros((1, len(columns), 1), np.float32)
    exponents = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}
    for index, (combiner, placed) in enumerate(zip(combiners, columns, strict=True)):
        member[0, index, placed.start : placed.stop] = 1
        power[0, index, 0] = exponents[combiner]
    padding = graph.constant(rows, np.int64)
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


def _rows_of(table: Table) -> FloatArray | StoredTable:
    """Return a table's rows and the row of a missing value."""
    return array(table.weight) if table.stored is None else cast(StoredTable, table.stored)


def array(tensor: torch.Tensor) -> FloatArray:
    """Return a tensor's values as a float32 numpy array."""
    values: FloatArray = tensor.detach().cpu().to(torch.float32).numpy()
    return values
