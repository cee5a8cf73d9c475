"""A connection of HTTP/1.1: uvicorn's, with limits for clients that are slow, silent, or send headers without end.

uvicorn itself limits only how long a connection may be idle between two requests. A client that sends half a header or
half a body, or nothing at all, or that never reads its answer, would keep its connection and its memory for ever.

uvicorn also writes the headers and the body of an answer one after the other. For small answers, the second system call
takes as long as the model, so a connection joins what is written in one turn of the event loop.

A request costs nothing more than the count of its first bytes. A timer looks at each connection now and then, and finds
out from uvicorn's own state whether it has come any further since the last look.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from torch_estimator.errors import InvalidValueError
from torch_estimator.web.errors import option_to_change
from torch_estimator.web.http import TOO_SLOW, Scope

BACKLOG = 4096
"""Most connections that wait to be accepted."""

_MOST_HEADER_BYTES = 2**16
_TOO_LARGE = (431, "Request Header Fields Too Large", "The headers are larger than 64 KiB.")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidValueError(
            f"the server cannot listen on {host}, port {port}: {error}; choose another "
            f"{option_to_change(error, '--port')}."
        ) from error
    listener.listen(BACKLOG)
    return listener


def server_config(app: Any, stalled_secs: float, **settings: Any) -> uvicorn.Config:
    """Return uvicorn's settings of a server whose connections may stall for some seconds, and further ones."""
    return uvicorn.Config(
        app,
        http=Connection.with_limit(stalled_secs),
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        # A line for each request that is no HTTP would let anybody fill the disk.
        log_level="error",
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        **settings,
    )


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits.

    A connection is closed if it makes no progress in `stalled_secs`, and at the latest in twice this time. A subclass
    sets the limit, as `with_limit` does.
    """

    stalled_secs = 30.0

    _received = b""
    _unfinished = 0
    _header_bytes = 0
    _refusal = (400, "Bad Request", "The request is not valid HTTP/1.1.")
    _checks: asyncio.TimerHandle | None = None

    @classmethod
    def with_limit(cls, secs: float) -> type[Connection]:
        """Return a class of connections that may stall for some seconds."""
        return type("Connection", (cls,), {"stalled_secs": secs})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _JoiningTransport(transport, self.loop)))
        self._checks = self.loop.call_later(self.stalled_secs, self._check, self._progress())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._checks is not None:
            self._checks.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received = data
        super().data_received(data)
        self._received = b""
        # uvicorn makes the scope at the first byte of a request, and gives it a method when its headers are complete.
        if self.scope is not None and "method" in self.scope:
            self._unfinished = 0
            return
        # What has come first may also be the end of the request before.
        self._unfinished += len(data) if self._unfinished else 1
        if self._unfinished > _MOST_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(*_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        """Take a request, unless its headers are too large or do not name one host.

        If so, a ValueError stops the parser, and uvicorn calls `send_400_response`.
        """
        hosts = sum(name == b"host" for name, _ in self.headers)
        if self._header_bytes > _MOST_HEADER_BYTES:
            self._refusal = _TOO_LARGE
            raise ValueError
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refusal = (400, "Bad Request", f"The request has {hosts} Host headers in place of one.")
            raise ValueError
        super().on_headers_complete()

    def _should_upgrade(self) -> bool:
        """Let uvicorn leave a request with an ``Upgrade`` header to `handle_websocket_upgrade`."""
        return True

    def handle_websocket_upgrade(self) -> None:
        """Answer a request that offers another protocol, such as HTTP/2 (h2c), as one of HTTP/1.1.

        uvicorn calls this while it handles the parser's exception. The parser stops after the headers of such a
        request, as if another protocol followed them. So it gets them again, without the offer, and then the rest.
        """
        stopped = sys.exc_info()[1]
        if stopped is None or self.scope["method"] == "CONNECT":
            self.send_400_response("")
            return
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/", self.scope["http_version"].encode(), b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.data_received(b"".join([*head, b"\r\n", self._received[stopped.args[0] :]]))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what a client has asked before it closed its side. Return whether this side stays open for that."""
        if self._waits_for_body:
            self._refuse(400, "Bad Request", "The client has closed its side before the end of the body.")
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            # This is the last request; others may wait for their turn before it.
            self.cycle.keep_alive = False
        # TLS cannot close one side alone.
        return self.scheme == "http"

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP, or that `on_headers_complete` refuses."""
        self._refuse(*self._refusal)

    def _refuse(self, status: int, phrase: str, sentence: str) -> None:
        body = f'{{"error":"{sentence}"}}'
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        if self.cycle is None or self.cycle.response_complete or self._waits_for_body:
            self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
            self.transport.close()
        else:
            # Earlier requests are being answered. The connection ends after the last of these answers.
            self.cycle.keep_alive = False

    def _refuse_as_too_slow(self, what: str) -> str:
        """Answer with status 408, and return the message."""
        message = f"The {what} not sent within {self.stalled_secs:g} s."
        self._refuse(408, "Request Timeout", message)
        return message

    def _check(self, before: object) -> None:
        """Close the connection if it is where it was at the last look, and waits for the client."""
        now = self._progress()
        if now is not None and now == before:
            if self.flow.write_paused:
                # Closing in order would wait until the client has read what is buffered, which it does not.
                self.transport.abort()
            elif self._unfinished:
                self._refuse_as_too_slow("headers were")
            elif self._waits_for_body:
                # The application waits for the body, too. It finds the message here, for its metrics and access log.
                cast(Scope, self.scope)[TOO_SLOW] = self._refuse_as_too_slow("body was")
            else:
                self.transport.close()
            return
        self._checks = self.loop.call_later(self.stalled_secs, self._check, now)

    def _progress(self) -> object:
        """Return a value that stays the same while the client does not go on, or None if it has nothing to do.

        The client has to read if there is too much to send. Otherwise it has to send, with two exceptions. While the
        server answers a complete request, the limits of answers hold. While the connection is idle between two
        requests, uvicorn's timer runs.
        """
        if self.flow.write_paused:
            return "reading", self.cycle, self.transport.get_write_buffer_size()
        is_answered = self.cycle is None or self.cycle.response_complete
        if self._waits_for_body or (is_answered and (self._unfinished or self.timeout_keep_alive_task is None)):
            return "sending", self.cycle
        return None

    @property
    def _waits_for_body(self) -> bool:
        """Whether the application has the headers of a request, and waits for its body.

        While an earlier request is being answered, the next one waits for its turn, and not for the client.
        """
        cycle = self.cycle
        return cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline


class _JoiningTransport:
    """Transport that writes at once what was written in one turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            # The client may have gone since.
            if not self._transport.is_closing():
                self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()
