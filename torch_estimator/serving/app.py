"""ASGI application: check the token of a request, pass it to the protocol of its path, count and log the answer.

Predictions are answered by plain ASGI functions, because a framework would take as long as the prediction itself. What
is not about models (`/metrics`, the page, the description of the interface) goes through Starlette.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator.serving import page, tensorflow_rest
from torch_estimator.serving.access_log import AccessLog
from torch_estimator.serving.metrics import CONTENT_TYPE
from torch_estimator.serving.open_inference import OpenInferenceRest
from torch_estimator.serving.service import PredictionService
from torch_estimator.serving.tracing import Trace, find_tracer
from torch_estimator.web.access import Tokens
from torch_estimator.web.errors import RequestError
from torch_estimator.web.http import (
    ClientGone,
    Receive,
    Scope,
    Send,
    error_body,
    header,
    read_body,
    respond,
    respond_error,
)
from torch_estimator.web.site import PREFIX

logger = logging.getLogger("torch_estimator")

_TENSORFLOW = re.compile(
    r"/v1/models/(?P<model>[^/:]+)(?:/versions/v?(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<rest>:(?:predict|classify|regress)|/metadata|)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Answered:
    """What a request was for, for metrics and the access log.

    The model is empty and the version 0 if there is none; `traceparent` is the trace that the request is part of.
    """

    model: str = ""
    version: int = 0
    method: str = ""
    status: int = 200
    instances: int = 0
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """Parts of a path of TensorFlow Serving's REST."""

    model: str
    version: int | None
    label: str | None
    method: str


