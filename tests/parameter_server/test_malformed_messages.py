"""A server refuses malformed messages with a sentence, keeps its parameters, and goes on."""

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

from tests.parameter_server.relay import Relay
from tests.parameter_server.test_server import ARRAYS, GIVEN, PLAN, Served, served  # noqa: F401
from tests.properties.trials import tried
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.client import ServerClient
from torch_estimator.parameter_server.plan import DensePlan, ServerPlan
from torch_estimator.parameter_server.protocol import (
    MOST_FRAME_BYTES,
    PULLS,
    PUSHES,
    Header,
    Kind,
    Push,
    pack_arrays,
    pack_exchange,
    pack_json,
    split_frames,
    unpack_arrays,
)

Message = list[bytes]

# Without an optimizer of torch, which a server would have to import for seconds.
LIGHT = {**GIVEN["plan"], "groups": GIVEN["plan"]["groups"][:1] * 2}

PUSH = Push(
    np.array([0.5, 0.25]), np.ones(2, np.uint8), np.ones(5, np.float32), [(np.array([1, 3]), np.ones((2, 1), "f4"))]
)


INCARNATION = 7


def packed(kind: Kind, worker: int = 0, flags: int = 0) -> bytes:
    return Header(kind, worker, flags, incarnation=INCARNATION, number=1).pack()


def start(**content: Any) -> Message:
    given = {**GIVEN, "plan": LIGHT, "step": 5, **content}
    return [bytes(one) for one in pack_arrays(Header(Kind.START, 0), given, ARRAYS)]


def exchange(flags: int, push: Push | None, *rows: int) -> bytes:
    return pack_exchange(
        Header(Kind.EXCHANGE, 0, flags, incarnation=INCARNATION, number=1), push, [np.array(rows, np.int64)]
    )


VALID: list[Message] = [
    [packed(Kind.HELLO)],
    [packed(Kind.STATE)],
    [packed(Kind.STATUS)],
    pack_json(Header(Kind.CURSOR, 1), {"row": 7}),
    start(cursors={"1": {"row": 3, "since": 2}}),
    [exchange(PULLS, None, 3, 0)],
    [exchange(PUSHES, PUSH)],
    [exchange(PUSHES | PULLS, PUSH, 2)],
]

