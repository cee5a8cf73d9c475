"""The messages of parameter servers over plain TCP instead of ZeroMQ, to measure what ZeroMQ costs.

Each process has one blocking connection to each server. A message is its frames, each behind its length. No process may
die, start late or reconnect.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch_estimator.parameter_server.client
import torch_estimator.parameter_server.process
from torch_estimator.cluster.addresses import split_address
from torch_estimator.parameter_server.client import Frames, ServerClient
from torch_estimator.parameter_server.protocol import Header, split_frames
from torch_estimator.parameter_server.server import ParameterServer
from torch_estimator.parameter_server.spin_wait import SpinWait

_COUNT = struct.Struct("<Q")
_MOST_SECS = 60.0


def use() -> None:
    """Have this process, a chief or a server, use plain TCP."""
    torch_estimator.parameter_server.client.ServerClient = RawClient  # type: ignore[misc]
    torch_estimator.parameter_server.process.ParameterServer = RawServer  # type: ignore[misc]


class RawServer(ParameterServer):
    """A server for one process."""

    def __init__(self, name: str, address: str, *arguments: Any, **settings: Any) -> None:
        super().__init__(name, address, *arguments, **settings)
        self._listener = socket.create_server(_raw(address))

    def serve(self) -> None:
        connection = _tuned(self._listener.accept()[0])
        while self._ended_at is None or (self._run is not None and self._run.members.active()):
            answer = self._answer([memoryview(frame) for frame in _receive(connection)])
            assert answer is not None
            _send(connection, answer)


class RawClient(ServerClient):
    """A client of one or several servers."""

    def __init__(self, name: str, rank: int, addresses: Sequence[str], **settings: Any) -> None:
        super().__init__(name, rank, addresses, **settings)
        self._raw = [_connected(_raw(address)) for address in addresses]
        self._spins = [SpinWait() for _ in addresses]

    def send(self, questions: Mapping[int, Frames]) -> None:
        for index, frames in questions.items():
            _send(self._raw[index], split_frames(frames))

    def collect(self, questions: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        answers = {}
        for index in questions:
            connection = self._raw[index]
            self._spins[index].wait(partial(_is_readable, connection, 0.0), partial(_is_readable, connection, None))
            answers[index] = [memoryview(frame) for frame in _receive(connection)]
        return {index: (Header.unpack(frames[0]), frames) for index, frames in answers.items()}

    def close(self) -> None:
        for connection in self._raw:
            connection.close()
        super().close()


def _raw(address: str) -> tuple[str, int]:
    """Return the address for plain TCP, beside that of ZeroMQ, which is bound as well."""
    host, port = split_address(address, "the address of a parameter server")
    return host, port + 20_000 if port < 40_000 else port - 20_000


def _connected(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + _MOST_SECS
    while True:
        try:
            return _tuned(socket.create_connection(address))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _tuned(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send(connection: socket.socket, frames: Sequence[Any]) -> None:
    views = [memoryview(frame).cast("B") for frame in frames]
    lengths = b"".join(_COUNT.pack(number) for number in (len(views), *map(len, views)))
    sent = connection.sendmsg([lengths, *views]) - len(lengths)
    for view in views:
        if sent < len(view):
            connection.sendall(view[max(0, sent) :])
        sent -= len(view)


def _receive(connection: socket.socket) -> list[bytearray]:
    (count,) = _COUNT.unpack(_exactly(connection, _COUNT.size))
    lengths = [_COUNT.unpack(_exactly(connection, _COUNT.size))[0] for _ in range(count)]
    return [_exactly(connection, length) for length in lengths]


def _is_readable(connection: socket.socket, secs: float | None) -> bool:
    return bool(select.select([connection], [], [], secs)[0])


def _exactly(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    missing = memoryview(content)
    while missing:
        count = connection.recv_into(missing)
        if not count:
            raise ConnectionResetError("the other process is gone")
        missing = missing[count:]
    return content
