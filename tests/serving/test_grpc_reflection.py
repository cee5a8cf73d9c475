"""Server reflection, asked as grpcurl asks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.trials import tried
from tests.serving.served import Server, serving, write_export
from torch_estimator.serving.grpc_reflection import _MESSAGES

Request, Answer = _MESSAGES["ServerReflectionRequest"], _MESSAGES["ServerReflectionResponse"]

FIELDS = ["file_by_filename", "file_containing_symbol", "all_extension_numbers_of_type", "list_services"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("models")
    write_export(base / "1")
    with serving(base) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as made:
        yield made


def reflect(channel: Any, *requests: Any, version: str = "v1", **settings: Any) -> list[Any]:
    """The answers to the requests of one stream, each a message or its bytes."""
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda one: one if isinstance(one, bytes) else one.SerializeToString(),
        response_deserializer=Answer.FromString,
    )
    return list(call(iter(requests), timeout=60, **settings))


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_a_client_that_knows_no_messages_can_call_what_is_listed(channel: Any, version: str) -> None:
    (listed,) = reflect(channel, Request(list_services=""), version=version)
    services = [one.name for one in listed.list_services_response.service]
    assert services == [
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ]
    answers = reflect(channel, *(Request(file_containing_symbol=name) for name in services), version=version)
    pool = descriptor_pool.DescriptorPool()
    for answer in answers:
        for content in answer.file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(content))
    for name in services:
        for method in pool.FindServiceByName(name).methods:
            assert pool.FindMessageTypeByName(method.input_type.full_name) is method.input_type
    assert "ModelInfer" in pool.FindServiceByName(services[0]).methods_by_name


@pytest.mark.parametrize(
    "request_",
    [
        {"file_by_filename": "health.proto"},
        {"file_containing_symbol": "grpc.health.v1.Health"},
        {"file_containing_symbol": "grpc.health.v1.Health.Check"},
        {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse"},
        {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse.ServingStatus"},
    ],
)
def test_the_file_of_a_name_is_found(channel: Any, request_: dict[str, str]) -> None:
    (answer,) = reflect(channel, Request(host="a", **request_))
    (content,) = answer.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(content).package == "grpc.health.v1"
    assert (answer.valid_host, answer.original_request) == ("a", Request(host="a", **request_))


def test_what_is_not_there_is_said_and_the_stream_goes_on(channel: Any) -> None:
    unknown = (
        Request(file_by_filename="other.proto"),
        Request(file_containing_symbol="inference.Other"),
        Request(file_containing_symbol=""),
        Request(all_extension_numbers_of_type="inference.Other"),
        Request(file_containing_extension={"containing_type": "inference.ModelConfig", "extension_number": 3}),
        Request(),
    )
    *answers, extensions = reflect(channel, *unknown, Request(all_extension_numbers_of_type="inference.ModelConfig"))
    assert [one.error_response.error_code for one in answers] == [5] * len(unknown)
    said = answers[1].error_response.error_message
    assert said == "The server has no answer to file_containing_symbol 'inference.Other'."
    assert extensions.all_extension_numbers_response.base_type_name == "inference.ModelConfig"


def test_a_silent_stream_does_not_hold_back_the_end(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    with serving(tmp_path, "--drain-secs", "3600") as server, grpc.insecure_channel(server.grpc) as channel:
        is_over = threading.Event()

        def silent_after_one() -> Iterator[bytes]:
            yield Request(list_services="").SerializeToString()
            is_over.wait(60)

        answers = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(silent_after_one())
        assert next(answers)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        is_over.set()


def test_a_token_is_needed(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    (tmp_path / "tokens").write_text("secret\n")
    with (
        serving(tmp_path / "1", "--token-file", str(tmp_path / "tokens")) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            reflect(channel, Request(list_services=""))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert reflect(channel, Request(list_services=""), metadata=(("authorization", "Bearer secret"),))


@tried(50)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.builds(lambda one, text: Request(**{one: text}), st.sampled_from(FIELDS), st.text(max_size=12)),
        ),
        max_size=4,
    )
)
def test_any_stream_is_answered_or_refused(channel: Any, requests: list[Any]) -> None:
    try:
        assert len(reflect(channel, *requests)) == len(requests)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "The request is no ServerReflectionRequest."
