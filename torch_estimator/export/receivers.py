"""Export of serving inputs: ONNX nodes that convert the values a caller sends to raw columns, ``[N, width]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper

from torch_estimator.data.operations.batching import LENGTH_SUFFIX
from torch_estimator.errors import ExportError
from torch_estimator.export.dtypes import BY_COLUMN
from torch_estimator.export.graph import FLOAT, INT64, STRING, GraphBuilder
from torch_estimator.export.hash_chains import select
from torch_estimator.export.signatures import CsvField, CsvFormat, ExampleField, ExampleFormat, TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.lowering import RawTensor
from torch_estimator.feature_column.raw_feature import LISTS, MISSING_INTEGER, RawDtype, RawFeature
from torch_estimator.serving_input import ServingInput, transform_outputs
from torch_estimator.strings import Expression
from torch_estimator.strings.expression import add_to_graph, origin_of_lists
from torch_estimator.strings.operations import ToNumber
from torch_estimator.tfrecord.features import FixedLenFeature, VarLenFeature

_EXAMPLES = "examples"
_CSV_FIELDS = "csv_fields"
_OUT_OF_RANGE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Inputs of the ONNX graph (`given`), and the raw columns that the graph computes from them, both ``[N, width]``.

    `raw` has all columns that the model may read, and `shapes` the shape of a row of each. `inputs` are those of a
    signature. `csv` and `examples` are the format of such an input, otherwise None.
    """

    given: dict[str, RawTensor]
    raw: dict[str, RawTensor]
    shapes: dict[str, tuple[int, ...]]
    inputs: dict[str, TensorInfo]
    csv: CsvFormat | None = None
    examples: ExampleFormat | None = None


def lower_receiver(graph: GraphBuilder, receiver: ServingInput, *, for_columns: bool) -> Received:
    """Add a serving input to the graph: declare the inputs, parse their values, and apply the user's transforms.

    If feature columns read the raw columns (`for_columns`), -1 marks a missing value in a list.
    """
    csv = examples = None
    if receiver.kind == "csv":
        inputs, given, csv = _lower_csv(graph, receiver)
    else:
        inputs, given = _lower_inputs(graph, receiver)
    if receiver.kind == "examples":
        fields = {
            name: ExampleField(
                dtype=feature.dtype,
                shape=None if isinstance(feature, VarLenFeature) else receiver.inputs[name].shape,
                default=feature.default_value if isinstance(feature, FixedLenFeature) else None,
                exact_lengths=name in receiver.variable or None,
            )
            for name, feature in receiver.feature_spec.items()
        }
        # The graph takes parsed features. `ExportedModel` parses what a caller sends, before it runs the graph.
        inputs = {_EXAMPLES: TensorInfo(dtype="DT_STRING", shape=(-1,), tensor=_EXAMPLES)}
        examples = ExampleFormat(tensor=_EXAMPLES, fields=fields)
    raw = _transformed(graph, receiver, given)
    shapes = {key: receiver.inputs[key].shape if key in given else (one.width,) for key, one in raw.items()}
    if receiver.features:
        raw, shapes = _computed(graph, receiver, raw, shapes, for_columns=for_columns)
    return Received(given=given, raw=raw, shapes=shapes, inputs=inputs, csv=csv, examples=examples)


def _lower_inputs(graph: GraphBuilder, receiver: ServingInput) -> tuple[dict[str, TensorInfo], dict[str, RawTensor]]:
    """Declare the inputs of the receiver in the graph. Return the inputs of a signature, and the raw columns."""
    inputs = {}
    given = {}
    for name, feature in receiver.inputs.items():
        bare = receiver.kind == "json" and feature.shape == (1,)
        info = TensorInfo(
            dtype=BY_COLUMN[feature.dtype].name,
            shape=(-1,) if bare else (-1, *feature.shape),
            tensor=name,
            default=_default_of(name, receiver),
            exact_lengths=name in receiver.variable or None,
        )
        inputs[name] = info
        tensor = graph.input(name, info)
        if bare:
            tensor = graph.op("Unsqueeze", tensor, graph.constant([1], np.int64))
        width = math.prod(feature.shape)
        if len(feature.shape) > 1 and -1 not in feature.shape:
            tensor = graph.op("Reshape", tensor, graph.constant([-1, width], np.int64))
        given[name] = RawTensor(tensor=tensor, dtype=feature.dtype, width=width)
    return inputs, given


