"""Clients of a server: connections that ask again and again, and a record of what came back.

A client sends one request after the other on a connection, as HTTP libraries do. Like them, it sends a request once
more on a new connection if the server has closed one that was idle, so that nothing came back at all; these are counted
as sent again. Everything else that goes wrong with a valid request is a failure, unless the connection belonged to a
process that was killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

_LONGEST_SECS = 30.0
_AHEAD_SECS = 0.005

_GARBAGE = b"NONSENSE\r\n\r\n"


@dataclass(slots=True)
class Record:
    """What came back to the clients.

    `answered` counts valid requests with status 200, `refused` malformed ones with a status from 400 to 499, and
    `uncounted` those of them that are no HTTP, which the server's metrics do not count. Requests are `lost` if a killed
    process had them, and `sent_again` if an idle connection was closed. `latencies` are the seconds that each valid
    request took, and `started` is the number of connections opened. `failures` says in words what went wrong otherwise.
    """

    answered: int = 0
    refused: int = 0
    uncounted: int = 0
    lost: int = 0
    sent_again: int = 0
    failures: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    started: int = 0


class _Connection:
    """An open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.port: int = writer.get_extra_info("sockname")[1]
        self.asked = 0
        self.is_of_killed = False

    async def ask(self, request: bytes) -> tuple[int, bytes, bool]:
        """Send a request; return the status, the body, and whether the server closes the connection."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        self.asked += 1
        # Either a process that lives has this connection, or the killed process has answered before its end. In the
        # second case, the client sends its next request again, as on any used connection that is closed.
        self.is_of_killed = False
        return int(status.split()[1]), body, headers.get("connection") == "close"


class Load:
    """Clients that ask a server at a port of this machine until they are stopped; `record` has what came back so far.
    Other clients may share it.

    `connections` is the number of clients. `malformed` and `reconnecting` are the share of requests, from 0 to 1, that
    are malformed, and after which a client closes its connection. Each valid request has `rows` instances; None mixes
    small and large ones. A client waits `pause_secs` between two requests, and as long as `is_ahead` returns True.
    """

    def __init__(
        self,
        port: int,
        model: str,
        instances: Sequence[Mapping[str, Any]],
        *,
        connections: int,
        malformed: float = 0.0,
        reconnecting: float = 0.0,
        pause_secs: float = 0.0,
        rows: int | None = None,
        seed: int = 1,
        is_ahead: Callable[[], bool] = lambda: False,
        record: Record | None = None,
    ) -> None:
        self.record = record or Record()
        self._is_ahead = is_ahead
        self._port = port
        self._valid = _valid_requests(model, instances, rows)
        self._malformed = _malformed_requests(model, instances[0])
        self._share = malformed
        self._reconnecting = reconnecting
        self._pause_secs = pause_secs
        self._open: dict[int, _Connection] = {}
        self._lost_ports: set[int] = set()
        self._is_over = False
        self._may_refuse = False
        self._clients = [asyncio.create_task(self._client(random.Random(seed + one))) for one in range(connections)]

    async def stop(self) -> None:
        """Have every client end after the answer that it waits for.

        Raise the error of a client that has failed in a way that it does not know.
        """
        self._is_over = True
        await asyncio.gather(*self._clients)

    async def until_answered(self, count: int) -> None:
        """Wait until so many more valid requests have been answered."""
        wanted = self.record.answered + count
        while self.record.answered < wanted and not all(client.done() for client in self._clients):
            await asyncio.sleep(0.01)

    def expect_end(self) -> None:
        """Note that the server is about to end: a client for which it takes no new connection has ended, too."""
        self._may_refuse = True

    def expect_loss(self, ports: set[int]) -> None:
        """Note that the process that holds, or would accept, the connections from these ports is killed."""
        for port in ports & self._open.keys():
            self._open[port].is_of_killed = True
        # Connections that the system has made, and `_connect` has not returned yet.
        self._lost_ports = ports - self._open.keys()

    async def _client(self, rng: random.Random) -> None:
        connection: _Connection | None = None
        while not self._is_over:
            is_valid = rng.random() >= self._share
            request, rows = rng.choice(self._valid) if is_valid else (rng.choice(self._malformed), 0)
            connection = await self._ask(connection, request, rows)
            if connection is not None and rng.random() < self._reconnecting:
                self._close(connection)
                connection = None
            await asyncio.sleep(self._pause_secs)
            while self._is_ahead() and not self._is_over:
                await asyncio.sleep(_AHEAD_SECS)
        if connection is not None:
            self._close(connection)

    async def _ask(self, connection: _Connection | None, request: bytes, rows: int) -> _Connection | None:
        """Send a request and note what becomes of it; return the connection if it stays open."""
        began = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(_LONGEST_SECS):
                    connection = connection or await self._connect()
                    status, body, closes = await connection.ask(request)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                got_nothing = not (isinstance(error, asyncio.IncompleteReadError) and error.partial)
                failed, connection = connection, None
                if failed is not None:
                    self._close(failed)
                    if failed.is_of_killed:
                        self.record.lost += 1
                        return None
                    if failed.asked and got_nothing and not isinstance(error, TimeoutError):
                        self.record.sent_again += 1
                        continue
                if self._may_refuse and (failed is None or not failed.asked) and got_nothing:
                    self._is_over = True
                    return None
                which = "a new" if failed is None or not failed.asked else "a used"
                self.record.failures.append(f"a request on {which} connection failed: {error!r}")
                return None
            self._note(request, rows, status, body, time.monotonic() - began)
            if closes:
                self._close(connection)
                return None
            return connection

    async def _connect(self) -> _Connection:
        self.record.started += 1
        connection = _Connection(*await asyncio.open_connection("127.0.0.1", self._port))
        self._open[connection.port] = connection
        connection.is_of_killed = connection.port in self._lost_ports
        self._lost_ports.discard(connection.port)
        return connection

    def _close(self, connection: _Connection) -> None:
        connection.writer.close()
        if self._open.get(connection.port) is connection:
            del self._open[connection.port]

    def _note(self, request: bytes, rows: int, status: int, body: bytes, secs: float) -> None:
        record = self.record
        if not rows:
            if 400 <= status < 500:
                record.refused += 1
                record.uncounted += request == _GARBAGE
            else:
                record.failures.append(f"the malformed request {request[:200]!r} got status {status}: {body[:200]!r}")
        elif status == 200 and len(orjson.loads(body)["predictions"]) == rows:
            record.answered += 1
            record.latencies.append(secs)
        else:
            record.failures.append(f"a valid request of {rows} instances got status {status}: {body[:200]!r}")


def post(path: str, body: bytes) -> bytes:
    """Return a POST request of HTTP."""
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _valid_requests(model: str, instances: Sequence[Mapping[str, Any]], rows: int | None) -> list[tuple[bytes, int]]:
    """Return requests and their numbers of instances. Without a number, most have one, and a few have many."""
    path = f"/v1/models/{model}:predict"
    many = [*instances] * (1 + (rows or 100) // len(instances))
    groups = [[one] for one in instances] * 8 + [list(instances), many] if rows is None else [many[:rows]]
    return [(post(path, json.dumps({"instances": group}).encode()), len(group)) for group in groups]


def _malformed_requests(model: str, instance: Mapping[str, Any]) -> list[bytes]:
    path = f"/v1/models/{model}:predict"
    name = next(iter(instance))
    good = json.dumps({"instances": [instance]}).encode()
    bodies: list[bytes] = [
        b'{"instances": [',
        b'{"instances": []}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
        json.dumps({"instances": [{**instance, name: {"what": "is this"}}]}).encode(),
        json.dumps({"instances": [{**instance, f"no {name}": 1}]}).encode(),
    ]
    return [
        *(post(path, body) for body in bodies),
        post("/v1/models/nobody:predict", good),
        post(f"/v1/models/{model}/versions/999999:predict", good),
        post("/v1/models/../../etc/passwd", good),
        b"GET /v1/models/nobody/metadata HTTP/1.1\r\nhost: localhost\r\n\r\n",
        _GARBAGE,
    ]
