"""Key files, and what encryption guarantees: only peers with the key are served, and errors name wrong keys."""

from __future__ import annotations

import re
import socket
import stat
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
from tests.parameter_server.relay import Relay
from tests.parameter_server.test_server import GIVEN
from torch_estimator.errors import ClusterError, InvalidValueError
from torch_estimator.parameter_server.client import ServerClient
from torch_estimator.parameter_server.encryption import (
    KEY_FILE,
    Key,
    key_from_environment,
    make_key_file,
    secure_client,
)
from torch_estimator.parameter_server.plan import DensePlan, GroupPlan, ServerPlan
from torch_estimator.parameter_server.protocol import (
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
        with closing(ServerClient("chief 0", 0, [address], wait_secs=WAIT_SECS, key=key)) as client:
            client.request_all(Kind.END)
        thread.join(WAIT_SECS)
        assert not thread.is_alive()


@pytest.mark.parametrize("has_key", [True, False])
def test_messages_can_be_read_on_the_network_only_without_a_key(tmp_path: Path, has_key: bool) -> None:
    address = f"localhost:{free_port()}"
    key = new_key(tmp_path / "key") if has_key else None
    with serving(address, key), closing(Relay(address)) as relay:
        with closing(ServerClient("worker 0", 1, [relay.address], wait_secs=WAIT_SECS, key=key)) as client:
            client.report_cursor({"position": MESSAGE.decode()})
            client.request_all(Kind.LEAVE)
        assert (MESSAGE in relay.heard) is not has_key
        assert len(relay.heard) > len(MESSAGE)


def test_a_worker_reconnects_to_a_restarted_server_with_the_same_key(tmp_path: Path) -> None:
    address, key = f"localhost:{free_port()}", new_key(tmp_path / "key")
    with closing(ServerClient("worker 0", 1, [address], wait_secs=WAIT_SECS, key=key)) as client:
        for _ in range(2):
            with serving(address, key):
                assert client.request_all(Kind.HELLO)[0][0].kind is Kind.EMPTY
                client.request_all(Kind.LEAVE)


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
def test_a_worker_with_another_key_gets_an_error_and_the_server_serves_on(
    tmp_path: Path, ours: str | None, theirs: str | None, told: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {name: name and new_key(tmp_path / name) for name in {ours, theirs}}
    address, key = f"localhost:{free_port()}", keys[theirs] or None
    with serving(address, key):
        deadline = time.monotonic() + WAIT_SECS
        # The first of the two peers to see the wrong key closes the connection, and that may be the server.
        while f"ps 0 has refused a peer that {logged}" not in caplog.messages:
            assert time.monotonic() < deadline, caplog.messages
            with closing(ServerClient("worker 0", 1, [address], wait_secs=WAIT_SECS, key=keys[ours] or None)) as client:
                with pytest.raises(ClusterError) as error:
                    client.request_all(Kind.HELLO)
                assert str(error.value).startswith(f"ps 0 at {address} {told.format(tmp_path / 'key')}")
        with closing(ServerClient("worker 1", 2, [address], wait_secs=WAIT_SECS, key=key)) as client:
            assert client.request_all(Kind.HELLO)[0][0].kind is Kind.EMPTY
            client.request_all(Kind.LEAVE)
    assert caplog.messages.count(f"ps 0 has refused a peer that {logged}") == 1


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


def test_a_worker_waits_for_a_server_behind_a_proxy_that_closes_connections(tmp_path: Path) -> None:
    # Docker's proxy accepts connections before a process in the container listens.
    key, address = new_key(tmp_path / "key"), f"localhost:{free_port()}"
    turned_away = threading.Semaphore(0)
    listener = socket.create_server(("localhost", int(address.split(":")[1])))

    def turn_away() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(10)
                turned_away.release()

    threading.Thread(target=turn_away, daemon=True).start()
    with closing(ServerClient("worker 0", 1, [address], wait_secs=WAIT_SECS, key=key)) as client:
        client.send({0: (request := [client.header(Kind.HELLO).pack()])})
        replies: dict[int, object] = {}
        thread = threading.Thread(target=lambda: replies.update(client.collect({0: request})))
        thread.start()
        for _ in range(20):
            assert turned_away.acquire(timeout=WAIT_SECS)
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with serving(address, key):
            thread.join(WAIT_SECS)
            assert list(replies) == [0]
            client.request_all(Kind.LEAVE)


def test_a_peer_that_leaves_during_the_handshake_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    address = f"localhost:{free_port()}"
    told = "ps 0 has refused a peer that left in the middle of the handshake: its connection was lost, or it has a key"
    with serving(address, None):
        deadline = time.monotonic() + WAIT_SECS
        for _ in range(3):
            socket.create_connection(("localhost", int(address.split(":")[1]))).close()
        while not any(message.startswith(told) for message in caplog.messages):
            assert time.monotonic() < deadline, caplog.messages
            time.sleep(0.01)
    assert sum(message.startswith(told) for message in caplog.messages) == 1


def test_a_zeromq_peer_that_is_no_server_is_named() -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
    with socket.create_server(("localhost", 0)) as listener:

        def greet() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                # A message where a handshake is expected.
                connection.sendall(greeting + b"\x00\x01x")
                while connection.recv(100):
                    pass

        threading.Thread(target=greet, daemon=True).start()
        address = f"localhost:{listener.getsockname()[1]}"
        with (
            closing(ServerClient("worker 0", 1, [address], wait_secs=WAIT_SECS)) as client,
            pytest.raises(ClusterError, match=rf"^ps 0 at {address} does not answer worker 0 as a parameter server"),
        ):
            client.request_all(Kind.HELLO)


def test_large_messages_arrive_unchanged(tmp_path: Path) -> None:
    address, key = f"localhost:{free_port()}", new_key(tmp_path / "key")
    content = {"position": np.random.default_rng(0).integers(0, 1 << 62, 200_000).tolist()}
    # The largest frame that travels in one piece, the smallest in two, and one byte more than two full pieces.
    sizes = (MOST_FRAME_BYTES // 4 - 1, MOST_FRAME_BYTES // 4, MOST_FRAME_BYTES // 2 + 1)
    plan = ServerPlan(
        dtype="float32",
        groups=(GroupPlan("GradientDescent", {"lr": 1.0}, ()),),
        dense=tuple(DensePlan(f"{size} numbers", (size,), 0) for size in sizes),
        tables=(),
    )
    arrays = {f"dense/{index}/value": np.arange(size, dtype=np.float32) for index, size in enumerate(sizes)}
    values = np.concatenate(list(arrays.values()))
    with serving(address, key), closing(ServerClient("chief 0", 0, [address], wait_secs=WAIT_SECS, key=key)) as client:
        assert len(b"".join(map(bytes, pack_json(Header(Kind.CURSOR, 1), content)))) > MOST_FRAME_BYTES
        client.start({0: ({**GIVEN, "plan": plan.as_json(), "step": 0}, arrays)})
        push = Push(np.empty(0), np.ones(len(sizes), np.uint8), values, [])
        ((_, frames),) = client.request(
            {0: [pack_exchange(client.header(Kind.EXCHANGE, PUSHES | PULLS), push, [])]},
        ).values()
        assert not unpack_parameters(frames[0], plan, [])[0].any()
        client.report_cursor(content)
        assert client.request_all(Kind.HELLO)[0][1]["position"] == content
        client.request_all(Kind.LEAVE)


def test_a_peer_without_the_key_can_send_next_to_nothing(tmp_path: Path) -> None:
    address, key = f"localhost:{free_port()}", new_key(tmp_path / "key")
    host, port = address.split(":")
    with serving(address, key), socket.create_connection((host, int(port)), WAIT_SECS) as connection:
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(52, b"\0"))
        greeting = connection.makefile("rb").read(64)
        assert greeting[12:17] == b"CURVE"
        # A handshake command that announces a length of one byte more than the limit.
        connection.settimeout(8)
        connection.sendall(b"\x06" + (MOST_FRAME_BYTES + 1025).to_bytes(8, "big"))
        assert connection.recv(1) == b""


def test_a_new_key_is_read_back_and_its_secret_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    key = key_from_environment({KEY_FILE: str(path)})
    assert key is not None
    assert path.read_bytes() == key.secret + b"\n"
    assert key.secret.decode() not in repr(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    make_key_file(str(tmp_path / "other"))
    assert (tmp_path / "other").read_bytes() != path.read_bytes()


def test_without_a_file_there_is_no_key() -> None:
    assert key_from_environment({}) is None


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    before = path.read_bytes()
    with pytest.raises(InvalidValueError, match=rf"^there is already something at {path}, which may be the key of a"):
        make_key_file(str(path))
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "key"
    with pytest.raises(InvalidValueError, match=rf"^the key cannot be written to {path}: No such file or directory\.$"):
        make_key_file(str(path))


@pytest.mark.parametrize("content", [b"", b"abc\n", b" " * 40, b"\xff" * 40, b"0" * 41, b"0" * 4000])
def test_a_file_that_holds_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    path.write_bytes(content)
    told = rf"^the key file '{path}', which {KEY_FILE} names, holds no key that can be used \(.*\); it must be as"
    with pytest.raises(InvalidValueError, match=told):
        key_from_environment({KEY_FILE: str(path)})


@pytest.mark.parametrize("name", ["", "absent", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / name) if name else ""
    with pytest.raises(InvalidValueError, match=rf"^the key file '{path}', .* cannot be read: [NI].* directory; `esti"):
        key_from_environment({KEY_FILE: path})


@pytest.mark.parametrize(("mode", "is_open"), [(0o400, False), (0o440, False), (0o644, True), (0o620, True)])
def test_a_key_that_others_can_read_or_replace_is_refused(tmp_path: Path, mode: int, is_open: bool) -> None:
    path = tmp_path / "key"
    make_key_file(str(path))
    path.chmod(mode)
    if not is_open:
        assert key_from_environment({KEY_FILE: str(path)}) is not None
        return
    told = re.escape(f"the key file '{path}', which {KEY_FILE} names, is open to others (mode {mode:04o}); make a new")
    with pytest.raises(InvalidValueError, match=f"^{told}"):
        key_from_environment({KEY_FILE: str(path)})
