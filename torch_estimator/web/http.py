"""Small pieces of HTTP for the routes that have to be fast: reading a body, and sending an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from torch_estimator.web.errors import RequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")

# Messages quote what the client has sent, which may be large.
_MOST_MESSAGE = 1000


TOO_SLOW = "torch_estimator.too_slow"
"""Key in the scope of a request whose body did not come in time: the message that the client got."""


class ClientGone(Exception):
    """The client has closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a request's header, named in lower case, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, *, most_bytes: int) -> bytes:
    """Return the body of a request. How long the client may take is for the connection to limit.

    Raise a RequestError if the body is compressed, too large or too slow, and ClientGone if the client has closed the
    connection.
    """
    for key, value in scope["headers"]:
        if key == b"content-length":
            if value.isdigit() and int(value) > most_bytes:
                raise _too_large(most_bytes)
        elif key == b"content-encoding" and value.lower() != b"identity":
            raise RequestError(415, "The server takes no compressed bodies; send it without Content-Encoding.")
    parts: list[bytes] = []
    size, is_complete = 0, False
    while not is_complete:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(408, scope[TOO_SLOW]) if TOO_SLOW in scope else ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most_bytes:
            raise _too_large(most_bytes)
        is_complete = not message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(most_bytes: int) -> RequestError:
    return RequestError(413, f"The body is larger than {most_bytes / 2**20:g} MiB.")


async def respond(send: Send, status: int, body: bytes, headers: Headers = (_JSON,)) -> None:
    """Send a response; `headers` are without the length."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: RequestError) -> None:
    """Send an error as ``{"error": …}``, the form of both protocols."""
    headers = [_JSON]
    if error.retry_secs is not None:
        headers.append((b"retry-after", str(error.retry_secs).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await respond(send, error.status, error_body(error.message), headers)


def error_body(message: str) -> bytes:
    """Return the body of an error. A long message is cut, and what is no text in it is replaced."""
    if len(message) > _MOST_MESSAGE:
        message = f"{message[:_MOST_MESSAGE]}…"
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
