"""Whatever somebody sends, a server refuses it with a sentence, holds what it held, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.parameter_server.test_server import ARRAYS, GIVEN, PLAN, Served, served  # noqa: F401
from tests.properties.trials import tried
from torch_estimator.engine.served.links import Links
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.messages import (
    PULLS,
    PUSHES,
    Header,
    Kind,
    Push,
    pack_arrays,
    pack_exchange,
    pack_json,
    unpack_arrays,
)

Message = list[bytes]

# Servers import torch for its optimizers, which takes seconds.
LIGHT = {**GIVEN["plan"], "groups": GIVEN["plan"]["groups"][:1] * 2}

PUSH = Push(
    np.array([0.5, 0.25]), np.ones(2, np.uint8), np.ones(5, np.float32), [(np.array([1, 3]), np.ones((2, 1), "f4"))]
)


LIFE = 7


def packed(kind: Kind, worker: int = 0, flags: int = 0) -> bytes:
    return Header(kind, worker, flags, life=LIFE, number=1).pack()


def start(**content: Any) -> Message:
    given = {**GIVEN, "plan": LIGHT, "step": 5, **content}
    return [bytes(one) for one in pack_arrays(Header(Kind.START, 0), given, ARRAYS)]


def exchange(flags: int, push: Push | None, *rows: int) -> bytes:
    return pack_exchange(Header(Kind.EXCHANGE, 0, flags, life=LIFE, number=1), push, [np.array(rows, np.int64)])


VALID: list[Message] = [
    [packed(Kind.HELLO)],
    [packed(Kind.STATE)],
    [packed(Kind.STATUS)],
    pack_json(Header(Kind.DEPOSIT, 1), {"row": 7}),
    start(positions={"1": {"row": 3, "since": 2}}),
    [exchange(PULLS, None, 3, 0)],
    [exchange(PUSHES, PUSH)],
    [exchange(PUSHES | PULLS, PUSH, 2)],
]

MALFORMED: dict[str, tuple[Message, str]] = {
    "nothing": ([b""], "no part of a torch-estimator cluster"),
    "no kind": ([packed(Kind.HELLO)[:6] + b"\x63" + packed(Kind.HELLO)[7:]], "a message of kind 99, which is none"),
    "an answer": ([packed(Kind.OK)], "has sent an answer, OK, where nobody has asked"),
    "another cluster's": ([packed(Kind.HELLO, 7)], "ps 0 serves chief 0, worker 0, and has heard .* be number 8 of"),
    "a negative number": ([packed(Kind.STATUS, -1)], "has heard of a process that would be number 0 of them"),
    "no content": ([packed(Kind.START)], r"cannot be read \(IndexError\)"),
    "no JSON": ([packed(Kind.DEPOSIT), b"{"], r"cannot be read \(JSONDecodeError\)"),
    "no object": ([packed(Kind.DEPOSIT), b"[1]"], r"cannot be read \(TypeError\)"),
    "no plan": (start(plan={}), r"given to be held makes no sense \(KeyError\)"),
    "other shapes": (
        start(plan={**LIGHT, "tables": [{"name": "wide", "rows": 5, "dim": 1, "group": 0}]}),
        r"makes no sense \(ValueError\)",
    ),
    "nobody": (start(names=[]), r"makes no sense \(ValueError\)"),
    "a step before all": (start(step=-1), r"makes no sense \(ValueError\)"),
    "no array": (start()[:-1], r"cannot be read \(ValueError\)"),
    "half a push": ([exchange(PUSHES, PUSH)[:-1]], "ends before what it is to hold"),
    "more than a push": ([exchange(PUSHES, PUSH) + b"\0"], "is longer than what it is to hold"),
    "no counts": ([packed(Kind.EXCHANGE, flags=PULLS)], "ends before what it is to hold"),
    "a row too many": ([exchange(PULLS, None, 4)], "names a row that wide has not, of 4"),
    "a negative row": ([exchange(PULLS, None, -1)], "names a row that wide has not, of 4"),
    "rows of no table": (
        [exchange(PUSHES, PUSH._replace(tables=[(np.array([9, 1]), np.ones((2, 1), "f4"))]))],
        "names a row that wide has not, of 4",
    ),
}


class Stranger:
    """Somebody who sends anything."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, message: Message) -> tuple[Kind, str]:
        """What kind of answer there was, and why it was a refusal."""
        self._socket.send_multipart(message)
        frames = self._socket.recv_multipart()
        kind = Header.unpack(frames[0]).kind
        return kind, unpack_arrays(frames)[0]["reason"] if kind is Kind.REFUSED else ""


