"""Ways to ask an export for predictions of the same rows: over the wire, of a file, or by a command.

A row is a dict of values by input, where None stands for a missing one. Each way gives the logits of the rows, or the
sentence with which it refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tritonclient.http
from tritonclient.grpc import service_pb2

import torch_estimator as te
from tests.serving.models import app_of, ask
from torch_estimator.cli import main
from torch_estimator.export.signatures import TensorInfo
from torch_estimator.serving.app import Answered, ServingApp
from torch_estimator.serving.grpc_server import GrpcServer
from torch_estimator.web.errors import RequestError

Row = dict[str, Any]
Answer = list[float] | str

_DATATYPES = {"DT_STRING": "BYTES", "DT_FLOAT": "FP32", "DT_INT64": "INT64"}


@dataclass(frozen=True)
class Asked:
    """An export, and a server of it.

    Attributes:
        export: Directory of the export.
        model: Name of the model on the server.
        post: Sends a path, a body and headers to the server.
        app: Application of a server in this process, which alone answers `over_grpc`.
    """

    export: str
    model: str
    post: Callable[..., httpx.Response]
    app: ServingApp | None = None

    @cached_property
    def inputs(self) -> dict[str, TensorInfo]:
        return dict(te.ExportedModel.load(self.export).signature("serving_default").inputs)

    def by_row(self, rows: Sequence[Row]) -> Answer:
        answer = self._post(f"/v1/models/{self.model}:predict", json.dumps({"instances": rows}).encode())
        return answer if isinstance(answer, str) else _flat(one["logits"] for one in answer.json()["predictions"])

    def by_column(self, rows: Sequence[Row]) -> Answer:
        names = {name: None for row in rows for name in row}
        content = {"inputs": {name: [row.get(name) for row in rows] for name in names}}
        answer = self._post(f"/v1/models/{self.model}:predict", json.dumps(content).encode())
        return answer if isinstance(answer, str) else _flat(answer.json()["outputs"]["logits"])

    def v2_json(self, rows: Sequence[Row]) -> Answer:
        inputs = [
            {
                "name": name,
                "datatype": _DATATYPES[info.dtype],
                "shape": [len(rows)],
                "data": [row.get(name) for row in rows],
            }
            for name, info in self.inputs.items()
        ]
        content = {"inputs": inputs, "outputs": [{"name": "logits"}]}
        answer = self._post(f"/v2/models/{self.model}/infer", json.dumps(content).encode())
        return answer if isinstance(answer, str) else _flat(answer.json()["outputs"][0]["data"])

    def v2_binary(self, rows: Sequence[Row]) -> Answer:
        made = []
        for name, values in self._tensors(rows).items():
            made.append(tritonclient.http.InferInput(name, list(values.shape), _DATATYPES[self.inputs[name].dtype]))
            made[-1].set_data_from_numpy(values)
        wanted = [tritonclient.http.InferRequestedOutput("logits", binary_data=False)]
        body, length = tritonclient.http.InferenceServerClient.generate_request_body(made, outputs=wanted)
        headers = {"Inference-Header-Content-Length": str(length)}
        answer = self._post(f"/v2/models/{self.model}/infer", bytes(body), headers=headers)
        return answer if isinstance(answer, str) else _flat(answer.json()["outputs"][0]["data"])

    def over_grpc(self, rows: Sequence[Row]) -> Answer:
        assert self.app is not None
        message = service_pb2.ModelInferRequest(model_name=self.model)
        message.outputs.add(name="logits")
        for name, values in self._tensors(rows).items():
            info = self.inputs[name]
            message.inputs.add(name=name, datatype=_DATATYPES[info.dtype], shape=values.shape)
            message.raw_input_contents.append(info.type.encode(values))
        try:
            answer = asyncio.run(GrpcServer(self.app)._model_infer(message, Answered()))
        except RequestError as error:
            return str(error.message)
        return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()

    def predict(self, path: Path | str, *options: str) -> Answer:
        """The answer of ``estimator predict`` for JSON lines."""
        output, problems = io.StringIO(), io.StringIO()
        arguments = ["--model-dir", self.export, "--json-instances", str(path), "--format", "json", *options]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(problems):
            status = main(["predict", *arguments])
        return (
            problems.getvalue()
            if status
            else _flat(one["logits"] for one in json.loads(output.getvalue())["predictions"])
        )

    def predict_batch(self, path: Path | str, *options: str) -> Answer:
        """The answer of ``estimator predict-batch`` for a file; a rejected row makes it the reason for that one."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--model", self.export, "--input", str(path), "--output", folder, *options]
            problems = io.StringIO()
            with contextlib.redirect_stderr(problems), contextlib.redirect_stdout(problems):
                if main(["predict-batch", *arguments]):
                    return problems.getvalue()
            rejected = [line for line in _lines(folder, "errors_stats") if "reason" in line]
            return str(rejected[0]["reason"]) if rejected else _flat(one["logits"] for one in _lines(folder, "results"))

    def exported(self, rows: Sequence[Row]) -> Answer:
        try:
            columns = {name: [row.get(name) for row in rows] for name in self.inputs}
            return _flat(te.ExportedModel.load(self.export).predict(columns)["logits"])
        except te.errors.UserError as error:
            return str(error)

    def _post(self, path: str, content: bytes, **settings: Any) -> httpx.Response | str:
        answer = self.post(path, content=content, **settings)
        if answer.status_code == 200:
            return answer
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"])

    def _tensors(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Arrays by input, which have no null: NaN, the empty string and -1 are missing there."""
        missing = {"DT_STRING": "", "DT_FLOAT": math.nan, "DT_INT64": -1}
        columns = {}
        for name, info in self.inputs.items():
            values = [missing[info.dtype] if row.get(name) is None else row[name] for row in rows]
            columns[name] = np.array(values, object if info.dtype == "DT_STRING" else info.type.numpy)
        return columns


@contextmanager
def asking(export: str, **settings: Any) -> Iterator[Asked]:
    """Serve an export in this process until the block ends."""
    with app_of(Path(export).parent, **settings) as app:
        yield Asked(export, "small", partial(ask, app), app)


def write_lines(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def without_missing(rows: Sequence[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _flat(values: Any) -> list[float]:
    return np.ravel(list(values)).tolist()


def _lines(folder: str, kind: str) -> list[Any]:
    files = sorted(Path(folder).glob(f"prediction.{kind}-*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
