"""Small pieces of HTTP for the routes that have to be fast: reading a body, and sending an answer."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from torch_estimator.json_text import shortened
from torch_estimator.web.errors import RequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")

_COMPRESSIONS = (b"gzip", b"x-gzip", b"deflate")

# Bytes that are inflated at once, between which the event loop answers other requests.
_INFLATED_AT_ONCE = 2**22

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
    """Return the body of a request, inflated. How long the client may take is for the connection to limit.

    Raise a RequestError if the body is too large, before or after it is inflated, or too slow, or cannot be inflated,
    and ClientGone if the client has closed the connection.
    """
    compressions = []
    for key, value in scope["headers"]:
        if key == b"content-length":
            if value.isdigit() and int(value) > most_bytes:
                raise _too_large(most_bytes)
        elif key == b"content-encoding" and value.lower() != b"identity":
            compressions.append(value.lower())
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
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    return await _inflated(body, b", ".join(compressions), most_bytes) if compressions else body


async def _inflated(body: bytes, compression: bytes, most_bytes: int) -> bytes:
    """Return a compressed body as it was, or raise a RequestError as soon as it is larger than `most_bytes`."""
    name = shortened(compression.decode("latin-1"))
    if compression not in _COMPRESSIONS:
        raise RequestError(415, f"The body has the Content-Encoding {name}; the server takes gzip and deflate.")
    # The 32 makes zlib find out by itself which of the two forms it is given.
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
    parts, size = [], 0
    while body and not inflate.eof:
        try:
            parts.append(inflate.decompress(body, min(_INFLATED_AT_ONCE, most_bytes - size + 1)))
        except zlib.error as error:
            raise RequestError(400, f"The body is not what its Content-Encoding {name} says: {error}.") from error
        size += len(parts[-1])
        if size > most_bytes:
            raise _too_large(most_bytes)
        body = inflate.unconsumed_tail
        if body:
            await asyncio.sleep(0)
    if not inflate.eof:
        raise RequestError(400, f"The body ends before its Content-Encoding {name} does; it has been cut off.")
    if inflate.unused_data:
        raise RequestError(400, f"{len(inflate.unused_data)} bytes follow the body in its Content-Encoding {name}.")
    return b"".join(parts)


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
    if error.allow:
        headers.append((b"allow", error.allow.encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await respond(send, error.status, error_body(error.message), headers)


def error_body(message: str) -> bytes:
    """Return the body of an error. A long message is cut, and what is no text in it is replaced."""
    if len(message) > _MOST_MESSAGE:
        message = f"{message[:_MOST_MESSAGE]}…"
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
