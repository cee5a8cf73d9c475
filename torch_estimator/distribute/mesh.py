"""Connections between all processes of a group, through which each gives all others its message."""

from __future__ import annotations

import secrets
import select
import socket
import time
from contextlib import suppress

from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # documented

_PLACE = "mesh of rank {}"
_TOKEN = "token of the mesh"
_TOKEN_BYTES = 32
_RANK_BYTES = 4
_BUFFER_BYTES = 1 << 21
_GREETING_SECS = 5.0

# When a machine that has vanished without a word is taken for gone.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 9, "TCP_USER_TIMEOUT": 120_000}


class Mesh:
    """One TCP connection between every two processes.

    Args:
        store: What all of the group see, and nobody else.
        rank: Of this process.
        size: How many they are.
        first: Host and port at which the others reach the first one; of these, the host matters here.
        secs: How long to wait for the others.

    Raises:
        OSError: One of them cannot be reached, or did not come in time.
    """

    def __init__(self, store: Store, rank: int, size: int, first: tuple[str, int], secs: float) -> None:
        self._rank = rank
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + secs
        own = _own_address(first)
        try:
            with socket.create_server((own if rank else "", 0), backlog=size) as listener:
                if rank == 0:
                    store.set(_TOKEN, secrets.token_hex(_TOKEN_BYTES // 2))
                token = store.get(_TOKEN)
                store.set(_PLACE.format(rank), f"{own} {listener.getsockname()[1]}")
                for peer in range(rank):
                    host, _, port = store.get(_PLACE.format(peer)).decode().partition(" ")
                    place = (host if peer else first[0] or own, int(port))
                    self._take(peer, socket.create_connection(place, timeout=max(0.1, deadline - time.monotonic())))
                    self._peers[peer].sendall(token + rank.to_bytes(_RANK_BYTES, "little"))
                while len(self._peers) < size - 1:
                    self._accept(listener, token, deadline)
        except BaseException:
            self.close()
            raise

    def gather(self, sent: Tensor, received: Tensor) -> None:
        """Gives everybody everybody's tensor.

        Args:
            sent: ``[n]``, on the CPU, of the same size everywhere.
            received: ``[size, n]``, filled.

        Raises:
            OSError: A process is gone.
        """
        if not sent.numel():
            return
        received[self._rank].copy_(sent)
        message = _bytes_of(sent)
        unsent = dict.fromkeys(self._peers, message)
        self._send(unsent)
        for peer, connection in self._peers.items():
            missing = _bytes_of(received[peer])
            while missing:
                if unsent:
                    self._wait(unsent, connection)
                    self._send(unsent)
                with suppress(BlockingIOError):
                    count = connection.recv_into(missing, 0, socket.MSG_DONTWAIT if unsent else 0)
                    if count == 0:
                        raise ConnectionResetError("connection closed by the other process")
                    missing = missing[count:]
        while unsent:
            self._wait(unsent)
            self._send(unsent)

    def close(self) -> None:
        """Ends the connections, which the others notice."""
        for connection in self._peers.values():
            connection.close()
        self._peers.clear()

    def _send(self, unsent: dict[int, memoryview]) -> None:
        """Sends as much as can be sent at once."""
        for peer, rest in list(unsent.items()):
            with suppress(BlockingIOError):
                unsent[peer] = rest[self._peers[peer].send(rest, socket.MSG_DONTWAIT) :]
                if not unsent[peer]:
                    del unsent[peer]

    def _wait(self, unsent: dict[int, memoryview], also: socket.socket | None = None) -> None:
        """Waits until something can be sent, or there is something from another one."""
        ready = select.poll()
        for peer in unsent:
            ready.register(self._peers[peer], select.POLLOUT)
        if also is not None:
            ready.register(also, select.POLLIN | (select.POLLOUT if any(self._peers[p] is also for p in unsent) else 0))
        ready.poll()

    def _accept(self, listener: socket.socket, token: bytes, deadline: float) -> None:
        """Waits for one that connects; who does not know the token is none of them."""
        listener.settimeout(max(0.1, deadline - time.monotonic()))
        connection, _ = listener.accept()
        connection.settimeout(_GREETING_SECS)
        greeting = b""
        with suppress(OSError):
            while len(greeting) < _TOKEN_BYTES + _RANK_BYTES:
                part = connection.recv(_TOKEN_BYTES + _RANK_BYTES - len(greeting))
                if not part:
                    break
                greeting += part
        rank = int.from_bytes(greeting[_TOKEN_BYTES:], "little")
        if secrets.compare_digest(greeting[:_TOKEN_BYTES], token) and rank not in self._peers:
            self._take(rank, connection)
        else:
            connection.close()

    def _take(self, peer: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._peers[peer] = connection


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type]  # numpy's stubs know no buffer


def _own_address(first: tuple[str, int]) -> str:
    """The address of this machine on the way to the first process."""
    if not first[0]:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        # Sends nothing: the kernel chooses the address that it would send from.
        way.connect(first)
        return str(way.getsockname()[0])
