"""With a key, nobody else is served and nothing can be read on the way; who has a wrong one is told so at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.cluster_jobs import free_port
from tests.parameter_server.road import Road
from tests.parameter_server.test_server import GIVEN
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.client import Links
from torch_estimator.parameter_server.curve import secure_client
from torch_estimator.parameter_server.key import KEY_FILE, Key, key_from_environment, make_key_file
from torch_estimator.parameter_server.messages import (
    MOST_FRAME_BYTES,
    PULLS,
    PUSHES,
    Header,
    Kind,
    Push,
    pack_exchange,
    pack_json,
    unpack_parameters,
)
from torch_estimator.parameter_server.plan import DensePlan, GroupPlan, ServerPlan
from torch_estimator.parameter_server.server import ParameterServer

WAIT_SECS = 60
MESSAGE = b"where the input stands: at a secret place"


def new_key(path: Path) -> Key:
    make_key_file(str(path))
    key = key_from_environment({KEY_FILE: str(path)})
    assert key is not None
    return key


@contextmanager
def serving(address: str, key: Key | None) -> Iterator[None]:
    server = ParameterServer("ps 0", address, key)

    def serve() -> None:
        with closing(server):
            server.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        with closing(Links("chief 0", 0, [address], wait_secs=WAIT_SECS, key=key)) as links:
            links.tell_all(Kind.END)
        thread.join(WAIT_SECS)
        assert not thread.is_alive()


@pytest.mark.parametrize("has_key", [True, False])
def test_what_is_said_can_be_read_on_the_way_only_without_a_key(tmp_path: Path, has_key: bool) -> None:
    address = f"localhost:{free_port()}"
    key = new_key(tmp_path / "key") if has_key else None
    with serving(address, key), closing(Road(address)) as road:
        with closing(Links("worker 0", 1, [road.address], wait_secs=WAIT_SECS, key=key)) as links:
            links.deposit({"position": MESSAGE.decode()})
            links.tell_all(Kind.LEAVE)
        assert (MESSAGE in road.heard) is not has_key
        assert len(road.heard) > len(MESSAGE)


def test_who_comes_back_with_the_same_key_is_found_again(tmp_path: Path) -> None:
    address, key = f"localhost:{free_port()}", new_key(tmp_path / "key")
    with closing(Links("worker 0", 1, [address], wait_secs=WAIT_SECS, key=key)) as links:
        for _ in range(2):
            with serving(address, key):
                assert links.tell_all(Kind.HELLO)[0][0].kind is Kind.EMPTY
                links.tell_all(Kind.LEAVE)


@pytest.mark.parametrize(
    ("ours", "theirs", "told", "logged"),
    [
        (
            "key",
            "other",
            "has another key than worker 0, whose key file is {}; set TORCH_ESTIMATOR_KEY_FILE to the same key",
            "has another key than this server (TORCH_ESTIMATOR_KEY_FILE).",
        ),
        (
            None,
            "other",
            "asks for a key, but worker 0 has none; set TORCH_ESTIMATOR_KEY_FILE to the key file of the cluster.",
            "has no key (TORCH_ESTIMATOR_KEY_FILE).",
        ),
        (
            "key",
            None,
            "has no key, but worker 0 has one, {}; set TORCH_ESTIMATOR_KEY_FILE for all processes of the cluster, or",
            "has a key, which this server has not (TORCH_ESTIMATOR_KEY_FILE is not set).",
        ),
    ],
)
def test_who_has_another_key_is_told_and_the_server_serves_on(
    tmp_path: Path, ours: str | None, theirs: str | None, told: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {name: name and new_key(tmp_path / name) for name in {ours, theirs}}
    address, key = f"localhost:{free_port()}", keys[theirs] or None
    with serving(address, key):
        deadline = time.monotonic() + WAIT_SECS
        # Who sees first what is wrong leaves; the server is not always the second.
        while f"ps 0 has refused somebody who {logged}" not in caplog.messages:
            assert time.monotonic() < deadline, caplog.messages
            with closing(Links("worker 0", 1, [address], wait_secs=WAIT_SECS, key=keys[ours] or None)) as links:
                with pytest.raises(ClusterError) as error:
                    links.tell_all(Kind.HELLO)
                assert str(error.value).startswith(f"ps 0 at {address} {told.format(tmp_path / 'key')}")
        with closing(Links("worker 1", 2, [address], wait_secs=WAIT_SECS, key=key)) as links:
            assert links.tell_all(Kind.HELLO)[0][0].kind is Kind.EMPTY
            links.tell_all(Kind.LEAVE)
    assert caplog.messages.count(f"ps 0 has refused somebody who {logged}") == 1


def test_the_public_half_of_the_key_lets_nobody_in(tmp_path: Path) -> None:
    address, key, other = f"localhost:{free_port()}", new_key(tmp_path / "key"), new_key(tmp_path / "other")
    with serving(address, key), zmq.Context() as context:
        asks = context.socket(zmq.DEALER)
        asks.setsockopt(zmq.LINGER, 0)
        secure_client(asks, other)
        asks.setsockopt(zmq.CURVE_SERVERKEY, key.public)
        monitor = asks.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        asks.connect(f"tcp://{address}")
        assert monitor.poll(WAIT_SECS * 1000)
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        asks.disable_monitor()
        monitor.close()
        asks.close()


def test_a_server_that_is_slow_to_come_behind_what_ends_connections_is_waited_for(tmp_path: Path) -> None:
    # As that of Docker does, which accepts before there is anybody inside.
    key, address = new_key(tmp_path / "key"), f"localhost:{free_port()}"
    turned_away = threading.Semaphore(0)
    door = socket.create_server(("localhost", int(address.split(":")[1])))

    def turn_away() -> None:
        with suppress(OSError):
            while True:
                connection, _ = door.accept()
                with connection:
                    connection.recv(10)
                turned_away.release()

    threading.Thread(target=turn_away, daemon=True).start()
    with closing(Links("worker 0", 1, [address], wait_secs=WAIT_SECS, key=key)) as links:
        links.send({0: (question := [links.header(Kind.HELLO).pack()])})
        answers: dict[int, object] = {}
        thread = threading.Thread(target=lambda: answers.update(links.collect({0: question})))
        thread.start()
        for _ in range(20):
            assert turned_away.acquire(timeout=WAIT_SECS)
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        with serving(address, key):
            thread.join(WAIT_SECS)
            assert list(answers) == [0]
            links.tell_all(Kind.LEAVE)


def test_who_leaves_in_the_middle_of_the_handshake_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    address = f"localhost:{free_port()}"
    told = "ps 0 has refused somebody who left in the middle of the handshake: its connection was lost, or it has a key"
    with serving(address, None):
        deadline = time.monotonic() + WAIT_SECS
        for _ in range(3):
            socket.create_connection(("localhost", int(address.split(":")[1]))).close()
        while not any(message.startswith(told) for message in caplog.messages):
            assert time.monotonic() < deadline, caplog.messages
            time.sleep(0.01)
    assert sum(message.startswith(told) for message in caplog.messages) == 1


def test_what_speaks_zeromq_but_is_no_server_is_named() -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
    with socket.create_server(("localhost", 0)) as door:

        def greet() -> None:
            with suppress(OSError), door.accept()[0] as connection:
                # A message where a handshake is due.
                connection.sendall(greeting + b"\x00\x01x")
                while connection.recv(100):
                    pass

        threading.Thread(target=greet, daemon=True).start()
        address = f"localhost:{door.getsockname()[1]}"
        with (
            closing(Links("worker 0", 1, [address], wait_secs=WAIT_SECS)) as links,
            pytest.raises(ClusterError, match=rf"^ps 0 at {address} does not answer worker 0 as a parameter server"),
        ):
            links.tell_all(Kind.HELLO)


def test_large_messages_arrive_as_they_are(tmp_path: Path) -> None:
    address, key = f"localhost:{free_port()}", new_key(tmp_path / "key")
    content = {"position": np.random.default_rng(0).integers(0, 1 << 62, 200_000).tolist()}
    # Frames of as many bytes as may travel in one piece, and of as many in two.
    sizes = (MOST_FRAME_BYTES // 4 - 1, MOST_FRAME_BYTES // 4, MOST_FRAME_BYTES // 2 + 1)
    plan = ServerPlan(
        dtype="float32",
        groups=(GroupPlan("GradientDescent", {"lr": 1.0}, ()),),
        dense=tuple(DensePlan(f"{size} numbers", (size,), 0) for size in sizes),
        tables=(),
    )
    arrays = {f"dense/{index}/value": np.arange(size, dtype=np.float32) for index, size in enumerate(sizes)}
    values = np.concatenate(list(arrays.values()))
    with serving(address, key), closing(Links("chief 0", 0, [address], wait_secs=WAIT_SECS, key=key)) as links:
        assert len(b"".join(map(bytes, pack_json(Header(Kind.DEPOSIT, 1), content)))) > MOST_FRAME_BYTES
        links.start(0, {**GIVEN, "plan": plan.as_json(), "step": 0}, arrays)
        push = Push(np.empty(0), np.ones(len(sizes), np.uint8), values, [])
        ((_, frames),) = links.ask(
            {0: [pack_exchange(links.header(Kind.EXCHANGE, PUSHES | PULLS), push, [])]},
        ).values()
        assert not unpack_parameters(frames[0], plan, [])[0].any()
        links.deposit(content)
        assert links.tell_all(Kind.HELLO)[0][1]["position"] == content
        links.tell_all(Kind.LEAVE)


def test_who_has_not_shown_the_key_can_send_next_to_nothing(tmp_path: Path) -> None:
    address, key = f"localhost:{free_port()}", new_key(tmp_path / "key")
    host, port = address.split(":")
    with serving(address, key), socket.create_connection((host, int(port)), WAIT_SECS) as connection:
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(52, b"\0"))
        greeting = connection.makefile("rb").read(64)
        assert greeting[12:17] == b"CURVE"
        # A command of the handshake that says how long it is: a byte more than the most.
        connection.settimeout(8)
        connection.sendall(b"\x06" + (MOST_FRAME_BYTES + 1025).to_bytes(8, "big"))
        assert connection.recv(1) == b""
