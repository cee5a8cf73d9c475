"""gRPC's own health protocol, asked with the client that grpc publishes."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.serving.served import Server, serving, write_export
from torch_estimator.registry import Registry
from torch_estimator.serving import grpc_health

health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
health_pb2_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("models")
    write_export(base / "export" / "1")
    registry = Registry(base / "registry")
    registry.create_model("empty")
    with serving(base / "export", "--registry", registry.url, "--model", "empty") as running:
        yield running


def check(server: Server, name: str, headers: tuple[tuple[str, str], ...] = ()) -> Any:
    with grpc.insecure_channel(server.grpc) as channel:
        asked = health_pb2.HealthCheckRequest(service=name)
        return health_pb2_grpc.HealthStub(channel).Check(asked, timeout=60, metadata=headers).status


def test_the_messages_are_those_of_the_published_client() -> None:
    for name, ours in grpc_health._MESSAGES.items():
        theirs = health_pb2.DESCRIPTOR.message_types_by_name[name]
        assert [(one.name, one.number, one.type) for one in ours.DESCRIPTOR.fields] == [
            (one.name, one.number, one.type) for one in theirs.fields
        ]
    ours = grpc_health._MESSAGES["HealthCheckResponse"].ServingStatus
    assert ours.items() == health_pb2.HealthCheckResponse.ServingStatus.items()
    assert health_pb2.DESCRIPTOR.services_by_name["Health"].full_name == grpc_health.SERVICE


def test_a_model_is_served_once_it_has_a_version(server: Server) -> None:
    assert check(server, "same") == SERVING
    assert check(server, "empty") == NOT_SERVING
    # The server is ready when all models are.
    assert check(server, "") == NOT_SERVING
    with pytest.raises(grpc.RpcError, match="There is no model 'other'; the empty name stands for") as caught:
        check(server, "other")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_what_is_no_message_is_the_clients_fault(server: Server) -> None:
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{grpc_health.SERVICE}/Check")(b"\xff\xff", timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def watched(server: Server, name: str) -> queue.Queue[int]:
    """What a client that watches gets, and -1 when the server has ended the stream."""
    told: queue.Queue[int] = queue.Queue()

    def watch() -> None:
        with grpc.insecure_channel(server.grpc) as channel:
            for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name)):
                told.put(answer.status)
            told.put(-1)

    threading.Thread(target=watch, daemon=True).start()
    return told


def test_who_watches_is_told_of_the_first_version_and_of_the_end(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.create_model("late")
    write_export(tmp_path / "1")
    arguments = ("--registry", registry.url, "--model", "late", "--drain-secs", "3600")
    with serving(tmp_path / "1", *arguments) as server:
        all, late, other = (watched(server, name) for name in ("", "late", "other"))
        assert [all.get(timeout=60), late.get(timeout=60), other.get(timeout=60)] == [NOT_SERVING, NOT_SERVING, UNKNOWN]
        write_export(tmp_path / "export")
        registry.create_version("late", 1, tmp_path / "export")
        assert [all.get(timeout=60), late.get(timeout=60)] == [SERVING, SERVING]
        server.process.send_signal(signal.SIGTERM)
        # Streams that stayed open would hold the server back for an hour.
        assert [all.get(timeout=60), all.get(timeout=60)] == [NOT_SERVING, -1]
        assert server.process.wait(60) == 0


def test_all_of_many_streams_hear_of_the_end(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    count = int(os.environ.get("TE_STREAMS", "500"))
    with serving(tmp_path / "1", "--drain-secs", "3600") as server, grpc.insecure_channel(server.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        streams: list[Any] = []
        while len(streams) < count:
            # gRPC itself refuses some of thousands that begin at once.
            begun = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(100)]
            assert [next(stream).status for stream in begun] == [SERVING] * 100
            streams += begun
        # Requests of others are answered meanwhile.
        assert check(server, "same") == SERVING
        server.process.send_signal(signal.SIGTERM)
        assert [next(stream).status for stream in streams] == [NOT_SERVING] * count
        assert server.process.wait(60) == 0


def test_only_the_whole_server_is_seen_without_a_token(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    (tmp_path / "tokens").write_text("secret\n")
    with serving(tmp_path / "1", "--token-file", str(tmp_path / "tokens")) as server:
        assert check(server, "") == SERVING
        for name in ("same", "other"):
            with pytest.raises(grpc.RpcError) as caught:
                check(server, name)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert check(server, "same", (("authorization", "Bearer secret"),)) == SERVING
