"""Connections between all processes of a group, through which each gives all others its message."""

from __future__ import annotations

import datetime
import secrets
import select
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from ipaddress import ip_address

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # documented

from torch_estimator.cluster.addresses import LOOPBACK
from torch_estimator.distributed.interface import own_address

_PLACE = "mesh of rank {}"
_TOKEN = "token of the mesh"
_TOKEN_BYTES = 32
_RANK_BYTES = 4
_BUFFER_BYTES = 1 << 21
_GREETING_SECS = 5.0
_HEED_EVERY_SECS = 0.5

Heed = Callable[[Collection[int]], None]

# When a machine that has vanished without a word is taken for gone.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 9, "TCP_USER_TIMEOUT": 120_000}


class Mesh:
    """One TCP connection between every two processes.

    Args:
        store: What all of the group see, and nobody else.
        rank: Of this process.
        ranks: Of all of them, in ascending order, the first one's in front.
        first: Host and port at which the others reach the first one; of these, the host matters here.
        secs: How long to wait for the others.

    Raises:
        OSError: One of them cannot be reached, or did not come in time.
    """

    def __init__(self, store: Store, rank: int, ranks: Sequence[int], first: tuple[str, int], secs: float) -> None:
        self._rank = rank
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + secs
        family, own = own_address(*first) if first[0] else (socket.AF_INET, "127.0.0.1")
        try:
            with _listener(family, own, first[0], rank) as listener:
                if rank == 0:
                    store.set(_TOKEN, secrets.token_hex(_TOKEN_BYTES // 2))
                token = _told(store, _TOKEN, deadline)
                store.set(_PLACE.format(rank), f"{own} {listener.getsockname()[1]}")
                for peer in ranks[: ranks.index(rank)]:
                    host, _, port = _told(store, _PLACE.format(peer), deadline).decode().partition(" ")
                    connection = _connected(_hosts(host, first[0], is_first=peer == ranks[0]), int(port), deadline)
                    connection.sendall(token + rank.to_bytes(_RANK_BYTES, "little"))
                    self._take(peer, connection)
                while len(self._peers) < len(ranks) - 1:
                    self._accept(listener, token, deadline)
        except BaseException:
            self.close()
            raise

    def gather(self, sent: Tensor, received: Tensor, secs: float, heed: Heed = lambda missing: None) -> None:
        """Gives everybody everybody's tensor.

        Args:
            sent: ``[n]``, on the CPU, of the same size everywhere.
            received: ``[size, n]``, filled but for the rows of those that have no part in it.
            secs: How long to wait for anything to come or to go.
            heed: Called now and then with whom this process waits for; ends the connections where it raises.

        Raises:
            OSError: A process is gone, or has been silent for too long.
        """
        received[self._rank].copy_(sent)
        missing = {peer: _bytes_of(received[peer]) for peer in self._peers}
        self._exchange(dict.fromkeys(self._peers, _bytes_of(sent)), missing, secs, heed)

    def collect(
        self, data: bytes, lengths: Sequence[int], secs: float, heed: Heed = lambda missing: None
    ) -> list[bytes]:
        """Gives rank 0 everybody's bytes.

        Args:
            data: Of this process.
            lengths: By rank, how many everybody gives; 0 for those that have no part in it.
            secs: How long to wait for anything to come or to go.
            heed: As in `gather`.

        Returns:
            By rank what they gave; nothing anywhere else.

        Raises:
            OSError: A process is gone, or has been silent for too long.
        """
        if self._rank:
            self._exchange({0: memoryview(data)}, {}, secs, heed)
            return []
        given = [bytearray(length) for length in lengths]
        self._exchange({}, {peer: memoryview(given[peer]) for peer in self._peers}, secs, heed)
        given[0][:] = data
        return [bytes(one) for one in given]

    def _exchange(self, unsent: dict[int, memoryview], missing: dict[int, memoryview], secs: float, heed: Heed) -> None:
        try:
            self._send_and_receive(unsent, missing, secs, heed)
        except OSError:
            raise
        except BaseException:
            # Half a message may be on its way; nothing must follow it.
            self.close()
            raise

    def _send_and_receive(
        self, unsent: dict[int, memoryview], missing: dict[int, memoryview], secs: float, heed: Heed
    ) -> None:
        while True:
            for peer in list(unsent):
                self._send(peer, unsent)
            for peer in list(missing):
                self._receive(peer, missing)
            if not (unsent or missing):
                return
            self._wait(unsent, missing, secs, heed)

    def leave(self) -> None:
        """Ends the connections on this side, which the others notice; `alive` can still be asked."""
        for connection in self._peers.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    def alive(self) -> set[int]:
        """Those that have not ended their connection, and whose process has not; after `leave`."""
        return {peer for peer, connection in self._peers.items() if not _is_ended(connection)}

    def close(self) -> None:
        """Ends the connections, which the others notice."""
        for connection in self._peers.values():
            # A process that was forked meanwhile may hold them, too.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._peers.clear()

    def _send(self, peer: int, unsent: dict[int, memoryview]) -> None:
        """Sends what can be sent at once."""
        with suppress(BlockingIOError):
            while rest := unsent[peer]:
                unsent[peer] = rest[self._peers[peer].send(rest) :]
            del unsent[peer]

    def _receive(self, peer: int, missing: dict[int, memoryview]) -> None:
        """Receives what there is."""
        with suppress(BlockingIOError):
            while rest := missing[peer]:
                count = self._peers[peer].recv_into(rest)
                if count == 0:
                    raise ConnectionResetError("connection closed by the other process")
                missing[peer] = rest[count:]
            del missing[peer]

    def _wait(self, unsent: Collection[int], missing: Collection[int], secs: float, heed: Heed) -> None:
        """Waits until something can be sent or received."""
        ready = select.poll()
        waits_for = {*unsent, *missing}
        for peer in waits_for:
            events = (select.POLLOUT if peer in unsent else 0) | (select.POLLIN if peer in missing else 0)
            ready.register(self._peers[peer], events)
        deadline = time.monotonic() + secs
        while not ready.poll(1000 * min(secs, _HEED_EVERY_SECS)):
            heed(waits_for)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no message for {secs:g} s")

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
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._peers[peer] = connection


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().view(torch.uint8).numpy()).cast("B")  # type: ignore[arg-type]  # numpy's stubs know no buffer


def _is_ended(connection: socket.socket) -> bool:
    try:
        # What was sent before the end is of no use any more.
        while connection.recv(_BUFFER_BYTES):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _told(store: Store, key: str, deadline: float) -> bytes:
    """What one of them has said of itself, or will."""
    try:
        store.wait([key], datetime.timedelta(seconds=max(0.1, deadline - time.monotonic())))
    except RuntimeError as error:
        raise TimeoutError(f"timed out waiting for the {key}") from error
    return store.get(key)


def _listener(family: socket.AddressFamily, own: str, first: str, rank: int) -> socket.socket:
    if not first or first in LOOPBACK or (rank and not ip_address(own).is_loopback):
        return socket.create_server((own, 0), family=family)
    # The name of this very machine may lead to loopback here, and to another family of addresses elsewhere.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _hosts(host: str, first: str, *, is_first: bool) -> list[str]:
    """Where a process may be reached: where it says, or, if that is loopback there, on the machine of the first one."""
    if not first or not (is_first or ip_address(host).is_loopback):
        return [host]
    return [first] if ip_address(host).is_loopback else [host, first]


def _connected(hosts: Sequence[str], port: int, deadline: float) -> socket.socket:
    for left in range(len(hosts), 0, -1):
        try:
            share = max(0.1, (deadline - time.monotonic()) / left)
            return socket.create_connection((hosts[-left], port), timeout=share)
        except OSError:
            if left == 1:
                raise
    raise AssertionError