def _default_of(name: str, receiver: ServingInput) -> Any:
    """Return the default of an input; without one of its own, what stands for a missing string, id or list of them."""
    feature = receiver.inputs[name]
    missing = "" if feature.dtype == "string" else feature.missing
    if name in receiver.defaults or name in receiver.variable or missing is None:
        return receiver.defaults.get(name)
    if -1 in feature.shape:
        return [] if feature.multivalent else None
    return missing if feature.shape == (1,) else [missing] * math.prod(feature.shape)


def check_raw(raw: Mapping[str, RawTensor], needed: Mapping[str, RawFeature]) -> None:
    """Raise an ExportError unless the serving input has all raw columns that the model reads, with type and width."""
    for key, feature in needed.items():
        given = raw.get(key)
        if given is None:
            raise ExportError(
                f"the model reads {key!r}, but the serving input has only {sorted(raw)}; "
                "make it from all of the model's columns."
            )
        if (given.dtype, given.width) != (feature.dtype, math.prod(feature.shape)):
            raise ExportError(
                f"the model reads {key!r} as {_amount(math.prod(feature.shape))} {feature.dtype} per row, "
                f"but the serving input has {_amount(given.width)} {given.dtype}"
                f"{'; convert it with te.strings.to_number' if feature.dtype == 'float32' else ''}."
            )


def _amount(width: int) -> str:
    return "a list of" if width == -1 else f"a list of vectors of {-width}" if width < 0 else str(width)


def _transformed(graph: GraphBuilder, receiver: ServingInput, raw: dict[str, RawTensor]) -> dict[str, RawTensor]:
    """Return the raw columns, plus the features that the user's transform (if there is one) computes from them."""
    transform: Any = receiver.transform
    if transform is None:
        return raw
    names = [str(name) for name in transform.input_names]
    shapes = transform_outputs(transform, names)
    inputs = []
    for name in names:
        tensor = raw[name].tensor if raw[name].dtype == "float32" else graph.op("Cast", raw[name].tensor, to=FLOAT)
        inputs.append(Inlined(tensor=tensor, row_shape=(1,), dtype="float32"))

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = transform(dict(zip(names, tensors, strict=True)))
        return tuple(features[key].reshape(-1, math.prod(shape)).float() for key, shape in shapes.items())

    training = transform.training
    transform.eval()
    try:
        tensors = inline(graph, call, inputs, what=f"the transform {type(transform).__name__}")
    finally:
        transform.train(training)
    made = {
        key: RawTensor(tensor=tensor, dtype="float32", width=math.prod(shape))
        for (key, shape), tensor in zip(shapes.items(), tensors, strict=True)
    }
    return {**raw, **made}


def _computed(
    graph: GraphBuilder,
    receiver: ServingInput,
    raw: Mapping[str, RawTensor],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    for_columns: bool,
) -> tuple[dict[str, RawTensor], dict[str, tuple[int, ...]]]:
    """Return the features that the expressions of a receiver compute from raw columns, and the shapes of their rows.

    For a module without columns, the lengths of lists are among them, as `Dataset.padded_batch` adds them.
    """
    padding = {"string": "", "int64": np.int64(MISSING_INTEGER if for_columns else 0), "float32": np.float32(0)}
    tensors: dict[Expression, str] = {}
    for feature in receiver.features.values():
        tensors |= {one: raw[one.name].tensor for one in feature.inputs}
    found: dict[str, RawTensor] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for key, feature in receiver.features.items():
        tensor = add_to_graph(feature, graph, tensors)
        sizes[key] = shapes[feature.name] if feature.operation is None else feature.shape
        lists = origin_of_lists(feature)
        if sizes[key] == LISTS and lists.dtype != "float32":
            is_padding = graph.op(
                "Equal", tensors[lists], graph.constant("" if lists.dtype == "string" else np.int64(-1))
            )
            if feature is not lists:
                tensor = graph.op("Where", is_padding, graph.constant(padding[feature.dtype]), tensor)
            length = key + LENGTH_SUFFIX
            if not for_columns and length not in receiver.features:
                present = graph.op("Cast", graph.op("Not", is_padding), to=INT64)
                count = graph.op("ReduceSum", present, graph.constant([1], np.int64), keepdims=1)
                found[length], sizes[length] = RawTensor(tensor=count, dtype="int64"), (1,)
        found[key] = RawTensor(tensor=tensor, dtype=feature.dtype, width=math.prod(sizes[key]))
    return found, sizes


