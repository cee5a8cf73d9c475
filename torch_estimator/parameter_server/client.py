"""The way to the parameter servers: every question gets its answer, whoever dies and comes back meanwhile."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import zmq

from torch_estimator.cluster.addresses import LOOPBACK, split_address, unresolved
from torch_estimator.errors import RESTART_ME, ClusterError, NanLossDuringTrainingError, UserError
from torch_estimator.parameter_server.curve import secure_client
from torch_estimator.parameter_server.key import Key
from torch_estimator.parameter_server.messages import (
    STEP,
    VARIABLE,
    Header,
    Kind,
    cut_up,
    is_small,
    pack_arrays,
    pack_json,
    unpack_arrays,
)
from torch_estimator.parameter_server.refusals import EVENTS, Refusal, has_key, monitored, refusal
from torch_estimator.parameter_server.spin_wait import Spin
from torch_estimator.train.preemption import Preempted

logger = logging.getLogger("torch_estimator")

# How soon a connection that was lost and made again is noticed; nothing else waits for it.
_LOOK_EVERY_MS = 50
_SAY_EVERY_SECS = 10.0
_LOOK_FOR_END_EVERY_SECS = 1.0
# For a connection that is made anew just when SIGTERM comes.
_MOST_SECS_TO_GO = 0.5
# One that is there may be busy, or hold this process back for the slowest one.
_MOST_SECS_TO_ANSWER = 5.0
_HEARTBEAT_MS = 2000
_SILENCE_MS = 10_000
_HANDSHAKES_IN_DOUBT = 5

Frames = Sequence[Any]


class TrainingIsOver(Exception):
    """A server does not answer, since it has ended with the training."""


class Links:
    """One connection to each parameter server.

    Args:
        name: Of this process.
        rank: The same.
        addresses: Of the servers.
        wait_secs: How long to wait for one that cannot be reached.
        key: That this process and the servers have, if any.

    Attributes:
        name: What the cluster calls this process.
        rank: Of this process.
        is_over: Asked while a server cannot be reached, or holds nothing of this training, whether that has ended.
        is_preempted: Asked while something is waited for, whether SIGTERM or Ctrl-C has asked this process to end.
        stop_signal: Returns which of the two, for the log.
        say_every_secs: How often to say that a server keeps this process waiting.
        held_secs: For how much longer a server that is there may keep this process waiting for slower ones.
    """

    def __init__(
        self, name: str, rank: int, addresses: Sequence[str], *, wait_secs: float, key: Key | None = None
    ) -> None:
        self.name = name
        self.rank = rank
        self._key = key
        self._life = secrets.randbits(63)
        self._number = 0
        self._wait_secs = wait_secs
        self._context = zmq.Context()
        self.is_over: Callable[[], bool] = lambda: False
        self.is_preempted: Callable[[], bool] = lambda: False
        self.stop_signal: Callable[[], str] = lambda: "SIGTERM"
        self.held_secs = 0.0
        self.say_every_secs = _SAY_EVERY_SECS
        try:
            self._links = [_Link(self._context, index, address, key) for index, address in enumerate(addresses)]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._links)

    def header(self, kind: Kind, flags: int = 0, step: int = 0) -> Header:
        """Of a new message; one for all servers."""
        self._number += 1
        return Header(kind, self.rank, flags, self._life, self._number, step)

    def ask(self, questions: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """Sends each question to its server; returns the answers.

        Raises:
            ClusterError: A server cannot be reached, or refuses.
            NanLossDuringTrainingError: A server refuses a gradient, which is not finite.
            Preempted: SIGTERM or Ctrl-C has come while a server cannot be reached, or does not answer.
        """
        self.send(questions)
        return self.collect(questions)

    def send(self, questions: Mapping[int, Frames]) -> None:
        """Sends each question to its server; `collect` is to follow, of several in the order in which they went."""
        for index, frames in questions.items():
            self._links[index].ask(frames)

    def collect(self, questions: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """Returns the answers to questions that were sent; see `ask`."""
        return {index: self._answer(self._links[index], frames) for index, frames in questions.items()}

    def tell_all(self, kind: Kind, flags: int = 0) -> list[tuple[Header, Mapping[str, Any]]]:
        """Asks all servers what takes no numbers; returns the answers with their JSON."""
        question = [self.header(kind, flags).pack()]
        answers = self.ask(dict.fromkeys(range(len(self)), question))
        return [(header, unpack_arrays(frames)[0] if len(frames) > 1 else {}) for header, frames in answers.values()]

    def start(self, index: int, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Gives a server its parameters."""
        self.ask({index: pack_arrays(self.header(Kind.START), content, arrays)})

    def deposit(self, position: Mapping[str, Any]) -> None:
        """Tells the first server where the input stands."""
        self.ask({0: pack_json(self.header(Kind.DEPOSIT), position)})

    def state(self) -> list[tuple[Header, dict[str, Any], dict[str, np.ndarray]]]:
        """All that the servers hold, and the steps they are at."""
        question = [self.header(Kind.STATE).pack()]
        answers = self.ask(dict.fromkeys(range(len(self)), question))
        return [
            (header, *(unpack_arrays(frames) if len(frames) > 1 else ({}, {}))) for header, frames in answers.values()
        ]

    def close(self) -> None:
        """Ends the connections."""
        self._context.destroy()

    def _answer(self, link: _Link, question: Frames) -> tuple[Header, Frames]:
        started = said = looked = time.monotonic()
        goes_at = math.inf
        number = Header.unpack(question[0]).number
        while True:
            came = link.answer_to(number)
            if came is not None:
                header, frames = came
                if header.kind is Kind.REFUSED:
                    raise self._refused(link.name, unpack_arrays(frames)[0])
                return header, frames
            now = time.monotonic()
            if link.was_connected_anew():
                link.ask_again()
            if link.refusal is not None:
                raise ClusterError(link.refusal.told_by(self.name, self._key, f"{link.name} at {link.address}"))
            if not link.is_connected and now > looked + _LOOK_FOR_END_EVERY_SECS:
                looked = now
                if self.is_over():
                    raise TrainingIsOver
            if self.is_preempted():
                goes_at = min(goes_at, now + (_MOST_SECS_TO_ANSWER if link.is_connected else _MOST_SECS_TO_GO))
                if now > goes_at:
                    why = "has not answered" if link.is_connected else "cannot be reached"
                    self._go(f"{link.name} at {link.address}, which {why}")
            most = self._wait_secs + (self.held_secs if link.is_connected else 0.0)
            if now > started + most:
                why = " and silence_secs of ParameterServerStrategy" if most > self._wait_secs else ""
                doubt = "" if link.was_ever_connected else unresolved(*split_address(link.address, link.name))
                lost = ClusterError(
                    f"{self.name} waited {most:g} s (session_creation_timeout_secs of RunConfig{why}) for "
                    f"{link.name} at {link.address}; see whether it runs and can be reached{doubt and f' ({doubt})'}."
                )
                if link.was_ever_connected:
                    # The address is right; there is nothing that must be changed before another start.
                    lost.exit_status = RESTART_ME
                raise lost
            if now > said + self.say_every_secs:
                said = now
                logger.warning("%s has waited %.0f s for %s at %s.", self.name, now - started, link.name, link.address)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Asks again and again.

        Raises:
            ClusterError: It has not come to be.
            Preempted: SIGTERM or Ctrl-C has come before.
            TrainingIsOver: It has ended before.
        """
        started = said = looked = time.monotonic()
        while not is_so():
            now = time.monotonic()
            if now > looked + _LOOK_FOR_END_EVERY_SECS:
                looked = now
                if self.is_over():
                    raise TrainingIsOver
            if self.is_preempted():
                self._go(what)
            if now > started + self._wait_secs:
                raise ClusterError(
                    f"{self.name} waited {self._wait_secs:g} s (session_creation_timeout_secs of RunConfig) for "
                    f"{what}; see whether it runs."
                )
            if now > said + _SAY_EVERY_SECS:
                said = now
                logger.warning("%s has waited %.0f s for %s.", self.name, now - started, what)
            time.sleep(_LOOK_EVERY_MS / 1000)

    def _refused(self, server: str, told: Mapping[str, Any]) -> UserError:
        """Return the error that ends a process which a server has refused."""
        if VARIABLE in told:
            return NanLossDuringTrainingError(
                f"The gradient of {told[VARIABLE]} became NaN or infinite at global step {told[STEP]}; try a smaller "
                f"learning rate or look for invalid values in the input. {server} has not applied it: the last "
                "checkpoint holds the state before it."
            )
        return ClusterError(f"{server} refuses {self.name}: {told['reason']}")

    def _go(self, waits_for: str) -> NoReturn:
        lost = "" if self.rank else ", so that no further checkpoint could be written"
        came = self.stop_signal()
        logger.error("%s came while %s waited for %s%s; start again to go on.", came, self.name, waits_for, lost)
        raise Preempted


class _Link:
    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], index: int, address: str, key: Key | None = None
    ) -> None:
        self.name, self.address = f"ps {index}", address
        self.is_connected = False
        self.refusal: Refusal | None = None
        self.was_ever_connected = False
        self._key = key
        self._doubts = 0
        self._has_had_key = False
        self._spin = Spin()
        # By number: questions without an answer, and answers that came before they were looked for.
        self._asked: dict[int, Frames] = {}
        self._early: dict[int, tuple[Header, Frames]] = {}
        self._socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 1000),
            (zmq.RECONNECT_IVL, 20),
            (zmq.RECONNECT_IVL_MAX, 200),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS),
        ):
            self._socket.setsockopt(option, value)
        if key is not None:
            secure_client(self._socket, key)
        self._monitor = self._socket.get_monitor_socket(EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._socket.setsockopt(zmq.IPV6, _needs_ipv6(address))
        try:
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            why = os.strerror(error.errno or 0)
            raise ClusterError(f"{address!r} of {self.name} is no address ({why}); name a host and a port.") from error

    def ask(self, question: Frames) -> None:
        """Sends a question, and again with each new connection until there is an answer."""
        self._asked[Header.unpack(question[0]).number] = question
        self._send(question)

    def ask_again(self) -> None:
        """Sends all questions that have no answer."""
        for question in self._asked.values():
            self._send(question)

    def answer_to(self, number: int) -> tuple[Header, Frames] | None:
        """The answer to a question, or what refuses any of them; None where a moment's waiting has brought none."""
        if number in self._early:
            return self._early.pop(number)
        if not self._spin.wait(self._is_there, self._comes):
            return None
        try:
            frames = [frame.buffer for frame in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None
        header = Header.unpack(frames[0])
        # What was asked again may be answered twice.
        if self._asked.pop(header.number, None) is None and header.kind is not Kind.REFUSED:
            return None
        if header.number == number or header.kind is Kind.REFUSED:
            return header, frames
        self._early[header.number] = header, frames
        return None

    def _is_there(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _comes(self) -> bool:
        return bool(self._socket.poll(_LOOK_EVERY_MS))

    def _send(self, frames: Frames) -> None:
        # Only a connection that was refused takes nothing; others keep it until they are connected.
        with suppress(zmq.Again):
            self._socket.send_multipart(cut_up(frames), zmq.NOBLOCK, copy=is_small(frames))

    def was_connected_anew(self) -> bool:
        """Whether what was sent may have been lost with the connection that it went through."""
        anew = False
        for event, value in monitored(self._monitor):
            self.is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            anew |= self.is_connected and self.was_ever_connected
            self.was_ever_connected |= self.is_connected
            self.refusal = self.refusal or refusal(event, value)
            self._look_at_doubt(event)
        return anew

    def _look_at_doubt(self, event: int) -> None:
        """A server ends the handshake with who has another key without a word, as one does that is killed."""
        if self.is_connected:
            self._doubts, self._has_had_key = 0, False
        self._doubts += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if self._key is not None and self._doubts >= _HANDSHAKES_IN_DOUBT:
            self._doubts = 0
            if self._has_had_key:
                self.refusal = Refusal.OTHER_KEY
            self._has_had_key = has_key(self.address)


def _needs_ipv6(address: str) -> bool:
    """Whether a host has addresses of IPv6 only; libzmq would ask for no others once it is told of IPv6."""
    host, port = split_address(address, "the address of a parameter server")
    if host in LOOPBACK:
        return host == "::1"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        # Names of machines that are to come are looked up by libzmq again.
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)