MALFORMED: dict[str, tuple[Message, str]] = {
    "nothing": ([b""], "does not belong to a torch-estimator cluster"),
    "no kind": ([packed(Kind.HELLO)[:6] + b"\x63" + packed(Kind.HELLO)[7:]], "a message of kind 99, which is none"),
    "a reply": ([packed(Kind.OK)], "has sent a reply, OK, in place of a request"),
    "another cluster's": ([packed(Kind.HELLO, 7)], "ps 0 serves chief 0, worker 0, and has heard .* be number 8 of"),
    "a negative number": ([packed(Kind.STATUS, -1)], "has heard of a process that would be number 0 of them"),
    "no content": ([packed(Kind.START)], r"cannot be read \(IndexError\)"),
    "no JSON": ([packed(Kind.CURSOR), b"{"], r"cannot be read \(JSONDecodeError\)"),
    "no object": ([packed(Kind.CURSOR), b"[1]"], r"cannot be read \(TypeError\)"),
    "no plan": (start(plan={}), r"has sent a malformed START \(KeyError\)"),
    "other shapes": (
        start(plan={**LIGHT, "tables": [{"name": "wide", "rows": 5, "dim": 1, "group": 0}]}),
        r"malformed START \(ValueError\)",
    ),
    "another version": (
        start(about={"version": "0.0.1, sources 00"}),
        r"chief has torch-estimator 0\.0\.1, sources 00, and ps 0 has 0\.1\.0, sources \w{12}; install",
    ),
    "nobody": (start(names=[]), r"malformed START \(ValueError\)"),
    "a step before all": (start(step=-1), r"malformed START \(ValueError\)"),
    "no array": (start()[:-1], r"cannot be read \(ValueError\)"),
    "half a push": ([exchange(PUSHES, PUSH)[:-1]], "ends too early"),
    "more than a push": ([exchange(PUSHES, PUSH) + b"\0"], "is too long"),
    "no counts": ([packed(Kind.EXCHANGE, flags=PULLS)], "ends too early"),
    "more rows than there are": ([exchange(PULLS, None, *([3] * 5))], "names 5 rows of wide, which has 4"),
    "half a frame": ([packed(Kind.CURSOR), bytes(MOST_FRAME_BYTES)], "ends in the middle of a frame"),
    "more than the plan needs": ([exchange(PUSHES, PUSH), bytes(MOST_FRAME_BYTES)], "is too long"),
    "too much JSON": ([packed(Kind.CURSOR), *split_frames([bytes(1 + (1 << 24))])], "16777217 bytes of JSON; 1677"),
    "a step that nobody reaches": (
        [Header(Kind.EXCHANGE, 0, PULLS, INCARNATION, 1, 2**64 - 1).pack()],
        "which no training",
    ),
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
    """A peer that sends anything."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, message: Message) -> tuple[Kind, str]:
        """Send a message; return the kind of the reply, and the reason of a refusal."""
        self._socket.send_multipart(message)
        frames = self._socket.recv_multipart()
        kind = Header.unpack(frames[0]).kind
        return kind, unpack_arrays(frames)[0]["reason"] if kind is Kind.REFUSED else ""

    def loses(self, frame: bytes) -> bool:
        """Send a frame; return whether the connection is closed for it, and made again."""
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
    ((header, content, arrays),) = one.client.state()
    return {"step": header.step, **content, **{name: array.tolist() for name, array in arrays.items()}}


def test_malformed_messages_are_refused_with_a_reason_and_logged_once(
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
    assert served.status() == {"active": [0], "left": [], "silent": []}
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK
    logged = [record.getMessage() for record in caplog.records if "has refused a message" in record.getMessage()]
    assert len(logged) == len(set(logged)) < len(MALFORMED)


def test_a_push_that_the_optimizer_cannot_apply_is_refused(served: Served, stranger: Stranger) -> None:  # noqa: F811
    ftrl = {**LIGHT, "groups": [{"rule": "Ftrl", "settings": {"lr": 1.0}, "changing": []}] * 2}
    assert stranger.send(start(plan=ftrl))[0] is Kind.OK
    kind, told = stranger.send([exchange(PUSHES, PUSH._replace(settings=PUSH.settings[:0]))])
    assert kind is Kind.REFUSED
    assert told.startswith("ps 0 cannot update its parameters as chief 0 asks (KeyError: ")
    served.start(plan=LIGHT)
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK


def test_a_server_without_parameters_refuses_malformed_messages(served: Served, stranger: Stranger) -> None:  # noqa: F811
    for message in (MALFORMED["no kind"][0], MALFORMED["no content"][0], MALFORMED["no plan"][0]):
        assert stranger.send(message)[0] is Kind.REFUSED
    assert stranger.send(MALFORMED["half a push"][0])[0] is Kind.EMPTY
    with closing(ServerClient("worker 6", 7, [served.address], wait_secs=60)) as foreign:
        foreign.request_all(Kind.HELLO)
    served.start(plan=LIGHT, silence_secs=60.0)
    assert served.status() == {"active": [0], "left": [], "silent": []}


def test_a_stranger_s_step_does_not_keep_the_chief_from_starting(served: Served, stranger: Stranger) -> None:  # noqa: F811
    for step in (2**64 - 1, 2**62, 2**53):
        assert stranger.send([Header(Kind.EXCHANGE, 0, step=step).pack()])[0] is Kind.REFUSED
    assert stranger.send([Header(Kind.EXCHANGE, 0, step=2**53 - 1).pack()])[0] is Kind.EMPTY
    served.start(plan=LIGHT)
    assert served.pull()[0].step == 5


def test_an_internal_error_is_a_refusal_and_a_traceback_in_the_log(
    served: Served,  # noqa: F811
    stranger: Stranger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.start(plan=LIGHT)
    # The deepest cursor that can be read: inside the reply it nests too deep to be written.
    for depth in range(sys.getrecursionlimit(), 0, -1):
        cursor = b'{"a":' * depth + b"0" + b"}" * depth
        if stranger.send([packed(Kind.CURSOR), cursor])[0] is Kind.OK:
            break
    if stranger.send([packed(Kind.HELLO)])[0] is Kind.OK:
        pytest.skip("this Python writes JSON as deep as it reads it, so that nothing goes wrong inside")
    for _ in range(2):
        assert stranger.send([packed(Kind.HELLO)]) == (
            Kind.REFUSED,
            "It cannot answer (RecursionError); see its log.",
        )
    sentence = "ps 0 cannot answer a message (RecursionError), and goes on without."
    (record,) = (one for one in caplog.records if one.getMessage() == sentence)
    assert record.exc_info
    assert served.push(served.client.header(Kind.EXCHANGE, PUSHES)) is Kind.OK


def test_a_frame_that_is_too_large_closes_only_its_connection(
    served: Served,  # noqa: F811
    stranger: Stranger,
) -> None:
    served.start(plan=LIGHT)
    # The connection has to be there before the test waits for its end.
    assert stranger.send([packed(Kind.HELLO)])[0] is Kind.OK
    assert stranger.loses(bytes(2 * MOST_FRAME_BYTES))
    # The message goes through a new connection.
    assert stranger.send([packed(Kind.HELLO)])[0] is Kind.OK
    assert served.pull()[0].step == 5


def test_replies_that_a_peer_does_not_read_are_not_kept(served: Served) -> None:  # noqa: F811
    size = 2**20
    plan = ServerPlan(dtype="float32", groups=PLAN.groups[:1], dense=(DensePlan("bias", (size,), 0),), tables=())
    served.client.start(
        {0: ({**GIVEN, "plan": plan.as_json(), "step": 5}, {"dense/0/value": np.zeros(size, np.float32)})}
    )
    with (
        closing(Relay(served.address)) as relay,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as reader,
    ):
        reader.setsockopt(zmq.LINGER, 0)
        reader.connect(f"tcp://{relay.address}")
        reader.send(Header(Kind.HELLO, 1, incarnation=INCARNATION).pack())
        reader.recv_multipart()
        relay.lets_replies_through.clear()
        for _ in range(100):
            reader.send(Header(Kind.STATE, 1, incarnation=INCARNATION).pack())
        reader.send_multipart(pack_json(Header(Kind.CURSOR, 1, incarnation=INCARNATION), {"row": 7}))
        while "1" not in served.client.state()[0][1]["cursors"]:
            # The requests of one connection are handled in their order.
            pass
        relay.lets_replies_through.set()
        replies = 0
        while reader.poll(1000):
            assert len(reader.recv_multipart()) == 3
            replies += 1
    assert 0 < replies < 30


@st.composite
def broken(draw: st.DrawFn) -> Message:
    """Draw a message with a part missing, added or changed."""
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


def test_a_refused_message_neither_ends_a_server_nor_changes_its_parameters(
    served: Served,  # noqa: F811
    stranger: Stranger,
) -> None:
    # The stranger acts as the same process, since the server would refuse the first of two chiefs.
    served.client.incarnation = INCARNATION
    served.start(plan=LIGHT)
    refused = 0

    @tried(120)
    @given(broken())
    def send(message: Message) -> None:
        nonlocal refused
        assume(not ends_something(message))
        before = held(served)
        kind, _ = stranger.send(message)
        event(kind.name)
        if kind is Kind.REFUSED:
            refused += 1
            assert held(served) == before
        else:
            # What was drawn is a valid message.
            served.start(plan=LIGHT)
        assert served.pull(3, 0)[0].step == (before["step"] if kind is Kind.REFUSED else 5)

    send()
    assert refused > 40
