"""gRPC's own health protocol: the service ``grpc.health.v1.Health``, for Kubernetes' probes and for load balancers.

The empty name is the whole server, which is SERVING under the condition of ``/v2/health/ready``; any other name is that
of a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torch_estimator.json_text import shortened
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.messages import read_messages
from torch_estimator.web.errors import RequestError

SERVICE = "grpc.health.v1.Health"

_MESSAGES = read_messages("health")
_Response = _MESSAGES["HealthCheckResponse"]

# Seconds between two looks for the clients that watch.
_LOOK_SECS = 0.1


class GrpcHealth:
    """Answers ``Check`` and ``Watch``, as ModelReady and ServerReady are: only the whole server without a token."""

    def __init__(self, app: ServingApp) -> None:
        self._service = app.service
        self._tokens = app.tokens
        self._seen: object = None
        self._changed = asyncio.Event()

    def handler(self) -> Any:
        """Return what a server of gRPC is to add."""
        write = _Response.SerializeToString
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, response_serializer=write),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, response_serializer=write),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _check(self, request: bytes, context: Any) -> Any:
        name = await self._read(request, context)
        status = self._status(name)
        if status == _Response.SERVICE_UNKNOWN:
            message = f"There is no model {shortened(name)}; the empty name stands for the whole server."
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return _Response(status=status)

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        name = await self._read(request, context)
        sent = None
        if self._seen is None:
            self._look()
        while True:
            changed = self._changed
            # A stream that stayed open would hold the end of the server back until its deadline.
            is_last = self._service.is_draining
            status = self._status(name)
            if status != sent:
                yield _Response(status=status)
                sent = status
            if is_last:
                return
            await changed.wait()

    def _look(self) -> None:
        """Wake all who watch if something has changed, now and from now on: a client may open thousands of streams."""
        names = self._service.catalog.names()
        now = (self._service.is_draining, *((name, self._status(name)) for name in ("", *names)))
        if now != self._seen:
            self._seen = now
            self._changed.set()
            self._changed = asyncio.Event()
        asyncio.get_running_loop().call_later(_LOOK_SECS, self._look)

    async def _read(self, request: bytes, context: Any) -> str:
        """Return the name that a request asks for."""
        try:
            name = str(_MESSAGES["HealthCheckRequest"].FromString(request).service)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request is no HealthCheckRequest.")
        if name:
            metadata = dict(context.invocation_metadata() or ())
            try:
                self._tokens.check(str(metadata.get("authorization", "")).encode())
            except RequestError as error:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        return name

    def _status(self, name: str) -> int:
        catalog = self._service.catalog
        try:
            has_version = catalog.state(name).default is not None if name else catalog.is_ready
        except RequestError:
            return int(_Response.SERVICE_UNKNOWN)
        return int(_Response.SERVING if has_version and not self._service.is_draining else _Response.NOT_SERVING)