@pytest.fixture
def stranger(served: Served) -> Iterator[Stranger]:  # noqa: F811
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        socket.connect(f"tcp://{served.address}")
        yield Stranger(socket)


def held(one: Served) -> dict[str, Any]:
    ((header, content, arrays),) = one.links.state()
    return {"step": header.step, **content, **{name: array.tolist() for name, array in arrays.items()}}


def test_what_cannot_be_understood_is_refused_with_a_reason_and_logged_once(
    served: Served,  # noqa: F811
    stranger: Stranger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.start(plan=LIGHT)
    before = held(served)
    for name, (message, reason) in MALFORMED.items():
        for _ in range(2):
            kind, told = stranger.send(message)
            assert kind is Kind.REFUSED, name
            with pytest.raises(ClusterError, match=reason):
                raise ClusterError(told)
    assert held(served) == before
    assert served.whereabouts() == {"active": [0], "left": [], "silent": []}
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    logged = [record.getMessage() for record in caplog.records if "has refused a message" in record.getMessage()]
    assert len(logged) == len(set(logged)) < len(MALFORMED)


def test_what_the_optimizers_cannot_do_is_refused(served: Served, stranger: Stranger) -> None:  # noqa: F811
    ftrl = {**LIGHT, "groups": [{"rule": "Ftrl", "settings": {"lr": 1.0}, "moving": []}] * 2}
    assert stranger.send(start(plan=ftrl))[0] is Kind.OK
    kind, told = stranger.send([exchange(PUSHES, PUSH._replace(numbers=PUSH.numbers[:0]))])
    assert kind is Kind.REFUSED
    assert told.startswith("ps 0 cannot update its parameters as chief 0 asks (KeyError: ")
    served.start(plan=LIGHT)
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK


def test_a_server_that_holds_nothing_yet_refuses_as_well(served: Served, stranger: Stranger) -> None:  # noqa: F811
    for message in (MALFORMED["no kind"][0], MALFORMED["no content"][0], MALFORMED["no plan"][0]):
        assert stranger.send(message)[0] is Kind.REFUSED
    assert stranger.send(MALFORMED["half a push"][0])[0] is Kind.EMPTY
    with closing(Links("worker 6", 7, [served.address], wait_secs=60)) as foreign:
        foreign.tell_all(Kind.HELLO)
    served.start(plan=LIGHT, silence_secs=60.0)
    assert served.whereabouts() == {"active": [0], "left": [], "silent": []}


@st.composite
def broken(draw: st.DrawFn) -> Message:
    """A message of which something is missing, added, or other than it was."""
    message = list(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 2))):
        index = draw(st.integers(0, len(message) - 1))
        frame = message[index]
        at = draw(st.integers(0, len(frame)))
        noise = draw(st.binary(max_size=9))
        match draw(st.sampled_from(["cut", "put in", "put over", "drop", "noise"])):
            case "cut":
                message[index] = frame[:at]
            case "put in":
                message[index] = frame[:at] + noise + frame[at:]
            case "put over":
                message[index] = frame[:at] + noise + frame[at + len(noise) :]
            case "drop" if index:
                del message[index]
            case _:
                message[index] = packed(draw(st.sampled_from(list(Kind))), flags=draw(st.integers(0, 3))) + noise
    return message


def ends_something(message: Message) -> bool:
    try:
        return Header.unpack(message[0]).kind in (Kind.LEAVE, Kind.END)
    except ClusterError:
        return False


def test_no_message_ends_a_server_or_changes_what_it_holds_where_it_is_refused(
    served: Served,  # noqa: F811
    stranger: Stranger,
) -> None:
    # Both are one process, since of two that are the chief the first is refused.
    served.links._life = LIFE
    served.start(plan=LIGHT)
    refused = 0

    @tried(120)
    @given(broken())
    def answers(message: Message) -> None:
        nonlocal refused
        assume(not ends_something(message))
        before = held(served)
        kind, _ = stranger.send(message)
        event(kind.name)
        if kind is Kind.REFUSED:
            refused += 1
            assert held(served) == before
        else:
            # It was a message all the same.
            served.start(plan=LIGHT)
        assert served.pull(3, 0)[0].step == (before["step"] if kind is Kind.REFUSED else 5)

    answers()
    assert refused > 40
