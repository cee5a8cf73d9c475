"""The Open Inference Protocol v2 over gRPC: the service ``inference.GRPCInferenceService``.

It runs in the event loop of the worker, so that its requests and those of REST are batched together. Several workers
listen on the same port, and the kernel divides the connections among them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

# Stubs are not a dependency.
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torch_estimator.errors import InvalidValueError, printable
from torch_estimator.json_text import shortened
from torch_estimator.serving.access_log import AccessLog
from torch_estimator.serving.app import Answered, ServingApp
from torch_estimator.serving.batcher import Result
from torch_estimator.serving.catalog import Version
from torch_estimator.serving.grpc_health import GrpcHealth
from torch_estimator.serving.grpc_reflection import GrpcReflection
from torch_estimator.serving.messages import read_messages
from torch_estimator.serving.open_inference import (
    EXTENSIONS,
    InferCall,
    check_parameters,
    chosen_outputs,
    describe_model,
    find_signature,
    find_version,
)
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.tensors import InputTensor, read_columns, texts_of
from torch_estimator.serving.triton import describe_config, repository_index, statistics
from torch_estimator.web.errors import RequestError, option_to_change

logger = logging.getLogger("torch_estimator")

SERVICE = "inference.GRPCInferenceService"

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    412: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

# Calls that have arrived and are not yet read. Later, the limit is that of the queue.
_MOST_PENDING = 2**16

# Messages of errors travel in a header, which clients limit to a few kilobytes.
_MOST_MESSAGE = 500

_CONTENTS = {
    "BYTES": "bytes_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "BOOL": "bool_contents",
}

_MESSAGES = read_messages("open_inference")

Method = Callable[[Any, Answered], Awaitable[Any]]
"""Function that answers a request, and notes what it was for."""


def reserve_port(options: ServingOptions, name: str = "grpc_port") -> tuple[ServingOptions, socket.socket | None]:
    """Check that the port that a setting names is free, and replace port 0 with a free one.

    Return the settings, and a socket that keeps the port for the workers as long as it is open.
    """
    given = getattr(options, name)
    if given is None or (name != "grpc_port" and given == options.grpc_port):
        return options, None
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    reserved = socket.socket(family)
    try:
        # Without SO_REUSEPORT this fails if another server listens. With it, both would get a part of the connections.
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((options.host, given))
            port = probe.getsockname()[1]
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((options.host, port))
    except OSError as error:
        reserved.close()
        raise InvalidValueError(
            f"gRPC cannot listen on {options.host}, port {given}: {error.strerror}; choose another "
            f"{option_to_change(error, '--' + name.replace('_', '-'))}."
        ) from error
    return replace(options, **{name: port}), reserved


class GrpcServer:
    """gRPC server of one worker, with the models, tokens and metrics of the application that answers REST."""

    def __init__(self, app: ServingApp) -> None:
        self._app = app
        self._service = app.service
        self._access_log = AccessLog(app.service.options.access_log)
        self._server: Any = None

    async def start(self) -> None:
        """Begin to listen; raise if the port or the files of TLS cannot be used."""
        options = self._service.options
        server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", options.most_body_bytes),
                ("grpc.max_send_message_length", -1),
                # By default, gRPC cancels some calls without a word where more than a thousand arrive at once.
                ("grpc.server.max_pending_requests", _MOST_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
            )
        )
        methods = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
        }
        own = self._service_of(
            SERVICE, {name: (_MESSAGES[f"{name}Request"], method) for name, method in methods.items()}
        )
        server.add_generic_rpc_handlers((own, GrpcHealth(self._app).handler()))
        described = ["open_inference", "health"]
        if options.tf_serving_grpc_port is not None:
            # Few need it, and it takes time and memory.
            from torch_estimator.serving.tensorflow_grpc import TensorflowGrpc

            theirs = TensorflowGrpc(self._service).services()
            server.add_generic_rpc_handlers([self._service_of(name, each) for name, each in theirs.items()])
            described.append("tensorflow_serving")
        server.add_generic_rpc_handlers(GrpcReflection(self._app.tokens, tuple(described)).handlers())
        host = f"[{options.host}]" if ":" in options.host else options.host
        for port in options.grpc_ports:
            address = f"{host}:{port}"
            try:
                if options.tls_certificate is None or options.tls_key is None:
                    server.add_insecure_port(address)
                else:
                    pair = Path(options.tls_key).read_bytes(), Path(options.tls_certificate).read_bytes()
                    server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            except (OSError, RuntimeError) as error:
                raise InvalidValueError(f"gRPC cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server

    async def stop_after(self, is_over: Callable[[], bool]) -> None:
        """Shut down gracefully once `is_over` returns true, which is called ten times a second, as uvicorn does."""
        while not is_over():
            await asyncio.sleep(0.1)
        # REST says so itself, but only when its last connection has ended.
        self._service.is_draining = True
        await self._server.stop(self._service.options.drain_secs)

    def _service_of(self, service: str, methods: Mapping[str, tuple[Any, Method]]) -> Any:
        """Return what a server of gRPC is to add for a service, given its methods with the messages that they take."""
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(service, name, message, method))
            for name, (message, method) in methods.items()
        }
        return grpc.method_handlers_generic_handler(service, handlers)

    def _handler(
        self, service: str, name: str, message: Any, method: Method
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Return what gRPC calls with the bytes of a request.

        Messages are read here instead of by gRPC, for which a message that cannot be read is a fault of the server.
        """
        read, path = message.FromString, f"/{service}/{name}"
        needs_token = name not in ("ServerLive", "ServerReady")

        async def handle(request: bytes, context: Any) -> bytes:
            answered = Answered(method=name)
            with self._counted(path, context, answered):
                try:
                    if needs_token:
                        self._app.tokens.check(_metadata(context, "authorization"))
                    answer = await method(read(request), answered)
                    return bytes(answer.SerializeToString())
                except RequestError as error:
                    answered.status = error.status
                    code, problem = _CODES.get(error.status, grpc.StatusCode.INTERNAL), error.message
                except DecodeError:
                    answered.status = 400
                    code, problem = _CODES[400], f"The request is no {message.DESCRIPTOR.name} of the protocol."
                except asyncio.CancelledError:
                    # The client has gone, or its deadline has passed.
                    answered.status = 499
                    raise
                except Exception:
                    logger.exception("A request to %s failed.", name)
                    answered.status = 500
                    code, problem = grpc.StatusCode.INTERNAL, "The server has failed; see its log."
                await context.abort(code, printable(problem.replace("\n", "\\n"))[:_MOST_MESSAGE])
            raise AssertionError("abort always raises")

        return handle

    @contextmanager
    def _counted(self, path: str, context: Any, answered: Answered) -> Iterator[None]:
        """Count a request in the metrics and write it to the access log."""
        metrics = self._service.metrics
        began = time.perf_counter()
        metrics.begin()
        try:
            yield
        finally:
            secs = time.perf_counter() - began
            metrics.end(answered.model, answered.version, answered.method, answered.status, secs)
            if self._service.options.access_log is not None:
                answered.traceparent = _metadata(context, "traceparent").decode("latin-1") or None
                scope = {"client": [context.peer()], "method": "GRPC", "path": path, "headers": []}
                self._access_log.write(scope, answered, secs)

    async def _server_live(self, request: Any, answered: Answered) -> Any:
        return _MESSAGES["ServerLiveResponse"](live=True)

    async def _server_ready(self, request: Any, answered: Answered) -> Any:
        return _MESSAGES["ServerReadyResponse"](ready=self._service.is_ready)

    async def _server_metadata(self, request: Any, answered: Answered) -> Any:
        return _MESSAGES["ServerMetadataResponse"](**self._service.describe(), extensions=EXTENSIONS)

    async def _model_ready(self, request: Any, answered: Answered) -> Any:
        is_ready = not self._service.is_draining
        try:
            find_version(self._service, request.name, request.version)
        except RequestError:
            is_ready = False
        return _MESSAGES["ModelReadyResponse"](ready=is_ready)

    async def _model_metadata(self, request: Any, answered: Answered) -> Any:
        version = find_version(self._service, request.name, request.version)
        answered.model, answered.version = version.model, version.number
        return _MESSAGES["ModelMetadataResponse"](**describe_model(self._service, version))

    async def _model_infer(self, request: Any, answered: Answered) -> Any:
        version = find_version(self._service, request.model_name, request.model_version)
        answered.model, answered.version = version.model, version.number
        call = read_infer(request, version)
        answered.instances = call.rows
        result = await self._service.predict_instances(version, call.signature, call.columns, call.rows)
        return write_infer(call, result, version)

    async def _model_config(self, request: Any, answered: Answered) -> Any:
        version = find_version(self._service, request.name, request.version)
        answered.model, answered.version = version.model, version.number
        config = describe_config(self._service, version.model, find_signature({}, version)[1])
        return _MESSAGES["ModelConfigResponse"](config=config)

    async def _model_statistics(self, request: Any, answered: Answered) -> Any:
        version = find_version(self._service, request.name, request.version) if request.version else None
        models = [request.name] if request.name else self._service.catalog.names()
        return _MESSAGES["ModelStatisticsResponse"](**await statistics(self._service, models, version))

    async def _repository_index(self, request: Any, answered: Answered) -> Any:
        if request.repository_name:
            name = shortened(request.repository_name)
            raise RequestError(404, f"There is no repository {name}; the server has one, without a name.")
        index = repository_index(self._service.catalog, only_ready=request.ready)
        return _MESSAGES["RepositoryIndexResponse"](models=index)