def _lower_csv(
    graph: GraphBuilder, receiver: ServingInput
) -> tuple[dict[str, TensorInfo], dict[str, RawTensor], CsvFormat]:
    """Add a CSV input to the graph. Return the inputs of the signature, the raw columns and the CSV format.

    The graph splits rows at commas and does not handle quotes. A row with a wrong number of fields, with a quote, or
    with text in place of a number makes onnxruntime fail. A caller may split the rows itself and pass the fields in a
    second, optional input, as `ExportedModel` does for rows with quotes.
    """
    names = receiver.column_names
    info = TensorInfo(dtype="DT_STRING", shape=(-1,), tensor=receiver.input_name)
    row = graph.input(receiver.input_name, info)
    fields = graph.optional_input(_CSV_FIELDS, np.empty((0, len(names)), dtype=object))
    given = graph.op("Greater", graph.op("Size", fields), graph.constant(0, np.int64))
    split = graph.branch(given, _given_fields(fields, len(names)), _split_rows(graph, row, len(names)))
    raw: dict[str, RawTensor] = {}
    texts: dict[str, str | None] = {
        key: str(receiver.defaults[key]) if key in receiver.defaults else None for key in receiver.inputs
    }
    dtypes: tuple[RawDtype, ...] = ("string", "float32", "int64")
    for dtype in dtypes:
        keys = [key for key, feature in receiver.inputs.items() if feature.dtype == dtype]
        if not keys:
            continue
        values = select(graph, split, [names.index(key) for key in keys], len(names))
        values = _fill_empty(graph, values, [texts[key] or "" for key in keys])
        if dtype != "string":
            values = ToNumber(dtype).lower(graph, values)
        for index, key in enumerate(keys):
            raw[key] = RawTensor(tensor=select(graph, values, [index], len(keys)), dtype=dtype)
    csv = CsvFormat(
        tensor=receiver.input_name,
        fields_tensor=_CSV_FIELDS,
        column_names=names,
        fields={
            key: CsvField(dtype=BY_COLUMN[feature.dtype].name, default=texts[key])
            for key, feature in receiver.inputs.items()
        },
    )
    return {receiver.input_name: info}, raw, csv


def _fill_empty(graph: GraphBuilder, values: str, defaults: list[str]) -> str:
    """Add nodes that replace empty CSV fields by the defaults of their columns."""
    if not any(defaults):
        return values
    empty = graph.op("Equal", values, graph.constant(np.array("", dtype=object)))
    return graph.op("Where", empty, graph.constant(np.array([defaults], dtype=object)), values)


def _given_fields(fields: str, width: int) -> onnx.GraphProto:
    """Return the branch of the graph's ``If`` node that reads CSV fields already split by the caller."""
    node = helper.make_node("Identity", [fields], ["given_fields"])
    output = helper.make_tensor_value_info("given_fields", STRING, ["rows", width])
    return helper.make_graph([node], "fields_given", [], [output])


def _split_rows(graph: GraphBuilder, row: str, width: int) -> onnx.GraphProto:
    """Return the branch of the graph's ``If`` node that splits CSV rows at commas.

    ONNX has no operator that raises an error. If a row cannot be split, the branch gathers fields that do not exist.
    The error shows the name of that node, which describes the problem.
    """
    count = graph.constant(width, np.int64)
    columns = graph.constant(list(range(width)), np.int64)
    outside = graph.constant(_OUT_OF_RANGE, np.int64)
    nodes = [
        helper.make_node("StringSplit", [row], ["split", "split_count"], delimiter=","),
        helper.make_node("RegexFullMatch", [row], ["unquoted"], pattern='[^"]*'),
        helper.make_node("Equal", ["split_count", count], ["complete"]),
        helper.make_node("And", ["unquoted", "complete"], ["good"]),
        helper.make_node("Cast", ["good"], ["good_number"], to=INT64),
        helper.make_node("ReduceMin", ["good_number"], ["all_good_number"], keepdims=0),
        helper.make_node("Cast", ["all_good_number"], ["all_good"], to=onnx.TensorProto.BOOL),
        helper.make_node("Where", ["all_good", columns, outside], ["picked"]),
        helper.make_node(
            "Gather",
            ["split", "picked"],
            ["split_fields"],
            axis=1,
            name=f"every_csv_row_must_have_{width}_fields_and_no_quotes",
        ),
    ]
    output = helper.make_tensor_value_info("split_fields", STRING, ["rows", width])
    return helper.make_graph(nodes, "fields_split", [], [output])
