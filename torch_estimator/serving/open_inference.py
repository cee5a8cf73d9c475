"""The Open Inference Protocol v2 over REST, with the extension for binary tensors.

A request to ``/v2/models/NAME[/versions/V]/infer`` has inputs with name, datatype, shape and data, in JSON::

    {"inputs": [{"name": "age", "datatype": "FP32", "shape": [1], "data": [25]}], "outputs": [{"name": "logits"}]}

The data of an input may instead follow the JSON as bytes. Then the input has the parameter ``binary_data_size``, and
the header ``Inference-Header-Content-Length`` says where the JSON ends. An answer has the same form; the parameter
``binary_data`` of an output, or ``binary_data_output`` of the request, asks for bytes.

The parameter ``signature_name`` of a request chooses the signature. The protocol in gRPC is in ``grpc_server.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from torch_estimator.export.signatures import Signature
from torch_estimator.json_text import shortened
from torch_estimator.serving.batcher import Columns, Result
from torch_estimator.serving.catalog import Version
from torch_estimator.serving.service import PredictionService
from torch_estimator.serving.tensorflow_rest import read_json
from torch_estimator.serving.tensors import InputTensor, read_columns
from torch_estimator.serving.triton import describe_config, repository_index, statistics, wants_only_ready
from torch_estimator.web.errors import RequestError
from torch_estimator.web.http import Headers, Receive, Scope, Send, header, read_body, respond

if TYPE_CHECKING:
    from torch_estimator.serving.app import Answered

PLATFORM = "onnx_onnxv1"
"""The protocol's name of what runs the models."""

EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics")
"""Extensions of the protocol that the server has."""

_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?(?P<rest>/ready|/infer|/config|/stats|)"
)

_LENGTH_HEADER = b"inference-header-content-length"

_JSON_TYPE = (b"content-type", b"application/json")
_BINARY_TYPE = (b"content-type", b"application/octet-stream")


@dataclass(frozen=True, slots=True)
class InferCall:
    """What an infer request asks for; the answer has to repeat `request_id`, which is empty if there is none.

    `rows` is the number of instances. `outputs` has the name of each output, and whether it is to be binary.
    """

    request_id: str
    signature: str
    columns: Columns
    rows: int
    outputs: list[tuple[str, bool]]