def _metadata(context: Any, name: str) -> bytes:
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, bytes) else value.encode()
    return b""


def read_infer(request: Any, version: Version) -> InferCall:
    """Return what a ``ModelInferRequest`` asks for; a RequestError names the wrong input."""
    name, signature = find_signature(_parameters(request), version)
    raw = request.raw_input_contents
    inputs = request.inputs
    if raw and len(raw) != len(inputs):
        raise RequestError(400, f"raw_input_contents has {len(raw)} entries, but there are {len(inputs)} inputs.")
    as_text = version.export.manifest.examples is None
    tensors = []
    for index, one in enumerate(inputs):
        if one.parameters:
            check_parameters(one.parameters, "Input", one.name)
        if raw and one.HasField("contents"):
            raise RequestError(400, f"Input {one.name} has contents beside raw_input_contents; give one of them.")
        data = raw[index] if raw else _typed_data(one, as_text=as_text)
        tensors.append(InputTensor(one.name, one.datatype, list(one.shape), data))
    columns, rows = read_columns(tensors, signature, version.export.unknown, as_text=as_text)
    requested = [(one.name, _parameters(one)) for one in request.outputs]
    return InferCall(request.id, name, columns, rows, chosen_outputs(requested, signature, bool(raw)))


def _parameters(message: Any) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
        for name, value in message.parameters.items()
    }


def _typed_data(tensor: Any, *, as_text: bool) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype)
    # An unknown datatype is reported when it is compared with the signature.
    elements = list(getattr(tensor.contents, field)) if field is not None else []
    return texts_of(elements, tensor.name) if as_text and tensor.datatype == "BYTES" else elements


def write_infer(call: InferCall, result: Result, version: Version) -> Any:
    """Return the message ``ModelInferResponse`` that answers an infer request."""
    infos = version.export.signatures[call.signature].outputs
    answer = _MESSAGES["ModelInferResponse"](
        model_name=version.model, model_version=str(version.number), id=call.request_id
    )
    for name, is_binary in call.outputs:
        array, dtype = result.outputs[name], infos[name].type
        output = answer.outputs.add(name=name, datatype=dtype.datatype, shape=array.shape)
        if is_binary:
            answer.raw_output_contents.append(dtype.encode(array))
            continue
        values = array.ravel().tolist()
        if dtype.datatype == "BYTES":
            values = [text.encode() for text in values]
        getattr(output.contents, _CONTENTS[dtype.datatype]).extend(values)
    return answer
