"""An export whose outputs are its inputs, with an input of each kind and names that would break careless HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from torch_estimator.export.graph import element_type
from torch_estimator.export.signatures import MODEL_FILE, PREDICT, SIGNATURES_FILE, Manifest, Signature, TensorInfo
from torch_estimator.export.warmup import ASSETS_EXTRA, WARMUP_FILE

HOSTILE = """<script>window.hacked=1</script>"'><img src=x onerror=window.hacked=1>&lt;"""
"""Text that runs a script on a page that does not escape it."""

_SHAPES: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "text": ("DT_STRING", (-1,), None),
    HOSTILE: ("DT_STRING", (-1, 1), HOSTILE),
    "number": ("DT_FLOAT", (-1,), None),
    "count": ("DT_INT64", (-1,), 7),
    "flag": ("DT_BOOL", (-1,), None),
    "pair": ("DT_FLOAT", (-1, 2), None),
    "tags": ("DT_STRING", (-1, -1), "none"),
}

INPUTS = {
    name: TensorInfo(dtype=dtype, shape=shape, tensor=f"in{place}", default=default)
    for place, (name, (dtype, shape, default)) in enumerate(_SHAPES.items())
}

INSTANCE: dict[str, Any] = {
    "text": HOSTILE,
    HOSTILE: "x",
    "number": 2.5,
    "count": 9007199254740993,
    "flag": True,
    "pair": [1.0, 0.1],
    "tags": ["a", HOSTILE],
}
"""The first recorded instance."""


def write_echo(directory: Path) -> Path:
    """Write the export; return its directory."""
    outputs = {
        name: TensorInfo(dtype=info.dtype, shape=info.shape, tensor=f"out-{info.tensor}")
        for name, info in INPUTS.items()
    }

    def value(info: TensorInfo) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            info.tensor,
            element_type(info),
            [None if size < 0 else size for size in info.shape],
        )

    graph = helper.make_graph(
        [helper.make_node("Identity", [INPUTS[name].tensor], [outputs[name].tensor]) for name in INPUTS],
        "echo",
        [value(info) for info in INPUTS.values()],
        [value(info) for info in outputs.values()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    signatures = {
        "predict": Signature(method_name=PREDICT, inputs=INPUTS, outputs=outputs),
        HOSTILE: Signature(method_name=PREDICT, inputs=INPUTS, outputs={"classes": outputs["text"]}),
    }
    manifest = Manifest(signatures=signatures, receiver="raw_features", producer="tests", version="1", global_step=12)
    (directory / ASSETS_EXTRA).mkdir(parents=True)
    (directory / MODEL_FILE).write_bytes(model.SerializeToString())
    lines = [
        {"signature_name": "predict", "instance": instance, "predictions": {}}
        for instance in (INSTANCE, {**INSTANCE, "text": "the second"})
    ]
    (directory / ASSETS_EXTRA / WARMUP_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Last, since an export is complete once it has this file.
    (directory / SIGNATURES_FILE).write_text(manifest.to_json())
    return directory