class OpenInferenceRest:
    """Answers requests whose path begins with ``/v2``."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service
        self._most_bytes = service.options.most_body_bytes
        # Cache parsed paths; the limit stops a client from exhausting memory with invented ones.
        self._targets: dict[str, tuple[str, str, str]] = {}

    async def answer(self, scope: Scope, receive: Receive, send: Send, answered: Answered) -> None:
        """Answer a request, and note in `answered` what it was for."""
        verb, path = scope["method"], scope["path"]
        if path in ("/v2", "/v2/"):
            _check_verb(verb, "GET", path)
            answered.method = "server_metadata"
            await respond(send, 200, orjson.dumps({**self._service.describe(), "extensions": EXTENSIONS}))
            return
        if path.startswith("/v2/health/"):
            answered.method = "health"
            await self._answer_health(verb, path, send, answered)
            return
        if path == "/v2/repository/index":
            answered.method = "repository_index"
            _check_verb(verb, "POST", path)
            body = await read_body(scope, receive, most_bytes=self._most_bytes)
            index = repository_index(self._service.catalog, only_ready=wants_only_ready(body))
            await respond(send, 200, orjson.dumps(index))
            return
        if path == "/v2/models/stats" and not self._service.catalog.has("stats"):
            answered.method = "stats"
            _check_verb(verb, "GET", path)
            await self._answer_statistics(self._service.catalog.names(), "", send)
            return
        model, version_text, rest = self._target(path)
        answered.method = rest[1:] or "metadata"
        _check_verb(verb, "POST" if rest == "/infer" else "GET", path)
        if rest == "/stats":
            await self._answer_statistics([model], version_text, send)
            return
        version = find_version(self._service, model, version_text)
        answered.model, answered.version = version.model, version.number
        if rest == "/infer":
            await self._infer(scope, receive, send, answered, version)
        elif rest == "/ready":
            is_ready = not self._service.is_draining
            answered.status = 200 if is_ready else 503
            await respond(send, answered.status, orjson.dumps({"name": version.model, "ready": is_ready}))
        elif rest == "/config":
            _, signature = find_signature({}, version)
            await respond(send, 200, orjson.dumps(describe_config(self._service, version.model, signature)))
        else:
            await respond(send, 200, orjson.dumps(describe_model(self._service, version)))

    async def _answer_health(self, verb: str, path: str, send: Send, answered: Answered) -> None:
        if path == "/v2/health/live":
            _check_verb(verb, "GET", path)
            await respond(send, 200, orjson.dumps({"live": True}))
        elif path == "/v2/health/ready":
            _check_verb(verb, "GET", path)
            is_ready = self._service.is_ready
            answered.status = 200 if is_ready else 503
            # The specification has `live` in this answer, too; servers usually say `ready`.
            await respond(send, answered.status, orjson.dumps({"live": True, "ready": is_ready}))
        else:
            raise _nothing_at(path)

    async def _answer_statistics(self, models: list[str], version_text: str, send: Send) -> None:
        version = find_version(self._service, models[0], version_text) if version_text else None
        await respond(send, 200, orjson.dumps(await statistics(self._service, models, version)))

    async def _infer(self, scope: Scope, receive: Receive, send: Send, answered: Answered, version: Version) -> None:
        body = await read_body(scope, receive, most_bytes=self._most_bytes)
        call = read_infer(body, header(scope, _LENGTH_HEADER), version)
        answered.instances = call.rows
        result = await self._service.predict_instances(version, call.signature, call.columns, call.rows)
        answer, headers = write_infer(call, result, version)
        await respond(send, 200, answer, headers)

    def _target(self, path: str) -> tuple[str, str, str]:
        """Return the model, the version and the rest of a path."""
        target = self._targets.get(path)
        if target is None:
            match = _PATH.fullmatch(path)
            if match is None:
                raise _nothing_at(path)
            target = match["model"], match["version"] or "", match["rest"]
            if len(self._targets) < 1000:
                self._targets[path] = target
        return target


def find_version(service: PredictionService, model: str, version: str) -> Version:
    """Return a version by number, or the default for an empty text; raise a RequestError if there is none."""
    if not version:
        return service.catalog.version(model)
    if not re.fullmatch(r"v?[0-9]{1,18}", version):
        raise RequestError(404, f"Model {shortened(model)} has no version {shortened(version)}; versions are numbers.")
    return service.catalog.version(model, int(version.removeprefix("v")))


def describe_model(service: PredictionService, version: Version) -> dict[str, Any]:
    """Return the metadata of a model: its versions, and the inputs and outputs of the default signature."""
    _, signature = find_signature({}, version)
    return {
        "name": version.model,
        "versions": [str(number) for number in sorted(service.catalog.state(version.model).versions)],
        "platform": PLATFORM,
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
    }


def _tensors(infos: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": info.type.datatype, "shape": list(info.shape)} for name, info in infos.items()]


def find_signature(parameters: Mapping[str, Any], version: Version) -> tuple[str, Signature]:
    """Return the signature that the parameters of a request choose, with its name, or raise a RequestError."""
    name = parameters.get("signature_name", "serving_default")
    signatures = version.export.signatures
    if not isinstance(name, str) or name not in signatures:
        known = ", ".join(signatures)
        raise RequestError(400, f"The model has no signature {shortened(name)}; its signatures are {known}.")
    return name, signatures[name]


def chosen_outputs(
    requested: Sequence[tuple[str, Mapping[str, Any]]], signature: Signature, is_binary: bool
) -> list[tuple[str, bool]]:
    """Return the name of each output to return, and whether it is to be binary.

    If none is requested, all are returned; `is_binary` applies to outputs that do not say it themselves. An output that
    does not exist or is requested twice, or an unknown parameter, raises a RequestError.
    """
    outputs: dict[str, bool] = {}
    for name, parameters in requested:
        if name not in signature.outputs:
            known = ", ".join(signature.outputs)
            raise RequestError(400, f"The signature has no output {shortened(name)}; its outputs are {known}.")
        if name in outputs:
            raise RequestError(400, f"Output {name} is requested twice.")
        if parameters:
            check_parameters(parameters, "Output", name)
        outputs[name] = _flag(parameters, "binary_data", is_binary)
    return list(outputs.items()) or [(name, is_binary) for name in signature.outputs]


def check_parameters(parameters: Mapping[str, Any], kind: str, name: str) -> None:
    """Raise a RequestError if an input or output (`kind`) asks for an extension that the server lacks."""
    for extension in ("shared_memory_region", "classification"):
        if extension in parameters:
            where = f"{kind} {shortened(name)}"
            raise RequestError(400, f"{where} has the parameter {extension!r}, an extension that the server lacks.")


def read_infer(body: bytes, header_length: bytes | None, version: Version) -> InferCall:
    """Return what an infer request asks for; a RequestError names the wrong input.

    `header_length` is the value of ``Inference-Header-Content-Length``, if there is one.
    """
    at = len(body) if header_length is None else _json_end(header_length, len(body))
    content = read_json(body[:at])
    if not isinstance(content, dict):
        raise RequestError(400, f"The request must be a JSON object, but got {shortened(content)}.")
    request_id = content.get("id", "")
    if not isinstance(request_id, str):
        raise RequestError(400, f"'id' must be a string, but got {shortened(request_id)}.")
    parameters = _parameters(content, "The request", "")
    name, signature = find_signature(parameters, version)
    tensors = []
    for index, one in enumerate(_objects(content, "inputs")):
        tensor, at = _input(one, index, body, at)
        tensors.append(tensor)
    if at != len(body):
        raise RequestError(400, f"The body has {len(body) - at} bytes after the data of the last input.")
    as_text = version.export.manifest.examples is None
    columns, rows = read_columns(tensors, signature, version.export.unknown, as_text=as_text)
    requested = [_output(one) for one in _objects(content, "outputs")] if content.get("outputs") else []
    outputs = chosen_outputs(requested, signature, _flag(parameters, "binary_data_output", False))
    return InferCall(request_id, name, columns, rows, outputs)


def _json_end(header_length: bytes, body_length: int) -> int:
    # Such a number is at most as long as the largest body's.
    if not re.fullmatch(rb"[0-9]{1,18}", header_length) or int(header_length) > body_length:
        text = shortened(header_length.decode("latin-1"))
        raise RequestError(
            400,
            f"Inference-Header-Content-Length must be the length of the JSON in the body of {body_length} bytes, "
            f"but is {text}.",
        )
    return int(header_length)


def _input(one: Mapping[str, Any], index: int, body: bytes, at: int) -> tuple[InputTensor, int]:
    """Return an input, and where the bytes of the next one begin.

    Its own bytes, if it has any, begin at `at` in the body.
    """
    name, datatype, shape, data = one.get("name"), one.get("datatype"), one.get("shape"), one.get("data")
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        raise RequestError(400, f"Input {index} must have a 'name', a 'datatype' and a list as 'shape'.")
    parameters = one.get("parameters")
    if parameters is not None:
        parameters = _parameters(one, "Input", name)
        check_parameters(parameters, "Input", name)
        size = parameters.get("binary_data_size")
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(body) - at:
                raise RequestError(
                    400,
                    f"Input {shortened(name)} has the binary_data_size {shortened(size)}, but {len(body) - at} bytes "
                    "follow the JSON and the inputs before it.",
                )
            if data is not None:
                raise RequestError(400, f"Input {shortened(name)} has both 'data' and a binary_data_size.")
            return InputTensor(name, datatype, shape, body[at : at + size]), at + size
    if not isinstance(data, list):
        raise RequestError(400, f"Input {shortened(name)} must have a list as 'data', but has {shortened(data)}.")
    return InputTensor(name, datatype, shape, data), at


def _output(one: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name = one.get("name")
    if not isinstance(name, str):
        raise RequestError(400, f"Each of 'outputs' must have a string as 'name', but one has {shortened(name)}.")
    return name, _parameters(one, "Output", name)


def _objects(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = content.get(name)
    if not isinstance(value, list) or set(map(type, value)) != {dict}:
        raise RequestError(400, f"{name!r} must be a list of objects, but got {shortened(value)}.")
    return value


def _parameters(content: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    parameters = content.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        where = f"{kind} {shortened(name)}" if name else kind
        raise RequestError(400, f"{where} must have an object as 'parameters', not {shortened(parameters)}.")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(400, f"The parameter {name!r} must be true or false, but got {shortened(value)}.")
    return value


def write_infer(call: InferCall, result: Result, version: Version) -> tuple[bytes, Headers]:
    """Return the body and the headers of the answer to an infer request."""
    infos = version.export.signatures[call.signature].outputs
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, is_binary in call.outputs:
        array, dtype = result.outputs[name], infos[name].type
        output: dict[str, Any] = {"name": name, "datatype": dtype.datatype, "shape": array.shape}
        if is_binary:
            parts.append(dtype.encode(array))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            flat = array.ravel()
            output["data"] = flat.tolist() if array.dtype == object else flat
        outputs.append(output)
    answer = {"model_name": version.model, "model_version": str(version.number), "outputs": outputs}
    if call.request_id:
        answer["id"] = call.request_id
    text = _dumps(answer, result.is_finite)
    if not parts:
        return text, (_JSON_TYPE,)
    length = (_LENGTH_HEADER, str(len(text)).encode())
    return b"".join([text, *parts]), (_BINARY_TYPE, length)


def _dumps(content: Any, is_finite: bool) -> bytes:
    if is_finite:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes null for NaN and infinities; Python's json writes tokens that clients read as numbers.
    return json.dumps(content, ensure_ascii=False, default=np.ndarray.tolist).encode()


def _check_verb(verb: str, wanted: str, path: str) -> None:
    if verb != wanted and (verb, wanted) != ("HEAD", "GET"):
        allow = "GET, HEAD" if wanted == "GET" else wanted
        raise RequestError(405, f"Use {wanted} for {path}, not {verb}.", allow=allow)


def _nothing_at(path: str) -> RequestError:
    return RequestError(404, f"There is nothing at {shortened(path)}; see the Open Inference Protocol for its paths.")
