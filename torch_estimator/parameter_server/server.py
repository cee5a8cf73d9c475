"""A parameter server: a loop that receives requests of workers and replies to them, until training ends."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from torch_estimator.cluster.addresses import LOOPBACK, split_address
from torch_estimator.cluster.task import WAIT_SECS
from torch_estimator.errors import RESTART_ME, ClusterError
from torch_estimator.parameter_server.encryption import (
    HANDSHAKE_EVENTS,
    Key,
    Refusal,
    read_events,
    reason_of_refusal,
    secure_server,
)
from torch_estimator.parameter_server.membership import IdleWatch, Incarnations, Membership
from torch_estimator.parameter_server.plan import Start
from torch_estimator.parameter_server.protocol import (
    MOST_FRAME_BYTES,
    PULLS,
    SAVED,
    STEP,
    STOP_ALL,
    STOPPING,
    VARIABLE,
    ExchangeBuffer,
    Header,
    Kind,
    is_small,
    join_frames,
    pack_arrays,
    pack_json,
    pack_parameters,
    unpack_arrays,
    unpack_exchange,
)
from torch_estimator.parameter_server.run import MOST_UNDER_WAY, Run
from torch_estimator.parameter_server.shard import NotFiniteGradientError, Shard

logger = logging.getLogger("torch_estimator")

_WAIT_MS = 500
# Where two periodic checks are further apart, this process itself was stopped.
_MOST_SECS_BETWEEN_CHECKS = 2.0

# Requests of one worker that are held back: those under way, and the same once more where the worker has lost its
# connection and has sent them again.
_MOST_HELD_BACK = 2 * MOST_UNDER_WAY

# Messages of one connection that ZeroMQ queues in each direction.
_MOST_QUEUED = 8

# What a peer has sent before it has proved that it has the key is kept for this long at most.
_HANDSHAKE_MS = 10_000

# More than what encryption adds to a frame.
_FRAME_EXTRA_BYTES = 1024

# On a busy machine the kernel may hold the address of a socket for a moment after it was closed.
_REBIND_SECS = 10.0
_REBIND_EVERY_SECS = 0.02

_WARN_EVERY_SECS = 60.0

# A machine that vanishes sends nothing any more, and TCP alone would not notice. A process that is stopped still
# answers these probes, since its kernel does.
_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3}

_LIMITS = {
    zmq.MAXMSGSIZE: MOST_FRAME_BYTES + _FRAME_EXTRA_BYTES,
    zmq.RCVHWM: _MOST_QUEUED,
    zmq.SNDHWM: _MOST_QUEUED,
    zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
}

# After SIGTERM: how long the chief may take to save what the server holds, and how long other servers that shut down
# as well may take to ask for that once the chief has read the parameters.
_STAY_SECS = 20.0
_STAY_AFTER_READ_SECS = 5.0

# After END: how long to wait for workers that do not know yet that training is over.
_LINGER_SECS = 10.0


class ParameterServer:
    """One server; the constructor binds its address.

    Args:
        name: Name of the server in the cluster.
        address: ``host:port``. The server listens on loopback where that is the host, else on all interfaces.
        key: Key of the peers that are let in; None lets everybody in, unencrypted.
        wait_secs: How long to wait for the chief's parameters, and for workers to come back.
        is_over: Returns whether the training has ended before; called while the server waits for the chief.
        incarnations: Workers of trainings that this process has served before; given, the server also ends without a
            complaint where no further training comes.
        clock: Returns monotonic seconds.

    Raises:
        ClusterError: The address cannot be used.
    """

    def __init__(
        self,
        name: str,
        address: str,
        key: Key | None = None,
        *,
        wait_secs: float = WAIT_SECS,
        is_over: Callable[[], bool] = lambda: False,
        incarnations: Incarnations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._address = address
        self._key = key
        self._is_over_before = is_over
        self._is_next = incarnations is not None
        self.incarnations = incarnations or Incarnations()
        self._clock = clock
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._monitor = self._open_socket()
        # The training that the server holds parameters of; it stays after END, for workers that do not know of that.
        self._run: Run | None = None
        self._ended = False
        # The highest step that workers have told of while the server holds nothing, for the chief that restores it.
        self._known_step = 0
        self._members = Membership(name, clock)
        self._watch = IdleWatch(name, address, wait_secs, clock)
        # File descriptors of the open connections, of which some may never have sent anything.
        self._connections: set[int] = set()
        # Requests without a reply, by worker, see `_reply`.
        self._held_back: dict[int, deque[tuple[Any, list[Any]]]] = defaultdict(lambda: deque(maxlen=_MOST_HELD_BACK))
        self._buffer = ExchangeBuffer()
        self._stop_signal = "SIGTERM"
        self._stops_at: float | None = None
        self._checked_at = 0.0
        self._warned_at: dict[Refusal | str, float] = {}
        if not self._is_next:
            logger.info("%s listens on %s%s.", name, address, f" for who has the key in {key.path}" if key else "")

    def _open_socket(self) -> zmq.Socket[Any]:
        """Bind the socket; return the monitor of its connections."""
        host, port = split_address(self._address, "the address of a parameter server")
        self._socket.setsockopt(zmq.LINGER, 1000)
        # HANDOVER: a reconnecting worker takes over its old routing id.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # MANDATORY: sending to a closed connection raises EHOSTUNREACH, by which a server knows that a worker is gone.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for option, value in (_KEEPALIVE | _LIMITS).items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        monitor = self._socket.get_monitor_socket(HANDSHAKE_EVENTS | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        if self._key is not None:
            secure_server(self._socket, self._key)
        # On a machine without IPv6 the option changes nothing.
        self._socket.setsockopt(zmq.IPV6, 1)
        local = "[::1]" if host == "::1" else "127.0.0.1"
        until = time.monotonic() + (_REBIND_SECS if self._is_next else 0.0)
        try:
            self._bind(f"tcp://{local if host in LOOPBACK else '*'}:{port}", until)
        except zmq.ZMQError as error:
            self._close(monitor)
            why = os.strerror(error.errno or 0)
            raise ClusterError(
                f"{self._name} cannot listen on {self._address} ({why}); end what uses the port, or name another one."
            ) from error
        return monitor

    def _bind(self, endpoint: str, until: float) -> None:
        """Bind; where the address is in use, try again until a time of the monotonic clock."""
        while True:
            try:
                self._socket.bind(endpoint)
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                    raise
            time.sleep(_REBIND_EVERY_SECS)

    def serve(self) -> None:
        """Reply to requests until training has ended and all workers know that.

        Raises:
            ClusterError: The chief has not come in time, or all workers have been gone for too long.
            SystemExit: The server has to shut down, and no worker needs it any more.
        """
        ended_at: float | None = None
        while True:
            try:
                identity, *frames = self._socket.recv_multipart(copy=False)
            except zmq.Again:
                pass
            else:
                self._reply(identity, [frame.buffer for frame in frames])
            self._check_periodically()
            self._retry_held_back()
            if self._ended:
                ended_at = ended_at or self._clock()
                is_stopping = self._stops_at is not None
                if is_stopping or not self._members.reachable() or self._clock() > ended_at + _LINGER_SECS:
                    logger.info("%s ends: training is over.", self._name)
                    return
                continue
            ended_at = None
            if self._stops_at is not None and (not self._members.reachable() or self._clock() >= self._stops_at):
                how_to_go_on = "" if self._is_next and self._run is None else "; start again to go on"
                logger.info("%s ends: %s asked for it%s.", self._name, self._stop_signal, how_to_go_on)
                raise SystemExit(RESTART_ME)

    def shut_down(self, stop_signal: str = "SIGTERM") -> None:
        """Have `serve` end as soon as the workers have saved what they need, or have gone.

        Args:
            stop_signal: Name of the signal that has asked for it, for the log.
        """
        self._stop_signal = stop_signal
        self._stops_at = self._clock() + _STAY_SECS

    def close(self) -> None:
        """Release the address."""
        self._close(self._monitor)

    def _close(self, monitor: zmq.Socket[Any]) -> None:
        self._socket.disable_monitor()
        monitor.close()
        self._socket.close()
        self._context.term()

    def _reply(self, identity: Any, frames: list[Any], *, again: bool = False) -> None:
        """Reply to a request, or hold it back.

        A request is held back for one of two reasons. The worker is too far ahead of the slowest one; or it has not
        read the replies before, so that ZeroMQ's queue for it is full. Only a pipelined exchange may wait for its
        sender to read: other requests come one at a time, and a peer that sends many of them must not have the server
        keep replies without end. Both are tried again after each message and every half second.
        """
        reply = self._answer(frames, identity, again=again)
        if reply is None or (self._send(identity, reply) == zmq.EAGAIN and _is_exchange(frames, reply)):
            self._held_back[Header.unpack(frames[0]).worker].append((identity, frames))

    def _retry_held_back(self) -> None:
        if not self._held_back:
            return
        held_back = [request for requests in self._held_back.values() for request in requests]
        self._held_back.clear()
        for identity, frames in held_back:
            # The push was applied when it came, and its number is remembered: only the reply is missing.
            header = Header.unpack(frames[0])
            if self._members.keep_waiting(header.worker, header.incarnation):
                self._reply(identity, frames, again=True)

    def _send(self, identity: Any, reply: list[Any]) -> int:
        """Send a reply; return 0, or the ZeroMQ error: EHOSTUNREACH where the connection has ended."""
        for _ in range(2):
            try:
                self._socket.send_multipart([identity, *reply], zmq.NOBLOCK, copy=is_small(reply))
                return 0
            except zmq.ZMQError as error:
                if error.errno != zmq.EAGAIN:
                    return error.errno or zmq.EAGAIN
            # libzmq may not have noticed yet that replies have left its queue; reading this option has it look.
            self._socket.getsockopt(zmq.EVENTS)
        return zmq.EAGAIN

    def _answer(self, frames: list[Any], identity: Any = None, *, again: bool = False) -> list[Any] | None:
        """Return the reply to a request; None where it has to be held back.

        No request may end the server: whatever goes wrong, the reply is a refusal, and the others are served on.

        Args:
            frames: The request.
            identity: Routing id of the connection that it came through.
            again: Whether the request was held back before.
        """
        try:
            header = Header.unpack(frames[0])
            self._members.check(header.worker, header.incarnation)
            if header.incarnation in self.incarnations.ended:
                return [header._replace(kind=Kind.OVER).pack()]
            if header.worker and self._run is not None and header.kind in (Kind.HELLO, Kind.EXCHANGE):
                self.incarnations.training.add(header.incarnation)
            reply = self._handle(header, frames)
            if not again:
                self._members.note_message(header.worker, identity)
                if header.kind is Kind.EXCHANGE and self._run is not None:
                    self._members.note_exchange(header.worker, header.incarnation, identity)
            return reply
        except NotFiniteGradientError as error:
            return self._refuse(error, **{VARIABLE: error.variable, STEP: header.step + 1})
        except ClusterError as error:
            return self._refuse(error)
        # Such as a message that asks for more memory than there is.
        except Exception as error:
            kind = type(error).__name__
            place = traceback.extract_tb(error.__traceback__)[-1]
            sentence = f"{self._name} cannot answer a message ({kind}), and goes on without."
            self._warn(f"{kind} {place.filename} {place.lineno}", sentence, error)
            return pack_json(Header(Kind.REFUSED, 0), {"reason": f"It cannot answer ({kind}); see its log."})

    def _refuse(self, error: ClusterError, **content: Any) -> list[Any]:
        # A refusal that differs in its numbers only is not logged again within a minute.
        self._warn(re.sub(r"\d+", "", str(error)), f"{self._name} has refused a message. {error}")
        return pack_json(Header(Kind.REFUSED, 0), {"reason": str(error), **content})

    def _handle(self, header: Header, frames: list[Any]) -> list[Any] | None:
        run, worker = self._run, header.worker
        match header.kind:
            case Kind.HELLO:
                self._members.join(worker)
                content = {} if run is None else {**run.about, **run.cursor(worker)}
                return pack_json(self._header(header, self._kind_for(worker)), content)
            case Kind.STATUS:
                if self._stops_at is not None and header.flags & SAVED:
                    # Steps from now on would be lost with the server.
                    self._stops_at = self._clock()
                if run is not None:
                    run.staleness.forget(worker)
                return pack_json(self._header(header, self._kind_for(worker)), self._members.status())
            case Kind.START:
                if worker:
                    raise ClusterError(
                        f"Only the chief gives {self._name} what it holds, and process {worker + 1} of the "
                        "cluster tried to; see whether two processes have the same TF_CONFIG."
                    )
                self._start(join_frames(frames))
                return [self._header(header, Kind.OK).pack()]
            case Kind.END:
                self._members.leave(worker)
                self._ended = True
                return [self._header(header, Kind.OK).pack()]
            case Kind.EXCHANGE | Kind.STATE | Kind.CURSOR | Kind.LEAVE if run is None:
                self._known_step = max(self._known_step, header.step)
                return [self._header(header, Kind.EMPTY).pack()]
            case Kind.EXCHANGE if run is not None:
                push, pull = unpack_exchange(self._buffer.join(frames, run.plan), run.plan, header.flags)
                kind = run.exchange(header, push, self._members.reachable(), over=self._is_over())
                if kind is None:
                    return None
                reply = self._header(header, kind)
                if kind is Kind.OVER or not header.flags & PULLS:
                    return [reply.pack()]
                return [pack_parameters(reply, *run.shard.parameters(pull))]
            case Kind.STATE if run is not None:
                if self._stops_at is not None:
                    # The chief has the parameters now, and is about to save those of other servers that shut down.
                    self._stops_at = min(self._stops_at, self._clock() + _STAY_AFTER_READ_SECS)
                return pack_arrays(self._header(header, Kind.OK), {"cursors": run.cursors()}, run.shard.snapshot())
            case Kind.CURSOR if run is not None:
                run.report_cursor(worker, unpack_arrays(join_frames(frames))[0])
                return [self._header(header, Kind.OK).pack()]
            case Kind.LEAVE if run is not None:
                self._members.leave(worker)
                run.stop_requested = run.stop_requested or bool(header.flags & STOP_ALL)
                return [self._header(header, Kind.OK).pack()]
        raise ClusterError(f"A process of the cluster has sent an answer, {header.kind.name}, where nobody has asked.")

    def _start(self, frames: list[Any]) -> None:
        # A copy, since the memory of the message goes with it.
        start, shard = _unpack_start([bytes(frames[0]), *frames[1:]])
        if self._ended:
            self.incarnations.end_training()
        self._run, self._ended = Run(self._name, start, shard), False
        self._members.begin(start.names, start.silence_secs)
        # Requests of the run before, whose ranks and parameters may be others.
        self._held_back.clear()
        logger.info("%s holds %d numbers, from global step %d on.", self._name, shard.size(), start.step)

    def _is_over(self) -> bool:
        return self._ended or (self._run is not None and self._run.is_over)

    def _kind_for(self, worker: int) -> Kind:
        """Return whether there is something that a worker can train with.

        When training is over there is not, except for the chief, which has to save the last step.
        """
        is_over = self._is_over() if worker else self._ended
        return Kind.EMPTY if self._run is None or is_over else Kind.OK

    def _header(self, request: Header, kind: Kind) -> Header:
        flags = request.flags | (STOPPING if self._stops_at is not None and request.kind is Kind.EXCHANGE else 0)
        step = self._known_step if self._run is None else self._run.step
        return request._replace(kind=kind, flags=flags, step=0 if kind is Kind.EMPTY and self._ended else step)

    def _check_periodically(self) -> None:
        """Look twice a second for connections and workers that are gone, and for reasons to end."""
        now = self._clock()
        if now <= self._checked_at + _WAIT_MS / 1000:
            return
        if self._checked_at and now > self._checked_at + _MOST_SECS_BETWEEN_CHECKS:
            self._members.forgive_silence()
        self._checked_at = now
        self._check_connections(now)
        if self._stops_at is not None and self._run is not None:
            # Not written by the signal handler, which may have interrupted another write to the log.
            self._warn("stops", f"{self._name} stays, for {_STAY_SECS:g} s at most, until what it holds is saved.")
        if self._run is None and not self._ended:
            self._ended = self._watch.wait_for_chief(now, self._is_over_before, logs=not self._is_next)
        elif self._run is not None and not self._ended:
            self._watch.wait_for_workers(
                now,
                self._run.step,
                connections=len(self._connections),
                is_active=bool(self._members.active()),
                is_over=self._is_over(),
            )
        gone = self._members.find_silent()
        if self._held_back or self._ended or self._stops_at is not None:
            # Nothing else needs to know at once. A worker that has asked for nothing ignores this message.
            probe = [Header(Kind.OK, 0).pack()]
            gone |= self._members.find_disconnected(lambda route: self._send(route, probe) != zmq.EHOSTUNREACH)
        if self._run is not None:
            for worker in gone:
                self._run.staleness.forget(worker)

    def _check_connections(self, now: float) -> None:
        for event, value in read_events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._connections.add(value)
            elif event == zmq.EVENT_DISCONNECTED:
                self._connections.discard(value)
            else:
                why = reason_of_refusal(event, value) or Refusal.GONE
                if self._warn(why, why.for_server(self._name, self._key)):
                    # The same peer may also have left in the middle of the handshake.
                    self._warned_at[Refusal.GONE] = now

    def _warn(self, about: Refusal | str, sentence: str, error: Exception | None = None) -> bool:
        """Log a warning, at most once a minute about the same; return whether it was logged."""
        now = self._clock()
        if now <= self._warned_at.get(about, -math.inf) + _WARN_EVERY_SECS:
            return False
        self._warned_at[about] = now
        logger.warning("%s", sentence, exc_info=error)
        return True


def _unpack_start(frames: Sequence[Any]) -> tuple[Start, Shard]:
    """Read START; return its settings, and a shard with its parameters.

    Raises:
        ClusterError: It makes no sense.
    """
    content, arrays = unpack_arrays(frames)
    try:
        start = Start.from_json(content)
        return start, Shard(start.plan, arrays)
    # The server has not changed anything yet, and whatever goes wrong, it is the message that is wrong.
    except Exception as error:
        raise ClusterError(
            f"What a process of the cluster has given to be held makes no sense ({type(error).__name__})."
        ) from error


def _is_exchange(request: list[Any], reply: list[Any]) -> bool:
    return Header.unpack(reply[0]).kind is Kind.OK and Header.unpack(request[0]).kind is Kind.EXCHANGE
