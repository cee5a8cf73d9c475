"""Exports of one ONNX operator that answer row by row, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.signatures import MODEL_FILE, PREDICT, SIGNATURES_FILE, Manifest, Signature, TensorInfo

NOT_BY_ROW: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "one row for all": ("ReduceSum", ["x", "first"], {"keepdims": 1}),
    "a row is dropped": ("Slice", ["x", "one", "many", "first"], {}),
    "rows twice": ("Concat", ["x", "x"], {"axis": 0}),
    "no rows": ("ReduceSum", ["x", "first"], {"keepdims": 0}),
}
BY_ROW: tuple[str, list[str], dict[str, Any]] = ("Identity", ["x"], {})
"""Operator, inputs and attributes. The result is called ``y``."""


def write_graph(
    directory: Path, node: tuple[str, list[str], dict[str, Any]], *, with_text: bool = False
) -> ExportedModel:
    """Write an export from ``x`` to ``y``, and from ``s`` to ``t``, strings that are passed on, if asked for."""
    kind, given, settings = node
    nodes = [helper.make_node(kind, given, ["y"], **settings)]
    inputs, outputs = [("x", "DT_FLOAT", TensorProto.FLOAT)], [("y", "DT_FLOAT", TensorProto.FLOAT)]
    if with_text:
        nodes.append(helper.make_node("Identity", ["s"], ["t"]))
        inputs.append(("s", "DT_STRING", TensorProto.STRING))
        outputs.append(("t", "DT_STRING", TensorProto.STRING))
    numbers = {"first": 0, "one": 1, "many": 99}
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info(name, kind, [None]) for name, _, kind in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, _, kind in outputs],
        [numpy_helper.from_array(np.array([value]), name) for name, value in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    described = [
        {name: TensorInfo(dtype=dtype, shape=(-1,), tensor=name) for name, dtype, _ in tensors}
        for tensors in (inputs, outputs)
    ]
    signatures = {"predict": Signature(method_name=PREDICT, inputs=described[0], outputs=described[1])}
    manifest = Manifest(signatures=signatures, receiver="raw_features", producer="tests", version="1", global_step=1)
    (directory / MODEL_FILE).write_bytes(model.SerializeToString())
    (directory / SIGNATURES_FILE).write_text(manifest.to_json())
    return ExportedModel.load(directory)
