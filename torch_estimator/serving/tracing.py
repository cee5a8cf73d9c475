"""Traces of requests: the header ``traceparent`` of the W3C, and spans of OpenTelemetry.

A ``traceparent`` of the client is passed on in the answer and in the access log. If the program has set a tracer
provider of OpenTelemetry, as ``opentelemetry-instrument estimator serve …`` does, each request is a span, and the
answer names the span. Without one, requests pay for looking up the header only.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from torch_estimator.web.http import Scope, Send, header

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from torch_estimator.serving.app import Answered

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def find_tracer() -> Tracer | None:
    """Return OpenTelemetry's tracer, or None if it is not installed or nobody has set a tracer provider."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("torch_estimator.serving")


class Trace:
    """The trace that a request is part of.

    `parent` is the ``traceparent`` for the answer and the access log, or None if the client has sent a wrong one.
    Without a tracer there is no span.
    """

    def __init__(self, scope: Scope, given: bytes | None, tracer: Tracer | None) -> None:
        text = (given or b"").decode("latin-1")
        self.parent: str | None = text if _TRACEPARENT.fullmatch(text) else None
        self._span: Span | None = None
        if tracer is not None:
            self._begin(scope, tracer)

    def _begin(self, scope: Scope, tracer: Tracer) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if self.parent is None else {"traceparent": self.parent}
        state = header(scope, b"tracestate")
        if state is not None:
            carrier["tracestate"] = state.decode("latin-1")
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        context = TraceContextTextMapPropagator().extract(carrier)
        self._span = tracer.start_span(scope["method"], context, SpanKind.SERVER, attributes)
        made = self._span.get_span_context()
        if made.is_valid:
            self.parent = f"00-{made.trace_id:032x}-{made.span_id:016x}-{int(made.trace_flags):02x}"

    def sending(self, send: Send) -> Send:
        """Wrap `send` so that the headers of the answer carry the trace."""
        if self.parent is None:
            return send
        line = (b"traceparent", self.parent.encode("latin-1"))

        async def send_with_trace(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], line]}
            await send(message)

        return send_with_trace

    def end(self, answered: Answered) -> None:
        """End the span."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        if answered.method:
            self._span.update_name(f"{answered.method} {answered.model}".strip())
        attributes = {
            "http.response.status_code": answered.status,
            "model": answered.model,
            "version": answered.version,
            "instances": answered.instances,
        }
        self._span.set_attributes(attributes)
        if answered.status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
