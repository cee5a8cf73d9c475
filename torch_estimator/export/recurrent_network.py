"""Export of recurrent models to ONNX: sequence columns, the operators LSTM, GRU and RNN, and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torch_estimator.export.graph import FLOAT, GraphBuilder
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.layouts import SEQUENCE_LENGTHS, SEQUENCE_NUMERIC
from torch_estimator.feature_column.sequence_features import SequenceFeatures
from torch_estimator.feature_column.table import Table, clip_norms
from torch_estimator.recurrent_network import RecurrentLayer, RecurrentNetwork

# ONNX's operator, and ONNX's order of Keras's gates.
_OPERATORS = {"simple_rnn": ("RNN", [0]), "lstm": ("LSTM", [0, 3, 1, 2]), "gru": ("GRU", [0, 1, 2])}


def lower_outputs(
    graph: GraphBuilder, network: RecurrentNetwork, features: Mapping[str, str], context: str | None
) -> tuple[str, str | None]:
    """Add the nodes of a network up to the inputs of its last layer.

    `features` holds the tensors of the sequence columns, `context` the output of the context columns, float32 ``[N,
    width]``. Return the outputs of the recurrent layers, float32 ``[N, units]``, and None; or ``[N, T, units]``, and
    the mask of the steps, bool ``[N, T]``, if there are logits for each step.
    """
    steps, width = _steps(graph, network.sequence_features, features), network.sequence_features.width
    if context is not None and network.dense_features is not None:
        more = network.dense_features.width
        sizes = graph.op("Shape", steps, start=0, end=2)
        shape = graph.op("Concat", sizes, graph.constant([more], np.int64), axis=0)
        repeated = graph.op("Expand", graph.op("Unsqueeze", context, graph.constant([1], np.int64)), shape)
        steps, width = graph.op("Concat", steps, repeated, axis=2), width + more
    lengths = graph.op("Unsqueeze", features[SEQUENCE_LENGTHS], graph.constant([1], np.int64))
    for layer in network.recurrent_layers():
        if isinstance(layer, RecurrentLayer):
            steps = _recurrent(graph, layer, steps)
        else:
            steps = _traced(graph, layer, steps, width)
    last = graph.op("Max", graph.op("Sub", lengths, graph.constant(1, np.int64)), graph.constant(0, np.int64))
    mask = None
    if network.return_sequences:
        count = graph.op("Squeeze", graph.op("Shape", steps, start=1, end=2), graph.constant([0], np.int64))
        places = graph.op("Range", graph.constant(0, np.int64), count, graph.constant(1, np.int64))
        mask = graph.op("Less", places, lengths)
        last = graph.op("Min", places, last)
    # Select the output of one step for each row and place, by indices that are repeated for each unit.
    axis = graph.constant([2], np.int64)
    units = graph.op("Shape", steps, start=2, end=3)
    shape = graph.op("Concat", graph.op("Shape", last), units, axis=0)
    at = graph.op("Expand", graph.op("Unsqueeze", last, axis), shape)
    outputs = graph.op("GatherElements", steps, at, axis=1)
    exists = graph.op("Unsqueeze", graph.op("Greater", lengths, graph.constant(0, np.int64)), axis)
    outputs = graph.op("Where", exists, outputs, graph.constant(0, np.float32))
    return (outputs, mask) if mask is not None else (graph.op("Squeeze", outputs, graph.constant([1], np.int64)), None)


def _steps(graph: GraphBuilder, layer: SequenceFeatures, features: Mapping[str, str]) -> str:
    """Return the output of `SequenceFeatures` for all steps, float32 ``[N, T, width]``."""
    made: dict[str, str] = {}
    for bag in layer.layout.indicator_bags:
        ids = graph.op("Unsqueeze", features[bag.feature], graph.constant([2], np.int64))
        positions = graph.constant(np.arange(bag.padding), hint="positions")
        made[bag.name] = graph.op("Cast", graph.op("Equal", ids, positions), to=FLOAT)
    for table, layout in zip(layer.tables, layer.layout.tables, strict=True):
        assert isinstance(table, Table)
        stored = table.weight if layout.max_norm is None else clip_norms(table.weight, layout.max_norm)
        weight = graph.constant(stored.detach().cpu().float().numpy(), hint=f"embeddings_{layout.dimension}")
        made.update((bag.name, graph.op("Gather", weight, features[bag.feature])) for bag in layout.bags)
    for placed in layer.layout.numeric:
        positions = graph.constant(np.arange(placed.start, placed.stop))
        made[placed.name] = graph.op("Gather", features[SEQUENCE_NUMERIC], positions, axis=2)
    parts = [made[part.name] for part in layer.layout.parts]
    return graph.op("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]


def _recurrent(graph: GraphBuilder, layer: RecurrentLayer, steps: str) -> str:
    """Return the outputs of a recurrent layer, float32 ``[N, T, units]``."""
    operator, order = _OPERATORS[layer.kind]

    def gates(kernel: torch.Tensor) -> torch.Tensor:
        """Return a kernel ``[..., gates * units]`` with its gates in ONNX's order."""
        parts = kernel.detach().cpu().float().chunk(len(order), -1)
        return torch.cat([parts[place] for place in order], -1)

    biases = gates(layer.bias).reshape(-1)
    if layer.kind != "gru":
        biases = torch.cat([biases, torch.zeros_like(biases)])
    constants = [
        graph.constant(value.unsqueeze(0).contiguous().numpy(), hint=layer.kind)
        for value in (gates(layer.kernel).T, gates(layer.recurrent_kernel).T, biases)
    ]
    by_step = graph.op("Transpose", steps, perm=[1, 0, 2])
    reset: dict[str, Any] = {"linear_before_reset": 1} if layer.kind == "gru" else {}
    outputs = graph.op(operator, by_step, *constants, hidden_size=layer.units, **reset)
    return graph.op("Transpose", graph.op("Squeeze", outputs, graph.constant([1], np.int64)), perm=[1, 0, 2])


def _traced(graph: GraphBuilder, layer: torch.nn.Module, steps: str, width: int) -> str:
    """Return the outputs of a layer of the user's, float32 ``[N, T, units]``, by torch's exporter."""

    def run(values: torch.Tensor) -> torch.Tensor:
        outputs = layer(values)
        first: torch.Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return first

    training = layer.training
    layer.eval()
    try:
        inputs = [Inlined(tensor=steps, row_shape=(-1, width), dtype="float32")]
        return inline(graph, run, inputs, what=f"the layer {type(layer).__name__}", module=layer)[0]
    finally:
        layer.train(training)
