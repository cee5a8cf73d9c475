"""Small exports to serve, and what runs a server of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
from onnx import helper

from torch_estimator.export.graph import element_type
from torch_estimator.export.signatures import (
    CLASSIFY,
    MODEL_FILE,
    PREDICT,
    REGRESS,
    SIGNATURES_FILE,
    Manifest,
    Signature,
    TensorInfo,
)
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy
from torch_estimator.serving.service import PredictionService

ROOT = Path(__file__).resolve().parents[2]

MANY_SECS = 60.0


def _info(dtype: str, tensor: str, *sizes: int, default: Any = None) -> TensorInfo:
    return TensorInfo(dtype=dtype, shape=(-1, *sizes), tensor=tensor, default=default)


INPUTS = {
    "x": _info("DT_FLOAT", "x"),
    "word": _info("DT_STRING", "word", default="none"),
    "count": _info("DT_INT64", "count", default=0),
    "flag": _info("DT_BOOL", "flag", default=False),
    "pair": _info("DT_FLOAT", "pair", 2, default=[0.0, 0.0]),
    "tags": _info("DT_STRING", "tags", -1, default=[""]),
}
OUTPUTS = {
    "scaled": _info("DT_FLOAT", "scaled"),
    "word": _info("DT_STRING", "same_word"),
    "word_bytes": _info("DT_STRING", "same_word"),
    "count": _info("DT_INT64", "same_count"),
    "flag": _info("DT_BOOL", "same_flag"),
    "pair": _info("DT_FLOAT", "same_pair", 2),
    "tags": _info("DT_STRING", "same_tags", -1),
}


def write_export(directory: Path, factor: float = 1.0, *, is_slow: bool = False) -> Path:
    """Write an export whose outputs are its inputs, and ``scaled``, which is ``x * factor``.

    Its signatures are ``serving_default`` with all outputs, ``one`` with ``scaled`` only, ``bare`` with the input ``x``
    only, ``classify`` and ``regress``, and, if asked for, ``slow``, which turns a loop ``turns`` times.
    """
    nodes = [helper.make_node("Identity", [name], [f"same_{name}"]) for name in INPUTS if name != "x"]
    nodes += [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "one"], ["scores_one"]),
        helper.make_node("Concat", ["scores_one", "scores_one"], ["scores"], axis=1),
        helper.make_node("Unsqueeze", ["word", "one"], ["classes_one"]),
        helper.make_node("Concat", ["classes_one", "classes_one"], ["classes"], axis=1),
        helper.make_node("ReduceMax", ["turns"], ["trips"], keepdims=0),
        helper.make_node("Loop", ["trips", "", "turns"], ["turned"], body=_loop_body()),
    ]
    turns, scores, classes = (
        _info("DT_INT64", "turns"),
        _info("DT_FLOAT", "scores", 2),
        _info("DT_STRING", "classes", 2),
    )
    turned = _info("DT_INT64", "turned")
    inputs = [_value(info) for info in (*INPUTS.values(), turns)]
    outputs = {info.tensor: info for info in (*OUTPUTS.values(), scores, classes, turned)}
    # onnxruntime wants a value for each input, also for those that a signature does not have.
    sizes = {info.tensor: [1, *(max(size, 1) for size in info.shape[1:])] for info in (*INPUTS.values(), turns)}
    zeros = {"DT_STRING": b"", "DT_FLOAT": 0.0, "DT_INT64": 0, "DT_BOOL": False}
    constants = [
        *(
            helper.make_tensor(
                info.tensor,
                element_type(info),
                sizes[info.tensor],
                [zeros[info.dtype]] * sizes[info.tensor][-1],
            )
            for info in (*INPUTS.values(), turns)
        ),
        helper.make_tensor("factor", onnx.TensorProto.FLOAT, [], [factor]),
        helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1]),
    ]
    graph = helper.make_graph(nodes, "small", inputs, list(map(_value, outputs.values())), constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x, word = INPUTS["x"], INPUTS["word"]
    signatures = {
        "serving_default": Signature(method_name=PREDICT, inputs=INPUTS, outputs=OUTPUTS),
        "one": Signature(method_name=PREDICT, inputs=INPUTS, outputs={"scaled": OUTPUTS["scaled"]}),
        "bare": Signature(method_name=PREDICT, inputs={"x": x}, outputs={"scaled": OUTPUTS["scaled"]}),
        "classify": Signature(
            method_name=CLASSIFY, inputs={"x": x, "word": word}, outputs={"classes": classes, "scores": scores}
        ),
        "regress": Signature(method_name=REGRESS, inputs={"x": x}, outputs={"outputs": OUTPUTS["scaled"]}),
    }
    if is_slow:
        signatures["slow"] = Signature(method_name=PREDICT, inputs={"turns": turns}, outputs={"turned": turned})
    manifest = Manifest(signatures=signatures, receiver="raw_features", producer="tests", version="1")
    unfinished = directory.with_name(f"temp-{directory.name}")
    unfinished.mkdir(parents=True)
    (unfinished / MODEL_FILE).write_bytes(model.SerializeToString())
    (unfinished / SIGNATURES_FILE).write_text(manifest.to_json())
    unfinished.rename(directory)
    return directory


def _loop_body() -> onnx.GraphProto:
    true = helper.make_node(
        "Constant", [], ["more"], value=helper.make_tensor("more", onnx.TensorProto.BOOL, [], [True])
    )
    return helper.make_graph(
        [true, helper.make_node("Identity", ["carried"], ["carried_on"])],
        "turn",
        [
            helper.make_tensor_value_info("turn", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", onnx.TensorProto.INT64, [None]),
        ],
        [
            helper.make_tensor_value_info("more", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried_on", onnx.TensorProto.INT64, [None]),
        ],
    )


def _value(info: TensorInfo) -> onnx.ValueInfoProto:
    shape = [None if size < 0 else size for size in info.shape]
    return helper.make_tensor_value_info(info.tensor, element_type(info), shape)


def break_export(directory: Path) -> Path:
    """Write an export whose graph cannot be loaded."""
    write_export(directory)
    (directory / MODEL_FILE).write_bytes(b"no graph")
    return directory


@contextmanager
def app_of(base: Path | str, policy: str = "all", **settings: Any) -> Iterator[ServingApp]:
    """The application of a server of one model, ``small``, in this process."""
    model = ServedModel(name="small", path=str(base), policy=VersionPolicy.parse(policy))
    service = PredictionService(ServingOptions(**{"models": (model,), "poll_secs": 0.05, **settings}))
    service.start()
    app = ServingApp(service)
    try:
        yield app
    finally:
        app.close()
        service.close()


def ask(app: Any, path: str, content: Any = None, *, verb: str | None = None, **settings: Any) -> httpx.Response:
    """Return the answer of an application to a request: a POST if there is content, otherwise a GET."""
    return ask_all(app, [(path, content)], verb=verb, **settings)[0]


def ask_all(
    app: Any, requests: Sequence[tuple[str, Any]], *, verb: str | None = None, **settings: Any
) -> list[httpx.Response]:
    """Return the answers of an application to requests that arrive together."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:

            def send(path: str, content: Any) -> Any:
                data = (
                    content if isinstance(content, bytes | None) else json.dumps(content, ensure_ascii=False).encode()
                )
                return client.request(verb or ("GET" if content is None else "POST"), path, content=data, **settings)

            return list(await asyncio.gather(*(send(path, content) for path, content in requests)))

    return asyncio.run(run())


