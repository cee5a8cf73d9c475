"""Serves parameters until training ends."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from torch_estimator.cluster.addresses import LOOPBACK, split_address
from torch_estimator.cluster.task import WAIT_SECS
from torch_estimator.errors import RESTART_ME, ClusterError
from torch_estimator.parameter_server.clocks import Clocks
from torch_estimator.parameter_server.curve import secure_server
from torch_estimator.parameter_server.finite import NotFiniteGradientError, check_finite
from torch_estimator.parameter_server.key import Key
from torch_estimator.parameter_server.messages import (
    GOES,
    MOST_FRAME_BYTES,
    PULLS,
    SAVED,
    STEP,
    STOPS,
    VARIABLE,
    Assembly,
    Header,
    Kind,
    Push,
    is_small,
    pack_arrays,
    pack_json,
    pack_parameters,
    put_together,
    unpack_arrays,
    unpack_exchange,
)
from torch_estimator.parameter_server.plan import ServerPlan
from torch_estimator.parameter_server.presence import Lives, Presence
from torch_estimator.parameter_server.refusals import EVENTS, Refusal, monitored, refusal
from torch_estimator.parameter_server.shard import Shard
from torch_estimator.parameter_server.start import AT_MOST, POSITION, SINCE, unpack_start

logger = logging.getLogger("torch_estimator")

_WAIT_MS = 500
# This process was stopped if it has not looked around for longer.
_MOST_SECS_BETWEEN = 2.0

# Gradients of one worker that may come again, in any order, because their answers were lost.
_MOST_UNDER_WAY = 2

# Questions of one worker that wait for slower workers, or for the worker to read the answers before. More than those
# under way are there only where it has lost its connection meanwhile, and has asked again.
_MOST_WAITING = 2 * _MOST_UNDER_WAY

# Messages of one connection that are kept each way: questions that were not looked at, and answers that were not read.
_MOST_QUEUED = 8

# Nothing that a process which has not proved that it has the key has sent is kept for longer.
_HANDSHAKE_MS = 10_000

# More than what encryption adds to a frame.
_FRAME_EXTRA_BYTES = 1024

# On a busy machine the system may hold the address of the training before for a moment after that socket was closed.
_REBIND_SECS = 10.0
_REBIND_EVERY_SECS = 0.02

_SAY_AGAIN_SECS = 60.0
_MOST_SECS_IDLE = 10.0

_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3}

_LIMITS = {
    zmq.MAXMSGSIZE: MOST_FRAME_BYTES + _FRAME_EXTRA_BYTES,
    zmq.RCVHWM: _MOST_QUEUED,
    zmq.SNDHWM: _MOST_QUEUED,
    zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
}

# For those who have to save what is here before they go.
_STAY_SECS = 20.0
_STAY_SAVED_SECS = 5.0

# For those who have not heard yet that training is over.
_LINGER_SECS = 10.0


class ParameterServer:
    """One server; making it takes the address.

    Args:
        name: What the cluster calls it.
        address: ``host:port``. It listens on loopback where that is the host's name, else on all interfaces.
        key: Of those who are let in; None is everybody, unencrypted.
        wait_secs: How long to wait for the chief to give it its parameters, and for anybody to come back.
        is_over: Asked while it waits, whether the training has ended before.
        over: Those who have trained in trainings that have ended here before, so that another one may come or not.
        clock: Seconds that only go forward.

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
        over: Lives | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._address = address
        self._key = key
        self._wait_secs = wait_secs
        self._is_over_before = is_over
        self._is_next = over is not None
        self.lives = over or Lives()
        self._clock = clock
        host, port = split_address(address, "the address of a parameter server")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        # Whoever comes again, comes in the place of the one that was there; and who is gone cannot be sent to.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A machine that has vanished says no word; one that is stopped is still there.
        for option, value in (_KEEPALIVE | _LIMITS).items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        self._monitor = self._socket.get_monitor_socket(EVENTS | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        if key is not None:
            secure_server(self._socket, key)
        # Without IPv6 on the machine, all interfaces are those that there are.
        self._socket.setsockopt(zmq.IPV6, 1)
        local = "[::1]" if host == "::1" else "127.0.0.1"
        until = time.monotonic() + (_REBIND_SECS if self._is_next else 0.0)
        try:
            self._bind(f"tcp://{local if host in LOOPBACK else '*'}:{port}", until)
        except zmq.ZMQError as error:
            self.close()
            why = os.strerror(error.errno or 0)
            raise ClusterError(
                f"{name} cannot listen on {address} ({why}); end what uses the port, or name another one."
            ) from error
        self._shard: Shard | None = None
        self._plan: ServerPlan | None = None
        self._about: dict[str, Any] = {}
        self._presence = Presence(name, clock)
        self._step = 0
        self._last_step: int | None = None
        self._stopped = False
        self._ended = False
        self._goes_at: float | None = None
        self._stop_signal = "SIGTERM"
        self._idle_since: float | None = None
        self._alone_since: float | None = None
        # Those that have a connection, whoever they are and however long they say nothing.
        self._connections: set[int] = set()
        # By worker the last ones, as life and number.
        self._applied: dict[int, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=_MOST_UNDER_WAY))
        self._positions: dict[str, Any] = {}
        self._since: dict[int, int] = {}
        self._not_told: set[int] = set()
        self._clocks = Clocks()
        self._assembly = Assembly()
        self._waiting: dict[int, deque[tuple[Any, list[Any]]]] = defaultdict(lambda: deque(maxlen=_MOST_WAITING))
        self._looked_at = 0.0
        self._said: dict[Refusal | str, float] = {}
        self._waits_since = self._said_at = clock()
        if not self._is_next:
            logger.info("%s listens on %s%s.", name, address, f" for who has the key in {key.path}" if key else "")

    def _bind(self, endpoint: str, until: float) -> None:
        """Listen; where the address is in use, try again until a time of the monotonic clock."""
        while True:
            try:
                self._socket.bind(endpoint)
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                    raise
            time.sleep(_REBIND_EVERY_SECS)

    def serve(self) -> None:
        """Answers until training has ended and all who train know it.

        Raises:
            ClusterError: No chief has come, or all who trained have been gone for long.
            SystemExit: It has to go, and nobody trains with it any more.
        """
        ended_at: float | None = None
        while True:
            try:
                identity, *frames = self._socket.recv_multipart(copy=False)
            except zmq.Again:
                frames = []
            if frames:
                self._respond(identity, [frame.buffer for frame in frames])
            try:
                self._look_around()
            except ClusterError:
                raise
            # Training goes on without what one look would have said.
            except Exception as error:
                self._say_failure("look after its workers", error)
            for identity, frames in self._held_back():
                # Its gradients were applied when it came.
                header = Header.unpack(frames[0])
                if self._presence.waits(header.worker, header.life):
                    self._respond(identity, frames, again=True)
            if self._ended:
                ended_at = ended_at or self._clock()
                goes = self._goes_at is not None
                if goes or not self._presence.connected() or self._clock() > ended_at + _LINGER_SECS:
                    logger.info("%s ends: training is over.", self._name)
                    return
                continue
            ended_at = None
            if self._goes_at is not None and (not self._presence.connected() or self._clock() >= self._goes_at):
                how_to_go_on = "" if self._is_next and self._shard is None else "; start again to go on"
                logger.info("%s ends: %s asked for it%s.", self._name, self._stop_signal, how_to_go_on)
                raise SystemExit(RESTART_ME)

    def go(self, stop_signal: str = "SIGTERM") -> None:
        """End as soon as those who train have saved what they need, or have gone.

        Args:
            stop_signal: What has asked for it, for the log.
        """
        self._stop_signal = stop_signal
        self._goes_at = self._clock() + _STAY_SECS

    def close(self) -> None:
        """Gives the address back."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()

    def _respond(self, identity: Any, frames: list[Any], *, again: bool = False) -> None:
        answer = self._answer(frames, identity, again=again)
        if answer is None or (self._send(identity, answer) == zmq.EAGAIN and _can_wait(frames, answer)):
            self._waiting[Header.unpack(frames[0]).worker].append((identity, frames))

    def _send(self, identity: Any, answer: list[Any]) -> int:
        """Send an answer; return 0, or ZeroMQ's number of why not: EHOSTUNREACH where the connection has ended."""
        for _ in range(2):
            try:
                self._socket.send_multipart([identity, *answer], zmq.NOBLOCK, copy=is_small(answer))
                return 0
            except zmq.ZMQError as error:
                if error.errno != zmq.EAGAIN:
                    return error.errno or zmq.EAGAIN
            # libzmq may not have noticed yet that answers have left; this has it look.
            self._socket.getsockopt(zmq.EVENTS)
        return zmq.EAGAIN

    def _answer(self, frames: list[Any], identity: Any = None, *, again: bool = False) -> list[Any] | None:
        """What to send back; None where its sender has to wait for slower ones."""
        try:
            header = Header.unpack(frames[0])
            self._presence.check(header.worker, header.life)
            if header.life in self.lives.over:
                return [header._replace(kind=Kind.OVER).pack()]
            if header.worker and self._shard is not None and header.kind in (Kind.HELLO, Kind.EXCHANGE):
                self.lives.at_work.add(header.life)
            answer = self._answers(header, frames)
            if not again:
                self._presence.hear(header.worker, identity)
                if header.kind is Kind.EXCHANGE and self._shard is not None:
                    self._presence.train(header.worker, header.life, identity)
            return answer
        except NotFiniteGradientError as error:
            return self._refusal(error, **{VARIABLE: error.variable, STEP: header.step + 1})
        except ClusterError as error:
            return self._refusal(error)
        # Others go on, whatever one message has done, such as ask for more memory than there is.
        except Exception as error:
            kind = self._say_failure("answer a message", error)
            return pack_json(Header(Kind.REFUSED, 0), {"reason": f"It cannot answer ({kind}); see its log."})

    def _say_failure(self, what: str, error: Exception) -> str:
        """Log an error that nobody has foreseen, with its traceback, at most once a minute; return its kind."""
        kind = type(error).__name__
        place = traceback.extract_tb(error.__traceback__)[-1]
        sentence = f"{self._name} cannot {what} ({kind}), and goes on without."
        self._say_again(f"{kind} {place.filename} {place.lineno}", sentence, error)
        return kind

    def _held_back(self) -> list[tuple[Any, list[Any]]]:
        """Return the questions that were held back, each with its route; they are held back no longer."""
        if not self._waiting:
            return []
        held = [one for several in self._waiting.values() for one in several]
        self._waiting.clear()
        return held

    def _refusal(self, error: ClusterError, **content: Any) -> list[Any]:
        # One that says the same of other numbers follows soon enough.
        self._say_again(re.sub(r"\d+", "", str(error)), f"{self._name} has refused a message. {error}")
        return pack_json(Header(Kind.REFUSED, 0), {"reason": str(error), **content})

    def _answers(self, header: Header, frames: list[Any]) -> list[Any] | None:
        match header.kind:
            case Kind.STATE | Kind.EXCHANGE | Kind.DEPOSIT | Kind.LEAVE if self._shard is None:
                # The chief is told how far the others have come with parameters that were lost.
                self._step = max(self._step, header.step)
                return [self._header(header, Kind.EMPTY).pack()]
            case Kind.EXCHANGE:
                answer = self._exchange(header, frames)
                return None if answer is None else [answer]
            case Kind.HELLO:
                self._presence.come(header.worker)
                return pack_json(
                    self._header(header, self._kind(header.worker)), {**self._about, **self._place_of(header.worker)}
                )
            case Kind.START:
                if header.worker:
                    raise ClusterError(
                        f"Only the chief gives {self._name} what it holds, and process {header.worker + 1} of the "
                        "cluster tried to; see whether two processes have the same TF_CONFIG."
                    )
                self._start(put_together(frames))
                return [self._header(header, Kind.OK).pack()]
            case Kind.STATE if self._shard is not None:
                if self._goes_at is not None:
                    # Somebody has it now; those who go, too, are about to say so.
                    self._goes_at = min(self._goes_at, self._clock() + _STAY_SAVED_SECS)
                return pack_arrays(self._header(header, Kind.OK), {"positions": self._places()}, self._shard.snapshot())
            case Kind.DEPOSIT:
                self._positions[str(header.worker)] = unpack_arrays(put_together(frames))[0]
                self._since[header.worker] = 0
                self._not_told.discard(header.worker)
                return [self._header(header, Kind.OK).pack()]
            case Kind.STATUS:
                if self._goes_at is not None and header.flags & SAVED:
                    # Steps from now on would be lost with it.
                    self._goes_at = self._clock()
                self._clocks.rest(header.worker)
                return pack_json(self._header(header, self._kind(header.worker)), self._presence.whereabouts())
            case Kind.LEAVE:
                self._presence.leave(header.worker)
                self._stopped = self._stopped or bool(header.flags & STOPS)
                return [self._header(header, Kind.OK).pack()]
            case Kind.END:
                self._presence.leave(header.worker)
                self._ended = True
                return [self._header(header, Kind.OK).pack()]
        raise ClusterError(f"A process of the cluster has sent an answer, {header.kind.name}, where nobody has asked.")

    def _exchange(self, header: Header, pieces: list[Any]) -> bytes | None:
        assert self._shard is not None
        assert self._plan is not None
        push, pull = unpack_exchange(self._assembly.exchange(pieces, self._plan), self._plan, header.flags)
        self._clocks.meet(header.worker, header.life, self._presence.connected())
        over = self._is_over()
        if push is not None and (header.life, header.number) not in self._applied[header.worker]:
            if over:
                return self._header(header, Kind.OVER).pack()
            check_finite(push, self._plan)
            self._apply(self._shard, push, header.worker)
            self._step += 1
            self._since[header.worker] = self._since.get(header.worker, 0) + 1
            self._applied[header.worker].append((header.life, header.number))
            self._clocks.tick(header.worker)
        if not over and not self._clocks.may_go_on(header.worker, self._presence.connected()):
            return None
        if over or not header.flags & PULLS:
            return self._header(header, Kind.OVER if over else Kind.OK).pack()
        return pack_parameters(self._header(header, Kind.OK), *self._shard.parameters(pull))

    def _apply(self, shard: Shard, push: Push, worker: int) -> None:
        try:
            # What grows beyond all numbers here is met by those who train as a loss that is none.
            with np.errstate(all="ignore"):
                shard.apply(push)
        # Optimizers stumble in many ways over settings and state that make no sense to them; both were sent.
        except Exception as error:
            raise ClusterError(
                f"{self._name} cannot update its parameters as {self._presence.name(worker)} asks "
                f"({type(error).__name__}: {error}); see the settings of the optimizers."
            ) from error

    def _start(self, frames: list[Any]) -> None:
        # The header's memory goes with the message.
        start, self._shard = unpack_start([bytes(frames[0]), *frames[1:]])
        self._plan, self._about = start.plan, dict(start.about)
        self._step, self._last_step = start.step, start.last_step
        if self._ended:
            self.lives.end()
        self._presence.begin(start.names, start.silence_secs)
        self._positions = dict(start.positions)
        ranks = range(len(start.names))
        self._since = {rank: self._positions.get(str(rank), {}).get(SINCE, 0) + start.lost for rank in ranks}
        self._not_told = set(ranks if start.lost else ())
        self._stopped = self._ended = False
        self._applied.clear()
        self._clocks = Clocks(start.max_staleness)
        logger.info("%s holds %d numbers, from global step %d on.", self._name, self._shard.size(), self._step)
        for identity, frames in self._held_back():
            # As if it came now: nobody has been heard yet, and its sender may be none of those that train any more.
            self._respond(identity, frames)

    def _place_of(self, worker: int) -> dict[str, Any]:
        """Where the input of a worker stood, and how many batches it has trained on since."""
        return {
            POSITION: self._positions.get(str(worker)),
            SINCE: self._since.get(worker, 0),
            AT_MOST: worker in self._not_told,
        }

    def _places(self) -> dict[str, Any]:
        """Of all who have told where their input stands."""
        return {rank: {**one, SINCE: self._since.get(int(rank), 0)} for rank, one in self._positions.items()}

    def _look_around(self) -> None:
        now = self._clock()
        if now > self._looked_at + _WAIT_MS / 1000:
            if self._looked_at and now > self._looked_at + _MOST_SECS_BETWEEN:
                self._presence.was_away()
            self._looked_at = now
            self._look_at_connections(now)
            if self._goes_at is not None and self._shard is not None:
                # A signal handler must not write, since it may have interrupted who does.
                self._say_again(
                    "goes", f"{self._name} stays, for {_STAY_SECS:g} s at most, until what it holds is saved."
                )
            if self._shard is None and not self._ended:
                self._look_for_chief(now)
            elif not self._ended:
                self._look_for_anybody(now)
            missed = self._presence.look_for_silence()
            if self._waiting or self._ended or self._goes_at is not None:
                # Those who have asked for nothing pass over it.
                missed |= self._presence.look_for_gone(
                    lambda route: self._send(route, [Header(Kind.OK, 0).pack()]) != zmq.EHOSTUNREACH
                )
            for worker in missed:
                self._clocks.rest(worker)

    def _look_at_connections(self, now: float) -> None:
        for event, value in monitored(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._connections.add(value)
                continue
            if event == zmq.EVENT_DISCONNECTED:
                self._connections.discard(value)
                continue
            why = refusal(event, value) or Refusal.GONE
            if self._say_again(why, why.told_by_server(self._name, self._key)):
                # Of one who has been told of, more may follow.
                self._said[Refusal.GONE] = now

    def _say_again(self, why: Refusal | str, sentence: str, error: Exception | None = None) -> bool:
        """Returns whether it was time to."""
        now = self._clock()
        if now <= self._said.get(why, -math.inf) + _SAY_AGAIN_SECS:
            return False
        self._said[why] = now
        logger.warning("%s", sentence, exc_info=error)
        return True

    def _look_for_chief(self, now: float) -> None:
        waited = now - self._waits_since
        if waited > self._wait_secs:
            raise ClusterError(
                f"{self._name} waited {self._wait_secs:g} s (session_creation_timeout_secs) for the chief to give it "
                f"its parameters; see whether that runs, and looks for {self._name} at {self._address}."
            )
        if now > self._said_at + _SAY_AGAIN_SECS:
            self._said_at = now
            self._ended = self._is_over_before()
            if not self._ended and not self._is_next:
                logger.warning("%s has waited %.0f s for the chief to give it its parameters.", self._name, waited)

    def _look_for_anybody(self, now: float) -> None:
        is_over = self._is_over()
        self._alone_since = None if self._connections else self._alone_since or now
        if self._connections and self._presence.active() and not is_over:
            self._idle_since = None
            return
        self._idle_since = self._idle_since or now
        waits_for = "the chief to save that and to end it" if is_over else "those who train to come back"
        if self._alone_since is not None and now > self._alone_since + self._wait_secs:
            raise ClusterError(
                f"{self._name} waited {self._wait_secs:g} s (session_creation_timeout_secs) for {waits_for}, and "
                f"nobody has, from global step {self._step} on; see their logs, and start all of them again: training "
                "goes on from the last checkpoint."
            )
        if now > self._idle_since + _MOST_SECS_IDLE and now > self._said_at + _SAY_AGAIN_SECS:
            self._said_at = now
            logger.warning("%s is at global step %d, and waits for %s.", self._name, self._step, waits_for)

    def _is_over(self) -> bool:
        reached = self._last_step is not None and self._step >= self._last_step
        return reached or self._stopped or self._ended

    def _kind(self, worker: int) -> Kind:
        # What is over is nothing to go on with; only the chief, which comes first, saves it.
        is_over = self._is_over() if worker else self._ended
        return Kind.EMPTY if self._shard is None or is_over else Kind.OK

    def _header(self, question: Header, kind: Kind) -> Header:
        flags = question.flags | (GOES if self._goes_at is not None and question.kind is Kind.EXCHANGE else 0)
        step = 0 if kind is Kind.EMPTY and self._ended else self._step
        return question._replace(kind=kind, flags=flags, step=step)


def _can_wait(question: list[Any], answer: list[Any]) -> bool:
    """Return whether a question can be answered again once its sender has read what was answered before.

    A worker that pipelines its steps may have so much to read; all other questions come alone.
    """
    return Header.unpack(answer[0]).kind is Kind.OK and Header.unpack(question[0]).kind is Kind.EXCHANGE
