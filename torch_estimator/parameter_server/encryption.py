"""Encryption and authentication between workers and parameter servers, by ZeroMQ's CURVE.

All processes of a cluster have the same key pair, in a file that the environment variable `KEY_FILE` names. A server
and a worker prove to each other that they have its secret half (https://rfc.zeromq.org/spec/26/), and encrypt
everything that they send afterwards. If a handshake fails, `Refusal` says why, as far as that can be known.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from torch_estimator import files
from torch_estimator.cluster.addresses import split_address
from torch_estimator.errors import InvalidValueError

KEY_FILE = "TORCH_ESTIMATOR_KEY_FILE"
"""Environment variable that names the key file."""

HANDSHAKE_EVENTS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Events of a socket monitor that `reason_of_refusal` understands."""

# Permission bits that a key file must not have: writing by its group, and any access by others. The group may read the
# file, because Kubernetes makes the files of a Secret readable for a group.
_TOO_OPEN = 0o027
_KEY_LENGTH = 40

# Address at which libzmq asks its authenticator whether to accept a peer (https://rfc.zeromq.org/spec/27/).
_AUTHENTICATION = "inproc://zeromq.zap.01"

_PROBE_SECS = 1.0


@dataclass(frozen=True, slots=True)
class Key:
    """A CURVE key pair. Both halves are in ZeroMQ's text encoding, Z85."""

    path: str
    public: bytes
    secret: bytes = field(repr=False)


def new_key() -> bytes:
    """Return the content of a key file."""
    _, secret = zmq.curve_keypair()
    return bytes(secret) + b"\n"


def make_key_file(path: str) -> None:
    """Write a new key into a new file that only this user can read."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(new_key())
    except FileExistsError as error:
        raise InvalidValueError(
            f"there is already something at {path}, which may be the key of a cluster; name another file."
        ) from error
    except OSError as error:
        raise InvalidValueError(f"the key cannot be written to {path}: {files.reason(error)}.") from error


def key_from_environment(environ: Mapping[str, str] = os.environ) -> Key | None:
    """Return the key in the file that TORCH_ESTIMATOR_KEY_FILE names; None if this variable is not set."""
    path = environ.get(KEY_FILE)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_KEY_LENGTH + 2).rstrip(b"\r\n")
    except OSError as error:
        raise InvalidValueError(
            f"the key file {path!r}, which {KEY_FILE} names, cannot be read: {files.reason(error)}; "
            "`estimator make-key FILE` makes one."
        ) from error
    if os.name == "posix" and mode & _TOO_OPEN:
        raise InvalidValueError(
            f"the key file {path!r}, which {KEY_FILE} names, is open to others (mode {mode:04o}); "
            "make a new one, or `chmod 600` it if nobody else can have read it."
        )
    try:
        return Key(path, zmq.curve_public(secret), secret)
    except (ValueError, zmq.ZMQError) as error:
        raise InvalidValueError(
            f"the key file {path!r}, which {KEY_FILE} names, holds no key that can be used ({error}); it must be as "
            "`estimator make-key` has written it."
        ) from error


def secure_server(socket: zmq.Socket[bytes], key: Key) -> None:
    """Make a server's socket accept only peers that have the key; call this before the socket is bound.

    This starts a thread, which ends when the socket's context is closed. A context can have only one such socket.
    """
    _use_key(socket, key)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    # Without an authenticator, libzmq would accept every peer that knows the public half of the key.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"torch-estimator")
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    requests = socket.context.socket(zmq.REP)
    requests.bind(_AUTHENTICATION)
    threading.Thread(target=_authenticate, args=(requests, key), name="ZAP", daemon=True).start()


def secure_client(socket: zmq.Socket[bytes], key: Key) -> None:
    """Make a worker's socket connect only to servers that have the key; call this before the socket connects."""
    _use_key(socket, key)
    socket.setsockopt(zmq.CURVE_SERVERKEY, key.public)


def _use_key(socket: zmq.Socket[bytes], key: Key) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret)


def _authenticate(requests: zmq.Socket[Any], key: Key) -> None:
    """Answer each request of libzmq whether to accept a peer, until the context is closed. Runs in a thread."""
    admitted = [b"CURVE", z85.decode(key.public)]
    with requests, suppress(zmq.ContextTerminated):
        while True:
            version, number, _domain, _address, _identity, *credentials = requests.recv_multipart()
            status = b"200" if credentials == admitted else b"400"
            requests.send_multipart([version, number, status, b"", b"", b""])


class Refusal(Enum):
    """Reason why the handshake between a parameter server and a peer has failed."""

    ONE_KEY = auto()
    """One of the two has a key, the other has none."""
    OTHER_KEY = auto()
    """The two have different keys."""
    FOREIGN = auto()
    """The peer does not belong to a cluster."""
    GONE = auto()
    """Unknown: the peer has closed the connection. If two peers have different keys, the first to notice that closes
    the connection, and the other one may learn nothing more."""

    def for_server(self, name: str, key: Key | None) -> str:
        """Return the sentence with which a server logs that it has refused a peer for this reason."""
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
        return f"{name} has refused a peer that {who}."

    def for_worker(self, name: str, key: Key | None, server: str) -> str:
        """Return the message of the error that a worker raises when its handshake has failed for this reason."""
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


def read_events(monitor: zmq.Socket[Any]) -> Iterator[tuple[int, int]]:
    """Yield the events of a socket monitor since the last call, each with its value."""
    while monitor.poll(0):
        message = recv_monitor_message(monitor)
        yield message["event"], message["value"]


def reason_of_refusal(event: int, value: int) -> Refusal | None:
    """Return why a handshake has failed; None if the event of the socket monitor does not show the reason."""
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


def server_has_key(address: str) -> bool:
    """Connect to an address; return whether a server with a key listens there.

    ZeroMQ's greeting names the security mechanism, before any handshake begins (https://rfc.zeromq.org/spec/23/).
    """
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(52, b"\0")
    with suppress(OSError), socket.create_connection(split_address(address, "address"), _PROBE_SECS) as connection:
        connection.sendall(greeting)
        return connection.makefile("rb").read(len(greeting))[12:17] == b"CURVE"
    return False
