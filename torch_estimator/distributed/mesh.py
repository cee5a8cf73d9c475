"""All-gather over TCP: a mesh with one connection between every two processes of a group.

Synchronous training exchanges one message of a few hundred kilobytes per step. On CPUs, gloo's all-gather of such a
message can take longer than the rest of the step: 1.8 ms between two processes, against 0.6 ms with this mesh. gloo
wakes a thread and passes several messages for each call. The mesh sends and receives with non-blocking sockets in the
calling thread.

How the processes connect:

1. Each process listens on a free port and publishes ``mesh of rank <rank>`` = ``<address> <port>`` in the store.
2. Rank 0 publishes a random token.
3. Each process connects to all lower ranks and sends the token and its own rank to each. A process closes a connection
   that does not send the token, because any other program can connect to an open port.

In every later call each process sends its message to all others and receives theirs. All messages of one call have the
same size, which all processes know beforehand. So no length is sent.
"""

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
from torch_estimator.distributed.network import own_address

ADDRESS_KEY = "mesh of rank {}"
_TOKEN_KEY = "token of the mesh"
_TOKEN_BYTES = 32
_RANK_BYTES = 4
_BUFFER_BYTES = 1 << 21
_GREETING_SECS = 5.0
_POLL_SECS = 0.5

OnWait = Callable[[Collection[int]], None]
"""Callback that a waiting call runs about twice a second, with the ranks it waits for; may raise to end the wait."""

# Options of TCP that close the connections to a machine that has vanished from the network: after 30 s of silence, ask
# for a sign of life every 10 s, and give up after 9 missing answers or 120 s (120,000 ms) without an acknowledgement.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 9, "TCP_USER_TIMEOUT": 120_000}