class ServingApp:
    """ASGI application of a server."""

    def __init__(self, service: PredictionService) -> None:
        self.service = service
        self.tokens = Tokens(service.options.token_file)
        self._access_log = AccessLog(service.options.access_log)
        self._tracer = find_tracer()
        self._most_bytes = service.options.most_body_bytes
        self._open_inference = OpenInferenceRest(service)
        # Cache parsed paths; the limit stops a client from exhausting memory with invented ones.
        self._targets: dict[tuple[str, bytes], _Target] = {}
        self._other = Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/monitoring/prometheus/metrics", self._metrics),
                Route("/openapi.json", self._openapi),
                *page.routes(service, self.tokens.check),
            ],
            exception_handlers={HTTPException: _as_json},
        )
        # A redirect would lead to the host that the client names.
        self._other.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start or stop with the server (ASGI's entry point)."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        began = time.perf_counter()
        answered = Answered()
        metrics = self.service.metrics
        metrics.begin()
        trace = None
        parent = header(scope, b"traceparent")
        if parent is not None or self._tracer is not None:
            trace = Trace(scope, parent, self._tracer)
            answered.traceparent = trace.parent
            send = trace.sending(send)
        try:
            self._check_token(scope)
            await self._dispatch(scope, receive, send, answered)
        except ClientGone:
            answered.status = 499
        except RequestError as error:
            answered.status = error.status
            await respond_error(send, error)
        except RecursionError:
            # JSON may nest deeper than Python's functions can.
            answered.status = 400
            await respond_error(send, RequestError(400, "JSON Parse error: the body nests too deep."))
        except Exception as error:
            if isinstance(error, RuntimeError) and "handler is closed" in str(error):
                # uvloop says so if the connection has been closed since the request was read.
                answered.status = 499
            else:
                logger.exception("A request to %s failed.", scope["path"])
                answered.status = 500
                # Nothing can be sent if the answer has begun already.
                with contextlib.suppress(RuntimeError):
                    await respond_error(send, RequestError(500, "The server has failed; see its log."))
        finally:
            secs = time.perf_counter() - began
            metrics.end(answered.model, answered.version, answered.method, answered.status, secs)
            self._access_log.write(scope, answered, secs)
            if trace is not None:
                trace.end(answered)

    def close(self) -> None:
        """Publish the last metrics, and close the access log. A server calls this by ASGI's lifespan."""
        self.service.metrics.publish_running()
        self._access_log.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.service.is_draining = True
        self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send, answered: Answered) -> None:
        path: str = scope["path"]
        if root := scope.get("root_path"):
            path = path.removeprefix(root)
        if path.startswith(("/v1/", "/V1/")):
            await self._tensorflow(scope, receive, send, answered)
        elif path.startswith("/v2/") or path == "/v2":
            await self._open_inference.answer(scope, receive, send, answered)
        else:
            await self._answer_other(scope, receive, send, answered)

    async def _answer_other(self, scope: Scope, receive: Receive, send: Send, answered: Answered) -> None:
        async def send_and_note(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
            await send(message)

        await self._other({**scope, "answered": answered}, receive, send_and_note)

    async def _tensorflow(self, scope: Scope, receive: Receive, send: Send, answered: Answered) -> None:
        target = self._target(scope)
        answered.method = target.method
        catalog = self.service.catalog
        if target.method == "status":
            await respond(send, 200, tensorflow_rest.write_status(catalog, target.model, target.version, target.label))
            return
        version = catalog.version(target.model, target.version, target.label)
        answered.model, answered.version = version.model, version.number
        if target.method == "metadata":
            await respond(send, 200, tensorflow_rest.write_metadata(version))
            return
        body = await read_body(scope, receive, most_bytes=self._most_bytes)
        if target.method == "predict":
            call = tensorflow_rest.read_predict(body, version)
        else:
            call = tensorflow_rest.read_examples(body, version, target.method, self._most_bytes)
        answered.instances = call.rows
        result = await self.service.predict_instances(version, call.signature, call.columns, call.rows)
        if target.method == "predict":
            answer = tensorflow_rest.write_predict(call, result)
        else:
            answer = tensorflow_rest.write_examples(result, target.method)
        await respond(send, 200, answer)

    def _target(self, scope: Scope) -> _Target:
        """Return what the path of a request names.

        Raise a RequestError if TensorFlow Serving has no such path or method.
        """
        # Names may have encoded slashes and colons, so take the path as the client has sent it.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        key = scope["method"], raw
        target = self._targets.get(key)
        if target is None:
            path = raw.decode("latin-1").removeprefix(scope.get("root_path", ""))
            target = _parse_target(scope["method"], path)
            if len(self._targets) < 1000:
                self._targets[key] = target
        return target

    def _check_token(self, scope: Scope) -> None:
        """Raise a RequestError if the server wants a token and the request has none of them."""
        if not self.tokens:
            return
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        # The page asks people for a token itself, because browsers send none in this header.
        is_page = path == "/" or path.startswith(PREFIX)
        if not is_page and path not in ("/v2/health/live", "/v2/health/ready"):
            self.tokens.check(header(scope, b"authorization") or b"")

    async def _metrics(self, request: Request) -> Response:
        return Response(self.service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def _openapi(self, request: Request) -> Response:
        from torch_estimator.serving.openapi import document

        # For a thousand models this takes seconds, in which the event loop answers other requests.
        content = await run_in_threadpool(lambda: orjson.dumps(document(self.service)))
        return Response(content, media_type="application/json")


async def _as_json(request: Request, error: Exception) -> Response:
    """Return an error of Starlette's in the form of the protocols."""
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return Response(error_body(message), error.status_code, error.headers, media_type="application/json")


def _parse_target(verb: str, path: str) -> _Target:
    if verb == "HEAD":
        verb = "GET"
    match = _TENSORFLOW.fullmatch(path)
    if path.rstrip("/").lower() == "/v1/models":
        raise RequestError(400, "Missing model name in request.")
    rest = match["rest"].lower() if match is not None else ""
    if match is None or (verb == "POST") != rest.startswith(":") or verb not in ("GET", "POST"):
        raise RequestError(400, f"Malformed request: {verb} {path}")
    version, label = match["version"], match["label"]
    if version is not None and (len(version) > 19 or int(version) >= 2**63):
        raise RequestError(400, f"Failed to convert version: {version} to numeric.")
    return _Target(
        model=unquote(match["model"]),
        version=None if version is None else int(version),
        label=None if label is None else unquote(label),
        method={"": "status", "/metadata": "metadata"}.get(rest, rest[1:]),
    )
