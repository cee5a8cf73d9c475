"""Sockets that encrypt what they send and speak only with who has the key, by ZeroMQ's CURVE.

A server and who asks it prove to each other that they have the secret half of the same pair; see
https://rfc.zeromq.org/spec/26/.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils import z85

from torch_estimator.parameter_server.key import Key

_QUESTIONS = "inproc://zeromq.zap.01"


def secure_server(socket: zmq.Socket[bytes], key: Key) -> None:
    """To be done before `socket` is bound, and once in its context, whose end it is part of."""
    _have(socket, key)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    # libzmq would let everybody in who knows the public half if nobody answered it.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"torch-estimator")
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    questions = socket.context.socket(zmq.REP)
    questions.bind(_QUESTIONS)
    threading.Thread(target=_answer, args=(questions, key), name="ZAP", daemon=True).start()


def secure_client(socket: zmq.Socket[bytes], key: Key) -> None:
    """To be done before `socket` is connected."""
    _have(socket, key)
    socket.setsockopt(zmq.CURVE_SERVERKEY, key.public)


def _have(socket: zmq.Socket[bytes], key: Key) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret)


def _answer(questions: zmq.Socket[Any], key: Key) -> None:
    """Tells libzmq who is let in (https://rfc.zeromq.org/spec/27/), until the context ends."""
    admitted = [b"CURVE", z85.decode(key.public)]
    with questions, suppress(zmq.ContextTerminated):
        while True:
            version, number, _domain, _address, _identity, *credentials = questions.recv_multipart()
            status = b"200" if credentials == admitted else b"400"
            questions.send_multipart([version, number, status, b"", b"", b""])
