"""Rows of CSV in the graph: split, checked, defaults filled in, numbers parsed."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from torch_estimator.export.feeds import NUMBER_PATTERNS
from torch_estimator.export.graph import FLOAT, INT64, STRING, GraphBuilder
from torch_estimator.export.hash_chains import RawTensor, select
from torch_estimator.export.signatures import CsvField, CsvFormat, TensorInfo
from torch_estimator.serving_input import ServingInput

ROW = "csv_row"
FIELDS = "csv_fields"

_OUT_OF_RANGE = 1_000_000_000
_KINDS = {"string": "DT_STRING", "float32": "DT_FLOAT", "int64": "DT_INT64"}


def lower_csv(
    graph: GraphBuilder, receiver: ServingInput
) -> tuple[dict[str, TensorInfo], dict[str, RawTensor], CsvFormat]:
    """Emits the reading of rows; returns the signature's inputs, the raw columns and the format.

    A row with a wrong number of fields, with a quote, or with text for a number fails in onnxruntime. Rows
    that were split elsewhere come in by a second, optional input.
    """
    names = receiver.column_names
    info = TensorInfo(dtype="DT_STRING", shape=(-1,), tensor=ROW)
    row = graph.input(ROW, info)
    fields = graph.optional_input(FIELDS, np.empty((0, len(names)), dtype=object))
    given = graph.op("Greater", graph.op("Size", fields), graph.constant(0, np.int64))
    split = graph.branch(given, _as_given(fields, len(names)), _split(graph, row, len(names)))
    raw: dict[str, RawTensor] = {}
    texts: dict[str, str | None] = {
        key: str(receiver.defaults[key]) if key in receiver.defaults else None for key in receiver.inputs
    }
    for dtype in ("string", "float32", "int64"):
        keys = [key for key, feature in receiver.inputs.items() if feature.dtype == dtype]
        if not keys:
            continue
        values = select(graph, split, [names.index(key) for key in keys], len(names))
        values = _filled(graph, values, [texts[key] or "" for key in keys])
        if dtype != "string":
            values = _numbers(graph, values, dtype)
        for index, key in enumerate(keys):
            raw[key] = RawTensor(tensor=select(graph, values, [index], len(keys)), dtype=dtype)
    csv = CsvFormat(
        tensor=ROW,
        fields_tensor=FIELDS,
        column_names=names,
        fields={
            key: CsvField(dtype=_KINDS[feature.dtype], default=texts[key]) for key, feature in receiver.inputs.items()
        },
    )
    return {ROW: info}, raw, csv


def _filled(graph: GraphBuilder, values: str, defaults: list[str]) -> str:
    if not any(defaults):
        return values
    empty = graph.op("Equal", values, graph.constant(np.array("", dtype=object)))
    return graph.op("Where", empty, graph.constant(np.array([defaults], dtype=object)), values)


def _numbers(graph: GraphBuilder, values: str, dtype: str) -> str:
    good = graph.op("RegexFullMatch", values, pattern=NUMBER_PATTERNS[_KINDS[dtype]])
    # Cast raises on an empty string, which is what bad text becomes.
    checked = graph.op("Where", good, values, graph.constant(np.array("", dtype=object)))
    return graph.op("Cast", checked, to=INT64 if dtype == "int64" else FLOAT)


def _as_given(fields: str, width: int) -> onnx.GraphProto:
    node = helper.make_node("Identity", [fields], ["given_fields"])
    output = helper.make_tensor_value_info("given_fields", STRING, ["rows", width])
    return helper.make_graph([node], "fields_given", [], [output])


def _split(graph: GraphBuilder, row: str, width: int) -> onnx.GraphProto:
    """Splits at commas; a gather outside of the fields is how ONNX can be made to fail."""
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
