"""Small pieces of HTTP for the routes that have to be fast: reading a body, and sending an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from functools import partial
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
    message = await receive() if length == b"0" else await _first(receive, secs)
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > most_bytes:
            raise _too_large(most_bytes)
        return body
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(secs):
            while message.get("more_body", False):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError as error:
        raise _too_slow(secs) from error
    return b"".join(parts)


class _WithTimeout:
    """Awaitable that sets a timer only if the coroutine has to wait.

    The body of a small request is usually there when the request is, and setting a timer would take longer than reading
    the body.

    Args:
        coroutine: The coroutine.
        secs: Seconds that it may wait.

    Raises:
        TimeoutError: It has waited for longer.
    """

    def __init__(self, coroutine: Awaitable[MutableMapping[str, Any]], secs: float) -> None:
        self._coroutine = coroutine
        self._secs = secs

    def __await__(self) -> Generator[Any, Any, MutableMapping[str, Any]]:
        waiting = self._coroutine.__await__()
        try:
            first = next(waiting)
        except StopIteration as end:
            message: MutableMapping[str, Any] = end.value
            return message
        timeout = asyncio.timeout(self._secs)
        yield from timeout.__aenter__().__await__()
        try:
            message = yield from _resumed(waiting, first)
        except BaseException as error:
            yield from timeout.__aexit__(type(error), error, error.__traceback__).__await__()
            raise
        yield from timeout.__aexit__(None, None, None).__await__()
        return message


def _resumed(waiting: Generator[Any, Any, Any], first: Any) -> Generator[Any, Any, Any]:
    """Continue a generator whose first value has been taken already; return its result."""
    value = first
    while True:
        try:
            sent = yield value
        except BaseException as error:
            advance = partial(waiting.throw, error)
        else:
            advance = partial(waiting.send, sent)
        try:
            value = advance()
        except StopIteration as end:
            return end.value


async def _first(receive: Receive, secs: float) -> MutableMapping[str, Any]:
    try:
        return await _WithTimeout(receive(), secs)
    except TimeoutError as error:
        raise _too_slow(secs) from error


def _too_large(most_bytes: int) -> RequestError:
    return RequestError(413, f"The body is larger than {most_bytes / 2**20:g} MiB.")


def _too_slow(secs: float) -> RequestError:
    return RequestError(408, f"The body was not sent within {secs:g} s.")


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