def as_json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def predict(app: Any, content: Any, place: str = "") -> httpx.Response:
    return ask(app, f"/v1/models/small{place}:predict", content)


def error_of(response: httpx.Response) -> tuple[int, str]:
    """The status and the message of an error."""
    content = response.json()
    assert list(content) == ["error"]
    return response.status_code, content["error"]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Look again and again until something is so."""
    deadline = time.monotonic() + MANY_SECS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass(frozen=True)
class Server:
    """A server in a process of its own.

    Attributes:
        process: The process.
        url: Its address, such as ``http://127.0.0.1:8501``.
    """

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.rpartition("//")[2].rsplit(":", 1)
        return host, int(port)

    def end(self) -> tuple[int, str]:
        """End it with SIGTERM; return its exit status and what it has logged."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=MANY_SECS)
        return self.process.returncode, log


@contextmanager
def serving(*arguments: str, program: Sequence[str] = ("-m", "torch_estimator.cli")) -> Iterator[Server]:
    """Run ``estimator serve`` until the block ends."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r" at (https?://\S+)", line)
        if match is None:
            raise AssertionError(line + process.communicate(timeout=MANY_SECS)[1])
        yield Server(process, match[1])
    finally:
        process.kill()
        process.communicate()


def row(**values: Any) -> dict[str, Any]:
    return {"x": 1.5, **values}


def floats(values: Any) -> Any:
    """The numbers as a float32 has them."""
    return np.asarray(values, np.float32).tolist()
