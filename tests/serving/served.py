"""A small export with inputs of all types, and a server of it in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from torch_estimator.export.graph import element_type
from torch_estimator.export.signatures import MODEL_FILE, PREDICT, SIGNATURES_FILE, Manifest, Signature, TensorInfo

ROOT = Path(__file__).resolve().parents[2]

INPUTS = {
    "text": TensorInfo(dtype="DT_STRING", shape=(-1,), tensor="text"),
    "number": TensorInfo(dtype="DT_FLOAT", shape=(-1,), tensor="number"),
    "precise": TensorInfo(dtype="DT_DOUBLE", shape=(-1, 1), tensor="precise"),
    "small": TensorInfo(dtype="DT_INT32", shape=(-1,), tensor="small"),
    "large": TensorInfo(dtype="DT_INT64", shape=(-1,), tensor="large"),
    "flag": TensorInfo(dtype="DT_BOOL", shape=(-1,), tensor="flag"),
    "pair": TensorInfo(dtype="DT_FLOAT", shape=(-1, 2), tensor="pair"),
    "tags": TensorInfo(dtype="DT_STRING", shape=(-1, -1), tensor="tags", default="none"),
    "ids": TensorInfo(dtype="DT_INT64", shape=(-1, -1), tensor="ids", default=[7]),
    "bonus": TensorInfo(dtype="DT_FLOAT", shape=(-1,), tensor="bonus", default=0.5),
}
"""Inputs of `write_export`; the last three may be left out."""


ROWS: dict[str, Any] = {
    "text": ["a", "", "héllo 日本 😀"],
    "number": [0.1, -2.5, 3e8],
    "precise": [0.1, 1 / 3, -1e300],
    "small": [1, -(2**31), 2**31 - 1],
    "large": [1, -(2**63), 2**63 - 1],
    "flag": [True, False, True],
    "pair": [[1.0, 2.0], [3.0, 4.0], [5.0, 0.1]],
    "tags": [["x", "y"], ["z", "u"], ["", "v"]],
    "ids": [[1], [2], [3]],
    "bonus": [1.0, 2.0, 3.0],
}
"""Instances by input; `write_export`'s outputs are the same."""

DATATYPES = {
    "text": "BYTES",
    "number": "FP32",
    "precise": "FP64",
    "small": "INT32",
    "large": "INT64",
    "flag": "BOOL",
    "pair": "FP32",
    "tags": "BYTES",
    "ids": "INT64",
    "bonus": "FP32",
    "scaled": "FP32",
}

_KINDS = {"BYTES": object, "FP32": np.float32, "FP64": np.float64, "INT32": np.int32, "INT64": np.int64, "BOOL": bool}


def write_export(directory: Path, factor: float = 1.0) -> None:
    """Write an export whose outputs are its inputs, and ``scaled``, which is ``number * factor``.

    It has the signature ``serving_default`` with all outputs, and ``short`` with ``text`` only.
    """
    nodes = [helper.make_node("Identity", [name], [f"same_{name}"]) for name in INPUTS]
    nodes.append(helper.make_node("Mul", ["number", "factor"], ["scaled"]))
    outputs = {
        name: TensorInfo(dtype=info.dtype, shape=info.shape, tensor=f"same_{name}") for name, info in INPUTS.items()
    }
    outputs["scaled"] = TensorInfo(dtype="DT_FLOAT", shape=(-1,), tensor="scaled")

    def value(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
        shape = [None if size < 0 else size for size in info.shape]
        return helper.make_tensor_value_info(name, element_type(info), shape)

    graph = helper.make_graph(
        nodes,
        "same",
        [value(info.tensor, info) for info in INPUTS.values()],
        [value(info.tensor, info) for info in outputs.values()],
        [helper.make_tensor("factor", onnx.TensorProto.FLOAT, [], [factor])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    signatures = {
        "serving_default": Signature(method_name=PREDICT, inputs=INPUTS, outputs=outputs),
        "short": Signature(method_name=PREDICT, inputs=INPUTS, outputs={"text": outputs["text"]}),
    }
    manifest = Manifest(signatures=signatures, receiver="raw_features", producer="tests", version="1")
    directory.mkdir(parents=True)
    (directory / MODEL_FILE).write_bytes(model.SerializeToString())
    (directory / SIGNATURES_FILE).write_text(manifest.to_json())


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        process: Its process.
        rest: Address of REST, as ``127.0.0.1:8501``.
        grpc: Address of gRPC.
    """

    process: subprocess.Popen[str]
    rest: str
    grpc: str

    @property
    def peak_bytes(self) -> int:
        """Most memory that the process has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def command(model: Path, *arguments: str) -> list[str]:
    """The command that serves a model as ``same``."""
    return [
        *(sys.executable, "-m", "torch_estimator.cli", "serve", "--model", f"same={model}", "--versions", "all"),
        *("--port", "0", *arguments),
    ]


@contextmanager
def serving(model: Path, *arguments: str) -> Iterator[Server]:
    """Serve a model as ``same``, over REST and gRPC, until the block ends."""
    port = () if "--tf-serving-grpc-port" in arguments else ("--grpc-port", "0")
    process = subprocess.Popen(
        command(model, *port, *arguments), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"at https?://(\S+) and gRPC at (\S+) ", line)
        assert match is not None, line
        yield Server(process, match[1], match[2])
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def serving_two_versions(directory: Path, *arguments: str) -> Iterator[Server]:
    """Serve two versions, with requests of 1 MiB at most."""
    write_export(directory / "1", factor=10)
    write_export(directory / "2", factor=100)
    with serving(directory, "--max-body-mb", "1", *arguments) as running:
        yield running


def environment() -> dict[str, str]:
    """The environment of a server."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def array(name: str, values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, _KINDS[DATATYPES[name]])


def inputs(module: Any, rows: dict[str, Any], **settings: Any) -> list[Any]:
    """The inputs as a client of Triton takes them, of the module ``tritonclient.http`` or ``tritonclient.grpc``."""
    made = []
    for name, values in rows.items():
        data = array(name, values)
        made.append(module.InferInput(name, list(data.shape), DATATYPES[name]).set_data_from_numpy(data, **settings))
    return made


def assert_same(result: Any, rows: dict[str, Any], factor: float) -> None:
    """Check that the outputs are the inputs."""
    for name, values in rows.items():
        wanted = array(name, values)
        got = result.as_numpy(name)
        if DATATYPES[name] == "BYTES":
            got = np.array([one.decode() if isinstance(one, bytes) else one for one in got.flat], object)
            assert got.tolist() == wanted.ravel().tolist()
        else:
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)
    np.testing.assert_array_equal(result.as_numpy("scaled"), array("number", rows["number"]) * np.float32(factor))