class AllGatherMesh:
    """TCP connections of this process to all other processes of a group, made within `timeout_secs`; OSError otherwise.

    Only processes of the group should be able to read the store: it holds the token. The other processes reach the
    chief at `chief` (host and port), of which connections use only the host. `ranks` are ascending.
    """

    def __init__(
        self, store: Store, rank: int, ranks: Sequence[int], chief: tuple[str, int], timeout_secs: float
    ) -> None:
        self._rank = rank
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + timeout_secs
        family, own = own_address(*chief) if chief[0] else (socket.AF_INET, "127.0.0.1")
        try:
            with _listener(family, own, chief[0], rank) as listener:
                if rank == 0:
                    store.set(_TOKEN_KEY, secrets.token_hex(_TOKEN_BYTES // 2))
                token = _read(store, _TOKEN_KEY, deadline)
                store.set(ADDRESS_KEY.format(rank), f"{own} {listener.getsockname()[1]}")
                for peer in ranks[: ranks.index(rank)]:
                    address, _, port = _read(store, ADDRESS_KEY.format(peer), deadline).decode().partition(" ")
                    hosts = _hosts_to_try(address, chief[0], is_chief=peer == ranks[0])
                    connection = _connected(hosts, int(port), deadline)
                    connection.sendall(token + rank.to_bytes(_RANK_BYTES, "little"))
                    self._add_peer(peer, connection)
                while len(self._peers) < len(ranks) - 1:
                    self._accept(listener, token, deadline)
        except BaseException:
            self.close()
            raise

    def all_gather(
        self, sent: Tensor, received: Tensor, timeout_secs: float, on_wait: OnWait = lambda missing: None
    ) -> None:
        """Send a CPU tensor ``[n]`` to all processes and receive those of all, by rank, in `received` ``[size, n]``.

        `received` is contiguous. All processes have to send the same number of bytes. Rows of ranks that are not in the
        group stay as they are. `on_wait` is called while the call waits; if it raises, all connections are closed.
        Raise OSError if a process is gone, or if there was no progress for `timeout_secs`.
        """
        received[self._rank].copy_(sent)
        missing = {peer: _bytes_of(received[peer]) for peer in self._peers}
        self._exchange(dict.fromkeys(self._peers, _bytes_of(sent)), missing, timeout_secs, on_wait)

    def gather_to_chief(
        self, data: bytes, lengths: Sequence[int], timeout_secs: float, on_wait: OnWait = lambda missing: None
    ) -> list[bytes]:
        """Send the bytes of each process to rank 0; return them by rank there, and an empty list on all other ranks.

        `lengths` holds by rank the number of bytes that each process sends; 0 for ranks that are not in the group. The
        rest is as in `all_gather`.
        """
        if self._rank:
            self._exchange({0: memoryview(data)}, {}, timeout_secs, on_wait)
            return []
        received = [bytearray(length) for length in lengths]
        missing = {peer: memoryview(received[peer]) for peer in self._peers}
        self._exchange({}, missing, timeout_secs, on_wait)
        received[0][:] = data
        return [bytes(one) for one in received]

    def shut_down_sending(self) -> None:
        """Shut down sending, so that the peers see the end of the connections; `alive_peers` still works."""
        for connection in self._peers.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    def alive_peers(self) -> set[int]:
        """Return the ranks whose processes still hold their connections. Call it after `shut_down_sending`."""
        return {peer for peer, connection in self._peers.items() if not _has_ended(connection)}

    def close(self) -> None:
        """Close the connections, so that the peers notice the end of the connections."""
        for connection in self._peers.values():
            # Shut down first. Closing alone would not end the connection if a forked process has a copy of the socket.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._peers.clear()

    def _exchange(
        self, unsent: dict[int, memoryview], missing: dict[int, memoryview], timeout_secs: float, on_wait: OnWait
    ) -> None:
        """Send and receive until both dicts are empty. They hold, by peer, the rest to be sent and to be received."""
        try:
            # In every round, send and receive as much as the kernel's buffers allow, for all peers. Sending everything
            # first could deadlock: each of two processes would wait for the other one to empty its buffer.
            while True:
                for peer in list(unsent):
                    self._send(peer, unsent)
                for peer in list(missing):
                    self._receive(peer, missing)
                if not (unsent or missing):
                    return
                self._wait(unsent, missing, timeout_secs, on_wait)
        except OSError:
            raise
        except BaseException:
            # Close the connections: a part of a message may have been sent, so no other message can follow.
            self.close()
            raise

    def _send(self, peer: int, unsent: dict[int, memoryview]) -> None:
        with suppress(BlockingIOError):
            while rest := unsent[peer]:
                unsent[peer] = rest[self._peers[peer].send(rest) :]
            del unsent[peer]

    def _receive(self, peer: int, missing: dict[int, memoryview]) -> None:
        with suppress(BlockingIOError):
            while rest := missing[peer]:
                count = self._peers[peer].recv_into(rest)
                if count == 0:
                    raise ConnectionResetError("connection closed by the other process")
                missing[peer] = rest[count:]
            del missing[peer]

    def _wait(self, unsent: Collection[int], missing: Collection[int], timeout_secs: float, on_wait: OnWait) -> None:
        """Wait until at least one connection can send or has something to receive."""
        ready = select.poll()
        waits_for = {*unsent, *missing}
        for peer in waits_for:
            events = (select.POLLOUT if peer in unsent else 0) | (select.POLLIN if peer in missing else 0)
            ready.register(self._peers[peer], events)
        deadline = time.monotonic() + timeout_secs
        while not ready.poll(1000 * min(timeout_secs, _POLL_SECS)):
            on_wait(waits_for)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no message for {timeout_secs:g} s")

    def _accept(self, listener: socket.socket, token: bytes, deadline: float) -> None:
        """Accept one connection; keep it if the peer sends the group's token, otherwise close it."""
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
            self._add_peer(rank, connection)
        else:
            connection.close()

    def _add_peer(self, peer: int, connection: socket.socket) -> None:
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


def _has_ended(connection: socket.socket) -> bool:
    try:
        # Drop messages that arrived before the end of the connection: they belong to a generation that is over.
        while connection.recv(_BUFFER_BYTES):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _read(store: Store, key: str, deadline: float) -> bytes:
    """Wait until a process has written a key of the store; return the value of the key."""
    try:
        store.wait([key], datetime.timedelta(seconds=max(0.1, deadline - time.monotonic())))
    except RuntimeError as error:
        raise TimeoutError(f"timed out waiting for the {key}") from error
    return store.get(key)


def _listener(family: socket.AddressFamily, own: str, chief_host: str, rank: int) -> socket.socket:
    if not chief_host or chief_host in LOOPBACK or (rank and not ip_address(own).is_loopback):
        return socket.create_server((own, 0), family=family)
    # Listen on all addresses: the host name of this machine may resolve to loopback here, or to IPv4 here and to IPv6
    # on the other machines.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _hosts_to_try(address: str, chief_host: str, *, is_chief: bool) -> list[str]:
    """Return the hosts at which to try to reach a peer, the likeliest first.

    A peer is usually reached at the address that it has published. If that is a loopback address, the peer is on the
    chief's machine, which other machines reach by the chief's host name.
    """
    is_loopback = ip_address(address).is_loopback
    if not chief_host or not (is_chief or is_loopback):
        return [address]
    return [chief_host] if is_loopback else [address, chief_host]


def _connected(hosts: Sequence[str], port: int, deadline: float) -> socket.socket:
    for left in range(len(hosts), 0, -1):
        try:
            share = max(0.1, (deadline - time.monotonic()) / left)
            return socket.create_connection((hosts[-left], port), timeout=share)
        except OSError:
            if left == 1:
                raise
    raise AssertionError
