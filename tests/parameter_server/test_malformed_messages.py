"""Whatever somebody sends, a server refuses it with a sentence, holds what it held, and goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import assume, event, given
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from tests.parameter_server.road import Road
from tests.parameter_server.test_server import ARRAYS, GIVEN, PLAN, Served, served  # noqa: F401
from tests.properties.trials import tried
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.client import Links
from torch_estimator.parameter_server.messages import (
    MOST_FRAME_BYTES,
    PULLS,
    PUSHES,
    Header,
    Kind,
    Push,
    cut_up,
    pack_arrays,
    pack_exchange,
    pack_json,
    unpack_arrays,
)
from torch_estimator.parameter_server.plan import DensePlan, ServerPlan

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
    "more rows than there are": ([exchange(PULLS, None, *([3] * 5))], "names 5 rows of wide, which has 4"),
    "half a frame": ([packed(Kind.DEPOSIT), bytes(MOST_FRAME_BYTES)], "ends in the middle of a frame"),
    "more than the plan needs": ([exchange(PUSHES, PUSH), bytes(MOST_FRAME_BYTES)], "is longer than what it is"),
    "too much JSON": ([packed(Kind.DEPOSIT), *cut_up([bytes(1 + (1 << 24))])], "16777217 bytes of JSON; 1677"),
    "a step that nobody reaches": ([Header(Kind.EXCHANGE, 0, PULLS, LIFE, 1, 2**64 - 1).pack()], "which no training"),
    "parameters of a worker": (
        [packed(Kind.START, 1), *start()[1:]],
        "Only the chief gives ps 0 what it holds, and process 2 of the cluster tried to",
    ),
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

    def loses(self, frame: bytes) -> bool:
        """Whether its connection ends, and is made again, where it sends this."""
        with self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
            self._socket.send(frame)
            events = [recv_monitor_message(monitor)["event"] for _ in range(2) if monitor.poll(20_000)]
        self._socket.disable_monitor()
        return events == [zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED]


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


def test_no_step_that_a_stranger_names_keeps_the_chief_from_starting(served: Served, stranger: Stranger) -> None:  # noqa: F811
    for step in (2**64 - 1, 2**62, 2**53):
        assert stranger.send([Header(Kind.EXCHANGE, 0, step=step).pack()])[0] is Kind.REFUSED
    assert stranger.send([Header(Kind.EXCHANGE, 0, step=2**53 - 1).pack()])[0] is Kind.EMPTY
    ((header, _),) = served.links.tell_all(Kind.HELLO)
    served.start(plan=LIGHT, lost=header.step)
    positions = served.links.state()[0][1]["positions"]
    served.start(plan=LIGHT, lost=header.step, positions=positions)
    assert served.pull()[0].step == 5


def test_what_fails_while_a_server_answers_is_a_refusal_and_a_traceback_in_its_log(
    served: Served,  # noqa: F811
    stranger: Stranger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.start(plan=LIGHT)
    # The deepest position that can be read; with more around it, it cannot be written any more.
    for depth in range(sys.getrecursionlimit(), 0, -1):
        position = b'{"a":' * depth + b"0" + b"}" * depth
        if stranger.send([packed(Kind.DEPOSIT), position])[0] is Kind.OK:
            break
    for _ in range(2):
        assert stranger.send([packed(Kind.HELLO)]) == (
            Kind.REFUSED,
            "It cannot answer (RecursionError); see its log.",
        )
    sentence = "ps 0 cannot answer a message (RecursionError), and goes on without."
    (record,) = (one for one in caplog.records if one.getMessage() == sentence)
    assert record.exc_info
    assert served.push(served.links.header(Kind.EXCHANGE, PUSHES)) is Kind.OK


def test_a_frame_that_is_too_large_ends_its_connection_and_nothing_else(
    served: Served,  # noqa: F811
    stranger: Stranger,
) -> None:
    served.start(plan=LIGHT)
    # The first connection is there before anybody looks for its end.
    assert stranger.send([packed(Kind.HELLO)])[0] is Kind.OK
    assert stranger.loses(bytes(2 * MOST_FRAME_BYTES))
    # It has another connection by now.
    assert stranger.send([packed(Kind.HELLO)])[0] is Kind.OK
    assert served.pull()[0].step == 5


def test_answers_that_nobody_reads_are_not_kept(served: Served) -> None:  # noqa: F811
    size = 2**20
    plan = ServerPlan(dtype="float32", groups=PLAN.groups[:1], dense=(DensePlan("bias", (size,), 0),), tables=())
    served.links.start(0, {**GIVEN, "plan": plan.as_json(), "step": 5}, {"dense/0/value": np.zeros(size, np.float32)})
    with (
        closing(Road(served.address)) as road,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as reader,
    ):
        reader.setsockopt(zmq.LINGER, 0)
        reader.connect(f"tcp://{road.address}")
        reader.send(Header(Kind.HELLO, 1, life=LIFE).pack())
        reader.recv_multipart()
        road.lets_answers_through.clear()
        for _ in range(100):
            reader.send(Header(Kind.STATE, 1, life=LIFE).pack())
        reader.send_multipart(pack_json(Header(Kind.DEPOSIT, 1, life=LIFE), {"row": 7}))
        while "1" not in served.links.state()[0][1]["positions"]:
            # Questions of one connection are answered in their order.
            pass
        road.lets_answers_through.set()
        answers = 0
        while reader.poll(1000):
            assert len(reader.recv_multipart()) == 3
            answers += 1
    assert 0 < answers < 30


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
