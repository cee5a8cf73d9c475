"""Small pieces of HTTP for the routes that have to be fast: reading a body, and sending an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from torch_estimator.serving.errors import RequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")

# Messages quote what the client has sent, which may be large.
_MOST_MESSAGE = 1000


class ClientGone(Exception):
    """The client has closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a request's header, or None.

    Args:
        scope: The request.
        name: Name of the header in lower case.
    """
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, *, most_bytes: int, secs: float) -> bytes:
    """Return the body of a request.

    Args:
        scope: The request.
        receive: ASGI's function.
        most_bytes: Largest size.
        secs: Seconds that the client has to send it.

    Raises:
        RequestError: The body is too large, or the client too slow.
        ClientGone: The client has closed the connection.
    """
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > most_bytes:
        raise _too_large(most_bytes)
    parts: list[bytes] = []
    size, is_complete = 0, False
    try:
        async with asyncio.timeout(secs):
            while not is_complete:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most_bytes:
                    raise _too_large(most_bytes)
                is_complete = not message.get("more_body", False)
    except TimeoutError as error:
        raise RequestError(408, f"The body was not sent within {secs:g} s.") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(most_bytes: int) -> RequestError:
    return RequestError(413, f"The body is larger than {most_bytes / 2**20:g} MiB.")


async def respond(send: Send, status: int, body: bytes, headers: Headers = (_JSON,)) -> None:
    """Send an answer.

    Args:
        send: ASGI's function.
        status: HTTP status code.
        body: The body.
        headers: Headers, except the length.
    """
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: RequestError) -> None:
    """Send an error as ``{"error": …}``, the form of both protocols."""
    headers = [_JSON]
    if error.retry_secs is not None:
        headers.append((b"retry-after", str(error.retry_secs).encode()))
    if error.status == 408:
        # The rest of the body may never come. Where it does, as after 413, uvicorn reads and drops it, because a client
        # that is still sending when the connection is closed does not see the answer.
        headers.append((b"connection", b"close"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await respond(send, error.status, error_body(error.message), headers)


def error_body(message: str) -> bytes:
    """Return the body of an error. A long message is cut, and what is no text in it is replaced."""
    if len(message) > _MOST_MESSAGE:
        message = f"{message[:_MOST_MESSAGE]}…"
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
