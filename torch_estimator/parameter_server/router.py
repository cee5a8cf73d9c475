"""Socket of a parameter server: limits message sizes and queues, can encrypt, and tracks open connections."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import zmq

from torch_estimator.cluster.addresses import LOOPBACK, split_address
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.encryption import (
    HANDSHAKE_EVENTS,
    Key,
    Refusal,
    read_events,
    reason_of_refusal,
    secure_server,
)
from torch_estimator.parameter_server.protocol import MOST_FRAME_BYTES, Header, Kind, is_small

WAIT_MS = 500
"""How long `Router.receive` waits for a message."""

_SHORT_WAIT_MS = 20

# Maximum number of messages that ZeroMQ queues per connection and direction.
_MOST_QUEUED = 8

# Time limit of a handshake. Until a peer has proved that it has the key, ZeroMQ keeps what it sends in memory.
_HANDSHAKE_MS = 10_000

# Encryption adds less than this to the size of a frame.
_FRAME_EXTRA_BYTES = 1024

_OPTIONS = {
    zmq.LINGER: 1000,
    zmq.RCVTIMEO: WAIT_MS,
    # A reconnecting worker takes over its old routing id.
    zmq.ROUTER_HANDOVER: 1,
    # Sending to a closed connection raises EHOSTUNREACH, by which a server knows that a worker is gone.
    zmq.ROUTER_MANDATORY: 1,
    # Probe idle connections, because TCP alone would not notice that a machine has vanished. The kernel answers the
    # probes, so connections to a process that is stopped stay open.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
    # These options limit the memory that a peer can make the server use.
    zmq.MAXMSGSIZE: MOST_FRAME_BYTES + _FRAME_EXTRA_BYTES,
    zmq.RCVHWM: _MOST_QUEUED,
    zmq.SNDHWM: _MOST_QUEUED,
    zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
}


class Router:
    """Socket of a parameter server, of ZeroMQ's type ROUTER. The constructor binds the address, ``host:port``.

    The socket listens on loopback if that is the host, otherwise on all interfaces. Without a key it accepts every
    peer, without encryption. `connections` holds the file descriptors of all open connections, even if no message has
    come through them.
    """

    def __init__(self, name: str, address: str, key: Key | None) -> None:
        host, port = split_address(address, "the address of a parameter server")
        self.connections: set[int] = set()
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self.socket.setsockopt(option, value)
        self._monitor = self.socket.get_monitor_socket(HANDSHAKE_EVENTS | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        if key is not None:
            secure_server(self.socket, key)
        # Accept connections over IPv6, too. On a machine without IPv6 the option changes nothing.
        self.socket.setsockopt(zmq.IPV6, 1)
        local = "[::1]" if host == "::1" else "127.0.0.1"
        try:
            self.socket.bind(f"tcp://{local if host in LOOPBACK else '*'}:{port}")
        except zmq.ZMQError as error:
            self.close()
            why = os.strerror(error.errno or 0)
            raise ClusterError(
                f"{name} cannot listen on {address} ({why}); end what uses the port, or name another one."
            ) from error

    def receive(self) -> tuple[Any, list[Any]] | None:
        """Return the routing id and the frames of the next message; None if none comes within `WAIT_MS`.

        A signal begins the wait anew.
        """
        try:
            identity, *frames = self.socket.recv_multipart(copy=False)
        except zmq.Again:
            return None
        return identity, [frame.buffer for frame in frames]

    def shorten_waits(self) -> None:
        """Let `receive` wait 20 ms only. A signal handler may call this during a wait."""
        self.socket.setsockopt(zmq.RCVTIMEO, _SHORT_WAIT_MS)

    def send(self, identity: Any, frames: list[Any]) -> int:
        """Send a message without waiting; return 0, or EAGAIN or EHOSTUNREACH.

        EAGAIN says that the receiver has not read earlier messages, so that its queue is full; EHOSTUNREACH that its
        connection has ended.
        """
        for _ in range(2):
            try:
                self.socket.send_multipart([identity, *frames], zmq.NOBLOCK, copy=is_small(frames))
                return 0
            except zmq.ZMQError as error:
                if error.errno != zmq.EAGAIN:
                    return error.errno or zmq.EAGAIN
            # libzmq may not have noticed yet that messages have left its queue. Reading this option makes libzmq look
            # at the queue. Then try once more.
            self.socket.getsockopt(zmq.EVENTS)
        return zmq.EAGAIN

    def is_connected(self, identity: Any) -> bool:
        """Return whether the connection of a routing id is open, by sending it a message that workers ignore."""
        return self.send(identity, [Header(Kind.OK, 0).pack()]) != zmq.EHOSTUNREACH

    def failed_handshakes(self) -> Iterator[Refusal]:
        """Yield the reason of each handshake that has failed since the last call; update `connections`."""
        for event, value in read_events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self.connections.add(value)
            elif event == zmq.EVENT_DISCONNECTED:
                self.connections.discard(value)
            else:
                yield reason_of_refusal(event, value) or Refusal.GONE

    def close(self) -> None:
        """Close the socket, so that another process can use its address."""
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close()
        self._context.term()
