"""A worker's connections to the parameter servers.

Every request gets a reply even if its server or its connection dies in the meantime: the request is sent again through
each new connection until the reply has come. By the number of the request, a server recognises gradients that it has
already applied.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import zmq

from torch_estimator import activity
from torch_estimator.cluster.addresses import LOOPBACK, split_address, unresolved, warn_if_unresolved
from torch_estimator.errors import RESTART_ME, ClusterError, NanLossDuringTrainingError, UserError
from torch_estimator.parameter_server.encryption import (
    HANDSHAKE_EVENTS,
    Key,
    Refusal,
    read_events,
    reason_of_refusal,
    secure_client,
    server_has_key,
)
from torch_estimator.parameter_server.protocol import (
    OTHER_RUN,
    STEP,
    VARIABLE,
    Header,
    Kind,
    is_small,
    pack_arrays,
    pack_json,
    split_frames,
    unpack_arrays,
)
from torch_estimator.parameter_server.spin_wait import SpinWait
from torch_estimator.train.preemption import Preempted

logger = logging.getLogger("torch_estimator")

# Longest single wait for a reply. Between two waits a worker checks whether the connection was re-established. If it
# was, the worker sends its unanswered requests again.
_WAIT_MS = 50
_LOG_EVERY_SECS = 10.0
# A server that trains is missed sooner. Other replies, such as the whole state, may take that long to send.
_LOG_OUTAGE_AFTER_SECS = 2.0
_CHECK_FOR_END_EVERY_SECS = 1.0

# Limits on the wait for a reply after SIGTERM has come. A server that cannot be reached may only be reconnecting. A
# server that can be reached may be busy, or may hold back the reply until the slowest worker has caught up.
_MOST_SECS_TO_CONNECT = 0.5
_MOST_SECS_TO_REPLY = 5.0

_HEARTBEAT_MS = 2000
_HEARTBEAT_TIMEOUT_MS = 10_000
_MOST_UNEXPLAINED_HANDSHAKES = 5

Frames = Sequence[Any]


class TrainingIsOver(Exception):
    """The training has ended. Raised while this process waits for a server, or if the server holds another training."""


class ServerClient:
    """The connections of a worker to all parameter servers, one to each.

    While it waits, it calls `is_over` (has training ended?), `is_preempted` (has SIGTERM or Ctrl-C asked this process
    to end?) and `stop_signal` (the name of that signal). It waits for an unreachable server for ``wait_secs``, and for
    a reachable one ``held_back_secs`` longer, because that may hold back a reply until slower workers have caught up.
    `run_id` is 0 until it is known; `incarnation` is higher than that of the process that this one replaces.
    """

    def __init__(
        self, name: str, rank: int, addresses: Sequence[str], *, wait_secs: float, key: Key | None = None
    ) -> None:
        self.name = name
        self.rank = rank
        self._key = key
        self._addresses = addresses
        self.run_id = 0
        self.incarnation = time.time_ns()
        self._number = 0
        self._wait_secs = wait_secs
        self._context = zmq.Context()
        self.is_over: Callable[[], bool] = lambda: False
        self.is_preempted: Callable[[], bool] = lambda: False
        self.stop_signal: Callable[[], str] = lambda: "SIGTERM"
        self.held_back_secs = 0.0
        self.log_every_secs = _LOG_EVERY_SECS
        # The last request whose reply was late, and its connection.
        self._late: tuple[_Connection, int] | None = None
        for index, address in enumerate(addresses):
            warn_if_unresolved(name, f"ps {index}", address)
        try:
            self._connections = [
                _Connection(self._context, index, address, key) for index, address in enumerate(addresses)
            ]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._connections)

    def header(self, kind: Kind, flags: int = 0, step: int = 0) -> Header:
        """Return the header of a new request, with a new number. Several servers may get the same header."""
        self._number += 1
        return Header(kind, self.rank, flags, self.incarnation, self._number, step, self.run_id)

    def request(self, requests: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """Send requests, given by server index; wait for the replies and return them by server index.

        Raise `Preempted` if SIGTERM or Ctrl-C comes while a server does not reply, and `TrainingIsOver` if training has
        ended and a server cannot be reached or holds the next one.
        """
        self.send(requests)
        return self.collect(requests)

    def send(self, requests: Mapping[int, Frames]) -> None:
        """Send requests, given by server index, without waiting for the replies.

        Call `collect` for the replies. If several requests were sent to one server, collect their replies in the same
        order.
        """
        for index, frames in requests.items():
            self._connections[index].request(frames)

    def collect(self, requests: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """Wait for the replies to requests that `send` has sent; return them by server index.

        The errors are those of `request`.
        """
        return {index: self._wait_for_reply(self._connections[index], frames) for index, frames in requests.items()}

    def request_all(self, kind: Kind, flags: int = 0) -> list[tuple[Header, Mapping[str, Any]]]:
        """Send a request without a body to all servers; return the header and the decoded JSON of each reply."""
        request = [self.header(kind, flags).pack()]
        replies = self.request(dict.fromkeys(range(len(self)), request))
        return [(header, unpack_arrays(frames)[0] if len(frames) > 1 else {}) for header, frames in replies.values()]

    def start(self, parts: Mapping[int, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]) -> None:
        """Send START with its parameters to each of some servers, and wait until all of them hold these.

        `plan.Start` describes the content of a part, and `shard.Shard` its arrays.
        """
        self.request({index: pack_arrays(self.header(Kind.START), *part) for index, part in parts.items()})

    def another(self) -> ServerClient:
        """Return a client with connections of its own, for another thread."""
        client = ServerClient(self.name, self.rank, self._addresses, wait_secs=self._wait_secs, key=self._key)
        client.run_id, client.is_preempted = self.run_id, self.is_preempted
        return client

    def report_cursor(self, cursor: Mapping[str, Any]) -> None:
        """Report this process's input cursor (position in the input) to the first server."""
        self.request({0: pack_json(self.header(Kind.CURSOR), cursor)})

    def state(self) -> list[tuple[Header, dict[str, Any], dict[str, np.ndarray]]]:
        """Request the state of each server; return a header with its global step, the input cursors, and all arrays."""
        request = [self.header(Kind.STATE).pack()]
        replies = self.request(dict.fromkeys(range(len(self)), request))
        return [
            (header, *(unpack_arrays(frames) if len(frames) > 1 else ({}, {}))) for header, frames in replies.values()
        ]

    def waits_for(self) -> list[str]:
        """Return the server for whose late reply this process waits, if any. Other threads may call this."""
        late = self._late
        return [late[0].name] if late is not None and late[0].has_asked(late[1]) else []

    def close(self) -> None:
        """Close the connections to all servers."""
        self._context.destroy()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Call `condition` about 20 times a second until it returns True, for ``wait_secs`` at most.

        Raise `Preempted` or `TrainingIsOver` as `request` does. Messages say that this process waits for `what`.
        """
        started = logged = checked = time.monotonic()
        while not condition():
            now = time.monotonic()
            if now > checked + _CHECK_FOR_END_EVERY_SECS:
                checked = now
                if self.is_over():
                    raise TrainingIsOver
            if self.is_preempted():
                self._end_preempted(what)
            if now > started + self._wait_secs:
                raise ClusterError(
                    f"{self.name} waited {self._wait_secs:g} s (session_creation_timeout_secs of RunConfig) for "
                    f"{what}; see whether it runs."
                )
            if now > logged + _LOG_EVERY_SECS:
                logged = now
                logger.warning("%s has waited %.0f s for %s.", self.name, now - started, what)
            time.sleep(_WAIT_MS / 1000)

    def _wait_for_reply(self, connection: _Connection, request: Frames) -> tuple[Header, Frames]:
        with activity.SERVERS:
            return self._reply_of(connection, request)

    def _reply_of(self, connection: _Connection, request: Frames) -> tuple[Header, Frames]:
        started = logged = checked = time.monotonic()
        ends_at = math.inf
        asked = Header.unpack(request[0])
        while True:
            reply = connection.reply_to(asked.number)
            if reply is not None:
                header, frames = reply
                if logged > started:
                    secs = time.monotonic() - started
                    logger.info("%s has answered %s after %.0f s.", connection.name, self.name, secs)
                if header.kind is Kind.REFUSED:
                    content = unpack_arrays(frames)[0]
                    if content.get(OTHER_RUN) and self.is_over():
                        # Training ended while this process was disconnected, and the servers now hold another training.
                        raise TrainingIsOver
                    raise self._refused(connection.name, content)
                return header, frames
            now = time.monotonic()
            self._late = connection, asked.number
            if connection.has_reconnected():
                connection.resend()
            if connection.refusal is not None:
                server = f"{connection.name} at {connection.address}"
                raise ClusterError(connection.refusal.for_worker(self.name, self._key, server))
            if not connection.is_connected and now > checked + _CHECK_FOR_END_EVERY_SECS:
                checked = now
                if self.is_over():
                    raise TrainingIsOver
            if self.is_preempted():
                secs = _MOST_SECS_TO_REPLY if connection.is_connected else _MOST_SECS_TO_CONNECT
                ends_at = min(ends_at, now + secs)
                if now > ends_at:
                    why = "has not answered" if connection.is_connected else "cannot be reached"
                    self._end_preempted(f"{connection.name} at {connection.address}, which {why}")
            most = self._wait_secs + (self.held_back_secs if connection.is_connected else 0.0)
            if now > started + most:
                raise self._lost(connection, most)
            # A server that is connected may hold back the reply until slower workers have caught up.
            may_be_missed = asked.kind is Kind.EXCHANGE and not (connection.is_connected and self.held_back_secs)
            is_first = logged == started and may_be_missed
            if now > logged + (min(_LOG_OUTAGE_AFTER_SECS, self.log_every_secs) if is_first else self.log_every_secs):
                logged = now
                server = f"{connection.name} at {connection.address}"
                logger.warning("%s has waited %.0f s for %s.", self.name, now - started, server)

    def _lost(self, connection: _Connection, secs: float) -> ClusterError:
        """Return the error for a server that has not replied within `secs`."""
        why = " and silence_secs of ParameterServerStrategy" if secs > self._wait_secs else ""
        doubt = ""
        if not connection.was_ever_connected:
            doubt = unresolved(*split_address(connection.address, connection.name))
        error = ClusterError(
            f"{self.name} waited {secs:g} s (session_creation_timeout_secs of RunConfig{why}) for "
            f"{connection.name} at {connection.address}; see whether it runs and can be reached"
            f"{doubt and f' ({doubt})'}."
        )
        if connection.was_ever_connected:
            # The address has worked before, so nothing needs to be changed: ask the launcher to restart this process.
            error.exit_status = RESTART_ME
        return error

    def _refused(self, server: str, content: Mapping[str, Any]) -> UserError:
        """Return the error for a request that a server has refused."""
        if VARIABLE in content:
            return NanLossDuringTrainingError(
                f"The gradient of {content[VARIABLE]} became NaN or infinite at global step {content[STEP]}; try a "
                f"smaller learning rate or look for invalid values in the input. {server} has not applied it: the last "
                "checkpoint holds the state before it."
            )
        return ClusterError(f"{server} refuses {self.name}: {content['reason']}")

    def _end_preempted(self, waits_for: str) -> NoReturn:
        lost = "" if self.rank else ", so that no further checkpoint could be written"
        signal = self.stop_signal()
        logger.error("%s came while %s waited for %s%s; start again to go on.", signal, self.name, waits_for, lost)
        raise Preempted


class _Connection:
    """Connection to one server. ZeroMQ re-establishes it whenever it is lost."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], index: int, address: str, key: Key | None = None
    ) -> None:
        self.name, self.address = f"ps {index}", address
        self.is_connected = False
        self.was_ever_connected = False
        self.refusal: Refusal | None = None
        self._key = key
        self._unexplained_handshakes = 0
        self._has_found_key = False
        self._spin = SpinWait()
        # By message number: requests without a reply, and replies that arrived before `reply_to` was called for them.
        self._requests: dict[int, Frames] = {}
        self._early: dict[int, tuple[Header, Frames]] = {}
        self._socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 1000),
            (zmq.RECONNECT_IVL, 20),
            (zmq.RECONNECT_IVL_MAX, 200),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS),
        ):
            self._socket.setsockopt(option, value)
        if key is not None:
            secure_client(self._socket, key)
        self._monitor = self._socket.get_monitor_socket(
            HANDSHAKE_EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._socket.setsockopt(zmq.IPV6, _needs_ipv6(address))
        try:
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            why = os.strerror(error.errno or 0)
            raise ClusterError(f"{address!r} of {self.name} is no address ({why}); name a host and a port.") from error

    def request(self, frames: Frames) -> None:
        """Send a request, and store it until the reply has come."""
        self._requests[Header.unpack(frames[0]).number] = frames
        self._send(frames)

    def has_asked(self, number: int) -> bool:
        """Return whether the request with this number has no reply yet."""
        return number in self._requests

    def resend(self) -> None:
        """Send again all requests that have no reply yet."""
        for frames in self._requests.values():
            self._send(frames)

    def reply_to(self, number: int) -> tuple[Header, Frames] | None:
        """Return the reply to the request with this number; None if the reply has not come within `_WAIT_MS`.

        A refusal is returned for any `number`, because a server cannot repeat the number of a message that it cannot
        read.
        """
        if number in self._early:
            return self._early.pop(number)
        if not self._spin.wait(self._is_readable, self._poll):
            return None
        try:
            frames = [frame.buffer for frame in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None
        header = Header.unpack(frames[0])
        # A request that was sent twice may get two replies. Drop the second one.
        if self._requests.pop(header.number, None) is None and header.kind is not Kind.REFUSED:
            return None
        if header.number == number or header.kind is Kind.REFUSED:
            return header, frames
        self._early[header.number] = header, frames
        return None

    def has_reconnected(self) -> bool:
        """Return whether the connection was re-established since the last call. Earlier messages may have been lost."""
        reconnected = False
        for event, value in read_events(self._monitor):
            self.is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            reconnected |= self.is_connected and self.was_ever_connected
            self.was_ever_connected |= self.is_connected
            self.refusal = self.refusal or reason_of_refusal(event, value)
            self._check_for_other_key(event)
        return reconnected

    def _check_for_other_key(self, event: int) -> None:
        """Find out whether handshakes fail because the server has another key.

        A server that has another key closes the connection without giving a reason. A server that is killed does the
        same, and so does a proxy in front of a server that has not started yet. After several such handshakes in a row,
        probe the address: does a server with a key listen there? If two probes, with more failed handshakes in between,
        both find such a server, its key must be another one.
        """
        if self.is_connected:
            self._unexplained_handshakes, self._has_found_key = 0, False
        self._unexplained_handshakes += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if self._key is not None and self._unexplained_handshakes >= _MOST_UNEXPLAINED_HANDSHAKES:
            self._unexplained_handshakes = 0
            if self._has_found_key:
                self.refusal = Refusal.OTHER_KEY
            self._has_found_key = server_has_key(self.address)

    def _is_readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _poll(self) -> bool:
        return bool(self._socket.poll(_WAIT_MS))

    def _send(self, frames: Frames) -> None:
        # Ignore `zmq.Again`: the server has refused the handshake, which `_wait_for_reply` reports. In all other cases
        # the socket queues the message until it is connected.
        with suppress(zmq.Again):
            self._socket.send_multipart(split_frames(frames), zmq.NOBLOCK, copy=is_small(frames))


def _needs_ipv6(address: str) -> bool:
    """Return whether the host of an address has only IPv6 addresses.

    ZeroMQ connects to IPv6 addresses only if an option is set, and then ignores IPv4 addresses.
    """
    host, port = split_address(address, "the address of a parameter server")
    if host in LOOPBACK:
        return host == "::1"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        # The server's name may not exist until its machine has started. libzmq looks the name up again later.
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)
