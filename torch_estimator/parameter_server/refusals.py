"""Why a parameter server and somebody who connects to it do not come together."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from torch_estimator.cluster.addresses import split_address
from torch_estimator.parameter_server.key import KEY_FILE, Key

EVENTS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
"""What a monitor has to tell."""

_PROBE_SECS = 1.0


class Refusal(Enum):
    """What is wrong."""

    ONE_KEY = auto()
    """One of the two has a key, the other has none."""
    OTHER_KEY = auto()
    FOREIGN = auto()
    """The other one is no part of a cluster."""
    GONE = auto()
    """Nobody knows; whoever sees first what is wrong leaves, so that the other one may not see it any more."""

    def told_by_server(self, name: str, key: Key | None) -> str:
        """The sentence of a server for its log."""
        match self:
            case Refusal.ONE_KEY if key is None:
                who = f"has a key, which this server has not ({KEY_FILE} is not set)"
            case Refusal.ONE_KEY:
                who = f"has no key ({KEY_FILE})"
            case Refusal.OTHER_KEY:
                who = f"has another key than this server ({KEY_FILE})"
            case Refusal.FOREIGN:
                who = "is no part of a torch-estimator cluster"
            case Refusal.GONE if key is None:
                who = (
                    "left in the middle of the handshake: its connection was lost, or it has a key, which this server "
                    f"has not ({KEY_FILE} is not set)"
                )
            case Refusal.GONE:
                who = f"left in the middle of the handshake, as one without the right key may do ({KEY_FILE})"
        return f"{name} has refused somebody who {who}."

    def told_by(self, name: str, key: Key | None, server: str) -> str:
        """The sentence of who has connected to `server`, a name and an address."""
        match self, key:
            case Refusal.ONE_KEY, None:
                return f"{server} asks for a key, but {name} has none; set {KEY_FILE} to the key file of the cluster."
            case Refusal.ONE_KEY, Key(path=path):
                return (
                    f"{server} has no key, but {name} has one, {path}; set {KEY_FILE} for all processes of the "
                    "cluster, or for none."
                )
            case Refusal.OTHER_KEY, Key(path=path):
                return (
                    f"{server} has another key than {name}, whose key file is {path}; set {KEY_FILE} to the same "
                    "key for all processes of the cluster."
                )
        return f"{server} does not answer {name} as a parameter server does; see what listens there."


def monitored(monitor: zmq.Socket[Any]) -> Iterator[tuple[int, int]]:
    """What has happened since the last call: events and their values."""
    while monitor.poll(0):
        message = recv_monitor_message(monitor)
        yield message["event"], message["value"]


def refusal(event: int, value: int) -> Refusal | None:
    """What an event tells for certain."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Refusal.OTHER_KEY
    if event != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return None
    match value:
        case zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return Refusal.ONE_KEY
        case zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return Refusal.OTHER_KEY
    return Refusal.FOREIGN


def has_key(address: str) -> bool:
    """Whether what listens there now is a server with a key, as its greeting says (https://rfc.zeromq.org/spec/23/)."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(52, b"\0")
    with suppress(OSError), socket.create_connection(split_address(address, "address"), _PROBE_SECS) as connection:
        connection.sendall(greeting)
        return connection.makefile("rb").read(len(greeting))[12:17] == b"CURVE"
    return False
