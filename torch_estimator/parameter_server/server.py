"""Serves parameters until training ends."""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Any

import zmq

from torch_estimator.cluster.addresses import LOOPBACK, split_address
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.clocks import Clocks
from torch_estimator.parameter_server.curve import secure_server
from torch_estimator.parameter_server.key import Key
from torch_estimator.parameter_server.messages import (
    PULLS,
    STOPS,
    Header,
    Kind,
    is_small,
    pack_arrays,
    pack_json,
    pack_parameters,
    unpack_arrays,
    unpack_exchange,
)
from torch_estimator.parameter_server.plan import ServerPlan
from torch_estimator.parameter_server.refusals import EVENTS, Refusal, monitored, refusal
from torch_estimator.parameter_server.shard import Shard

logger = logging.getLogger("torch_estimator")


POSITION, SINCE = "position", "since"
"""What the answer to a hello holds beside what the chief has given."""

_WAIT_MS = 500

_SAY_AGAIN_SECS = 60.0

# For those who have not heard yet that training is over.
_LINGER_SECS = 10.0


class ParameterServer:
    """One server; making it takes the address.

    Args:
        name: What the cluster calls it.
        address: ``host:port``. It listens on loopback where that is the host's name, else on all interfaces.
        key: Of those who are let in; None is everybody, unencrypted.

    Raises:
        ClusterError: The address cannot be used.
    """

    def __init__(self, name: str, address: str, key: Key | None = None) -> None:
        self._name = name
        self._key = key
        host, port = split_address(address, "the address of a parameter server")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        # Whoever comes again, comes in the place of the one that was there.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        self._monitor = self._socket.get_monitor_socket(EVENTS)
        if key is not None:
            secure_server(self._socket, key)
        try:
            self._socket.bind(f"tcp://127.0.0.1:{port}" if host in LOOPBACK else f"tcp://*:{port}")
        except zmq.ZMQError as error:
            self.close()
            why = os.strerror(error.errno or 0)
            raise ClusterError(
                f"{name} cannot listen on {address} ({why}); end what uses the port, or name another one."
            ) from error
        self._shard: Shard | None = None
        self._plan: ServerPlan | None = None
        self._about: dict[str, Any] = {}
        self._names: list[str] = []
        self._step = 0
        self._last_step: int | None = None
        self._stopped = False
        self._ended = False
        self._applied: dict[int, tuple[int, int]] = {}
        self._seen: dict[int, float] = {}
        self._left: set[int] = set()
        self._positions: dict[str, Any] = {}
        self._since: dict[int, int] = {}
        self._silent: set[int] = set()
        self._clocks = Clocks()
        self._waiting: list[tuple[Any, list[Any]]] = []
        self._silence_secs: float | None = None
        self._looked_at = 0.0
        self._refused: dict[Refusal, float] = {}
        logger.info("%s listens on %s%s.", name, address, f" for who has the key in {key.path}" if key else "")

    def serve(self) -> None:
        """Answers until training has ended and all who train know it."""
        ended_at: float | None = None
        while True:
            try:
                identity, *frames = self._socket.recv_multipart(copy=False)
            except zmq.Again:
                frames = []
            if frames:
                self._respond(identity, frames)
            self._look_around()
            if self._waiting:
                waiting, self._waiting = self._waiting, []
                for identity, frames in waiting:
                    # Its gradients were applied when it came.
                    self._respond(identity, frames)
            if self._ended:
                ended_at = ended_at or time.monotonic()
                if not self._active() or time.monotonic() > ended_at + _LINGER_SECS:
                    logger.info("%s ends: training is over.", self._name)
                    return

    def close(self) -> None:
        """Gives the address back."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()

    def _respond(self, identity: Any, frames: list[Any]) -> None:
        answer = self._answer([frame.buffer for frame in frames])
        if answer is None:
            self._waiting.append((identity, frames))
        else:
            self._socket.send_multipart([identity, *answer], copy=is_small(answer))

    def _answer(self, frames: list[Any]) -> list[Any] | None:
        """What to send back; None where its sender has to wait for slower ones."""
        try:
            header = Header.unpack(frames[0])
            self._hear(header.worker)
            return self._answers(header, frames)
        except ClusterError as error:
            logger.warning("%s", error)
            return pack_json(Header(Kind.REFUSED, 0), {"reason": str(error)})

    def _answers(self, header: Header, frames: list[Any]) -> list[Any] | None:
        match header.kind:
            case Kind.EXCHANGE:
                answer = self._exchange(header, frames[0])
                return None if answer is None else [answer]
            case Kind.HELLO:
                self._left.discard(header.worker)
                return pack_json(self._header(header, self._kind()), {**self._about, **self._place_of(header.worker)})
            case Kind.START:
                self._start(*unpack_arrays([bytes(frames[0]), *frames[1:]]))
                return [self._header(header, Kind.OK).pack()]
            case Kind.STATE if self._shard is not None:
                return pack_arrays(self._header(header, Kind.OK), {"positions": self._positions}, self._shard.arrays())
            case Kind.DEPOSIT:
                self._positions[str(header.worker)] = unpack_arrays(frames)[0]
                self._since[header.worker] = 0
                return [self._header(header, Kind.OK).pack()]
            case Kind.STATUS:
                self._clocks.rest(header.worker)
                return pack_json(self._header(header, self._kind()), self._whereabouts())
            case Kind.LEAVE:
                self._left.add(header.worker)
                self._stopped = self._stopped or bool(header.flags & STOPS)
                return [self._header(header, Kind.OK).pack()]
            case Kind.END:
                self._left.add(header.worker)
                self._ended = True
                return [self._header(header, Kind.OK).pack()]
        return [self._header(header, Kind.EMPTY).pack()]

    def _exchange(self, header: Header, message: Any) -> bytes | None:
        if self._shard is None or self._plan is None:
            return self._header(header, Kind.EMPTY).pack()
        push, pull = unpack_exchange(message, self._plan, header.flags)
        self._clocks.meet(header.worker, header.life, self._active())
        over = self._is_over()
        if push is not None and self._applied.get(header.worker) != (header.life, header.number):
            if over:
                return self._header(header, Kind.OVER).pack()
            self._shard.apply(push)
            self._step += 1
            self._since[header.worker] = self._since.get(header.worker, 0) + 1
            self._applied[header.worker] = header.life, header.number
            self._clocks.tick(header.worker)
        if not over and not self._clocks.may_go_on(header.worker, self._active()):
            return None
        if over or not header.flags & PULLS:
            return self._header(header, Kind.OVER if over else Kind.OK).pack()
        return pack_parameters(self._header(header, Kind.OK), *self._shard.parameters(pull))

    def _start(self, content: dict[str, Any], arrays: Any) -> None:
        self._plan = ServerPlan.from_json(content["plan"])
        self._shard = Shard(self._plan, arrays)
        self._about = content["about"]
        self._step, self._last_step = content["step"], content["last_step"]
        self._names, self._silence_secs = content["names"], content["silence_secs"]
        self._positions, self._since = dict(content["positions"]), {}
        self._stopped = self._ended = False
        self._applied.clear()
        self._clocks = Clocks(content["max_staleness"])
        count = sum(one.size for one in arrays.values())
        logger.info("%s holds %d numbers, from global step %d on.", self._name, count, self._step)

    def _place_of(self, worker: int) -> dict[str, Any]:
        """Where the input of a worker stood, and how many batches it has trained on since."""
        return {POSITION: self._positions.get(str(worker)), SINCE: self._since.get(worker, 0)}

    def _hear(self, worker: int) -> None:
        self._seen[worker] = time.monotonic()
        if worker in self._silent:
            self._silent.discard(worker)
            logger.info("%s is back.", self._names[worker])

    def _look_around(self) -> None:
        now = time.monotonic()
        if now > self._looked_at + _WAIT_MS / 1000:
            self._looked_at = now
            self._look_for_silence(now)
            self._look_for_refused(now)

    def _look_for_refused(self, now: float) -> None:
        for event, value in monitored(self._monitor):
            why = refusal(event, value) or Refusal.GONE
            if now > self._refused.get(why, -math.inf) + _SAY_AGAIN_SECS:
                # Of one who has been told of, more may follow.
                self._refused |= {why: now, Refusal.GONE: now}
                logger.warning("%s", why.told_by_server(self._name, self._key))

    def _look_for_silence(self, now: float) -> None:
        if self._silence_secs is None:
            return
        for worker in self._active():
            if now > self._seen[worker] + self._silence_secs:
                self._silent.add(worker)
                logger.warning(
                    "%s has sent nothing for %g s (silence_secs of ParameterServerStrategy): it hangs, or is gone.",
                    self._names[worker],
                    self._silence_secs,
                )

    def _is_over(self) -> bool:
        reached = self._last_step is not None and self._step >= self._last_step
        return reached or self._stopped or self._ended

    def _kind(self) -> Kind:
        return Kind.EMPTY if self._shard is None else Kind.OK

    def _header(self, question: Header, kind: Kind) -> Header:
        return question._replace(kind=kind, step=self._step)

    def _whereabouts(self) -> dict[str, list[int]]:
        """Ranks of those that train, that have left, and that have said nothing for long."""
        return {"active": sorted(self._active()), "left": sorted(self._left), "silent": sorted(self._silent)}

    def _active(self) -> set[int]:
        return set(self._seen) - self._left - self._silent
