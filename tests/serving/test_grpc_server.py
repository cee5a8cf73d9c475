from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

from tests.serving.served import (
    DATATYPES,
    INPUTS,
    ROOT,
    ROWS,
    Server,
    array,
    assert_same,
    command,
    environment,
    inputs,
    serving,
    serving_two_versions,
    write_export,
)
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.signatures import SIGNATURES_FILE
from torch_estimator.serving import grpc_server
from torch_estimator.serving.app import Answered, ServingApp
from torch_estimator.serving.grpc_server import SERVICE, GrpcServer, reserve_port
from torch_estimator.serving.open_inference import EXTENSIONS
from torch_estimator.serving.options import ServedModel, ServingOptions
from torch_estimator.serving.service import PredictionService
from torch_estimator.web.errors import RequestError

# At once, on one connection; gRPC's own limit is 3,000. TE_STREAMS=10000 takes what a server has to bear.
STREAMS = int(os.environ.get("TE_STREAMS", "4000"))

PROTOS = ROOT / "torch_estimator" / "serving" / "protos"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_two_versions(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.grpc) as made:
        yield made


def message(rows: dict[str, Any] = ROWS, **changed: Any) -> Any:
    """The message of a request."""
    given = service_pb2.ModelInferRequest(**{"model_name": "same", **changed})
    for name, values in rows.items():
        data = array(name, values)
        given.inputs.add(name=name, datatype=DATATYPES[name], shape=data.shape)
        given.raw_input_contents.append(INPUTS[name].type.encode(data))
    return given


def infer(server: Server, content: bytes) -> bytes:
    with grpc.insecure_channel(server.grpc) as channel:
        answer: bytes = channel.unary_unary(f"/{SERVICE}/ModelInfer")(content, timeout=60)
        return answer


def refused(server: Server, content: Any) -> tuple[Any, str]:
    """The code and the sentence with which a request is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        infer(server, content if isinstance(content, bytes) else content.SerializeToString())
    return caught.value.code(), caught.value.details()


def test_the_messages_are_those_that_tritons_client_uses() -> None:
    theirs = service_pb2.DESCRIPTOR.message_types_by_name

    def fields(described: Any) -> dict[str, Any]:
        return {
            one.name: (one.number, one.type, one.is_repeated, fields(one.message_type) if one.message_type else None)
            for one in described.fields
        }

    for name in [name for name in grpc_server._MESSAGES if name in theirs and "Config" not in name]:
        ours, wanted = fields(grpc_server._MESSAGES[name].DESCRIPTOR), fields(theirs[name])
        # Of what a model has answered, the server keeps no numbers by size of the batch and none of memory.
        left_out = {"ModelStatistics": {"batch_stats", "memory_usage", "response_stats"}}.get(name, set())
        if name == "ModelStatisticsResponse":
            ours, wanted = ({"model_stats": one["model_stats"][:3]} for one in (ours, wanted))
        assert ours == {key: one for key, one in wanted.items() if key not in left_out}, name
    assert service_pb2.DESCRIPTOR.services_by_name[SERVICE.split(".")[1]].full_name == SERVICE


def test_the_settings_of_a_model_are_among_those_of_triton() -> None:
    theirs = model_config_pb2.DESCRIPTOR.message_types_by_name
    for name in ("ModelConfig", "ModelInput", "ModelOutput", "ModelDynamicBatching"):
        for one in grpc_server._MESSAGES[name].DESCRIPTOR.fields:
            wanted = theirs[name].fields_by_name[one.name]
            assert (one.number, one.type, one.is_repeated) == (wanted.number, wanted.type, wanted.is_repeated)
    types = grpc_server._MESSAGES["ModelInput"].DESCRIPTOR.fields_by_name["data_type"].enum_type
    assert {one.name: one.number for one in types.values} == dict(model_config_pb2.DataType.items())


@pytest.mark.parametrize("name", ["open_inference", "health", "reflection", "tensorflow_serving"])
def test_the_messages_are_translated_from_their_source(tmp_path: Path, name: str) -> None:
    translated = tmp_path / f"{name}.pb"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"]
    subprocess.run([*protoc, f"--descriptor_set_out={translated}", f"{name}.proto"], check=True)
    assert translated.read_bytes() == (PROTOS / f"{name}.pb").read_bytes(), "run scripts/protos"


def test_a_triton_client_sends_and_gets_all_types(client: Any) -> None:
    result = client.infer("same", inputs(triton, ROWS), request_id="7")
    assert_same(result, ROWS, 100)
    answer = result.get_response()
    assert (answer.model_name, answer.model_version, answer.id) == ("same", "2", "7")
    assert [one.name for one in answer.outputs] == list(DATATYPES)


def test_a_request_names_its_version_its_signature_and_its_outputs(client: Any) -> None:
    assert_same(client.infer("same", inputs(triton, ROWS), model_version="1"), ROWS, 10)
    result = client.infer("same", inputs(triton, ROWS), parameters={"signature_name": "short"})
    assert [one.name for one in result.get_response().outputs] == ["text"]
    outputs = [triton.InferRequestedOutput("scaled"), triton.InferRequestedOutput("text")]
    result = client.infer("same", inputs(triton, ROWS), outputs=outputs)
    assert [one.name for one in result.get_response().outputs] == ["scaled", "text"]


def test_typed_contents_are_answered_with_typed_contents(server: Server) -> None:
    given = service_pb2.ModelInferRequest(model_name="same")
    fields = {"BYTES": "bytes", "FP32": "fp32", "FP64": "fp64", "INT32": "int", "INT64": "int64", "BOOL": "bool"}
    for name, values in ROWS.items():
        data = array(name, values)
        one = given.inputs.add(name=name, datatype=DATATYPES[name], shape=data.shape)
        elements = [item.encode() if isinstance(item, str) else item for item in data.ravel().tolist()]
        getattr(one.contents, f"{fields[DATATYPES[name]]}_contents").extend(elements)
    answer = service_pb2.ModelInferResponse.FromString(infer(server, given.SerializeToString()))
    assert not answer.raw_output_contents
    for output in answer.outputs[: len(ROWS)]:
        elements = array(output.name, ROWS[output.name]).ravel().tolist()
        wanted = [item.encode() if isinstance(item, str) else item for item in elements]
        assert list(getattr(output.contents, f"{fields[output.datatype]}_contents")) == wanted


def test_requests_of_many_rows_and_of_many_clients_are_answered(client: Any) -> None:
    many = {name: values * 400 for name, values in ROWS.items()}
    assert_same(client.infer("same", inputs(triton, many)), many, 100)
    answers: list[Any] = [None] * 30
    done = threading.Semaphore(0)

    def take(at: int, result: Any, error: Any) -> None:
        answers[at] = error or result
        done.release()

    parts = [{name: values[at % 3 :][:1] for name, values in ROWS.items()} for at in range(30)]
    for at, rows in enumerate(parts):
        client.async_infer("same", inputs(triton, rows), lambda result, error, at=at: take(at, result, error))
    for _ in parts:
        assert done.acquire(timeout=60)
    for rows, answer in zip(parts, answers, strict=True):
        assert_same(answer, rows, 100)


def test_answers_are_those_of_tensorflow_servings_rest(client: Any, server: Server) -> None:
    served = httpx.post(f"http://{server.rest}/v1/models/same:predict", json={"inputs": ROWS}).json()["outputs"]
    assert_same(client.infer("same", inputs(triton, ROWS)), {name: served[name] for name in ROWS}, 100)


def test_a_client_sees_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("same")
    assert client.is_model_ready("same", "1")
    assert not client.is_model_ready("same", "3")
    assert not client.is_model_ready("same", "x")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata().extensions == list(EXTENSIONS)
    metadata = client.get_model_metadata("same", "1")
    assert (metadata.name, metadata.versions, metadata.platform) == ("same", ["1", "2"], "onnx_onnxv1")
    assert ("pair", "FP32", [-1, 2]) in [(one.name, one.datatype, one.shape) for one in metadata.inputs]
    assert ("scaled", "FP32", [-1]) in [(one.name, one.datatype, one.shape) for one in metadata.outputs]
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.get_model_metadata("other")


def test_wrong_requests_get_a_code_and_a_sentence(server: Server) -> None:
    wrong, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    assert refused(server, b"\xff\xff") == (wrong, "The request is no ModelInferRequest of the protocol.")
    assert refused(server, b"")[0] == missing
    assert refused(server, message(model_name="other"))[0] == missing
    assert refused(server, message(model_version="3"))[0] == missing
    assert refused(server, message(model_version="x"))[0] == missing
    assert refused(server, service_pb2.ModelInferRequest(model_name="same")) == (
        wrong,
        "The request has no instance; give inputs with at least one row.",
    )
    given = message()
    given.raw_input_contents.pop()
    assert refused(server, given) == (wrong, "raw_input_contents has 9 entries, but there are 10 inputs.")
    given = message()
    given.inputs[0].contents.bytes_contents.append(b"a")
    assert refused(server, given)[0] == wrong
    for index, shape in ((1, -3), (1, 2**62), (8, -1), (8, 2**62)):
        given = message()
        given.inputs[index].shape[0] = shape
        assert refused(server, given)[0] == wrong
    for datatype in ("", "FP16", "FP64", "BYTES", "x" * 10_000):
        given = message()
        given.inputs[1].datatype = datatype
        assert refused(server, given)[0] == wrong
        given.ClearField("raw_input_contents")
        assert refused(server, given)[0] == wrong
    for name in ("", "x", "héllo" * 10_000, "\U0001f600" * 10_000):
        given = message()
        given.inputs[0].name = name
        code, sentence = refused(server, given)
        assert (code, sentence[:23]) == (wrong, "Unexpected tensor name:")
        given = message()
        given.outputs.add(name=name)
        assert refused(server, given)[0] == wrong
    for parameter in (service_pb2.InferParameter(int64_param=5), service_pb2.InferParameter()):
        given = message()
        given.parameters["signature_name"].CopyFrom(parameter)
        assert refused(server, given)[0] == wrong


def test_an_error_names_the_instance(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    described = tmp_path / "1" / SIGNATURES_FILE
    manifest = json.loads(described.read_text())
    manifest["signatures"]["serving_default"]["inputs"]["ids"]["lengths_of"] = "tags"
    described.write_text(json.dumps(manifest))
    service = PredictionService(ServingOptions(models=(ServedModel(name="same", path=str(tmp_path)),)))
    service.start()
    rpc = GrpcServer(ServingApp(service))
    try:
        with pytest.raises(RequestError, match=r"^Instance 0: Input ids has 1 values, but tags, .* has 2\.$"):
            asyncio.run(rpc._model_infer(message(), Answered()))
    finally:
        service.close()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_messages_never_fail_the_server(server: Server, data: st.DataObject) -> None:
    content = bytearray(message({name: values[:1] for name, values in ROWS.items()}).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(len(content) // 2, len(content)))]
    try:
        infer(server, bytes(content))
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), error


def test_too_large_messages_are_refused_without_being_held(server: Server) -> None:
    before = server.peak_bytes
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused(server, b"\0" * (2 << 20))[0] == exhausted
    # This is less than the limit while it is compressed.
    with (
        grpc.insecure_channel(server.grpc, options=[("grpc.max_send_message_length", -1)]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(f"/{SERVICE}/ModelInfer")(
            b"\0" * (200 << 20), timeout=60, compression=grpc.Compression.Gzip
        )
    assert caught.value.code() == exhausted
    assert server.peak_bytes < before + 50e6


def test_thousands_of_streams_are_answered_or_refused(server: Server) -> None:
    content = message(ONE).SerializeToString()

    async def ask_all() -> list[Any]:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")

            async def ask() -> Any:
                try:
                    return await call(content, timeout=120)
                except grpc.aio.AioRpcError as error:
                    return error.code()

            return list(await asyncio.gather(*(ask() for _ in range(STREAMS))))

    answers = asyncio.run(ask_all())
    assert any(isinstance(one, bytes) for one in answers)
    assert {one for one in answers if not isinstance(one, bytes)} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_requests_are_counted(server: Server, client: Any) -> None:
    client.infer("same", inputs(triton, ROWS), model_version="1")
    metrics = httpx.get(f"http://{server.rest}/metrics").text
    assert 'te_requests_total{code="200",method="ModelInfer",model="same",version="1"}' in metrics


def test_a_token_is_needed_but_for_health(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    (tmp_path / "tokens").write_text("secret\n")
    log = tmp_path / "access.log"
    arguments = ("--token-file", str(tmp_path / "tokens"), "--access-log", str(log))
    with (
        serving(tmp_path / "1", *arguments) as server,
        triton.InferenceServerClient(server.grpc) as client,
    ):
        assert client.is_server_live()
        assert client.is_server_ready()
        for headers in (None, {"authorization": "Bearer wrong"}):
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                client.infer("same", inputs(triton, ROWS), headers=headers)
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                client.get_server_metadata(headers=headers)
        headers = {"authorization": "Bearer secret", "traceparent": "00-1-2-01"}
        assert_same(client.infer("same", inputs(triton, ROWS), headers=headers), ROWS, 1)
    last = log.read_text().splitlines()[-1]
    assert '"path":"/inference.GRPCInferenceService/ModelInfer","status":200' in last
    assert '"instances":3' in last
    assert '"traceparent":"00-1-2-01"' in last


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_tls(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    arguments = [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(arguments, check=True, capture_output=True)
    with (
        serving(tmp_path / "1", "--tls-certificate", certificate, "--tls-key", key) as server,
        triton.InferenceServerClient(server.grpc, ssl=True, root_certificates=certificate) as client,
    ):
        assert_same(client.infer("same", inputs(triton, ROWS)), ROWS, 1)


ONE = {name: values[:1] for name, values in ROWS.items()}


def test_a_request_that_waits_for_too_long_is_refused(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    with (
        serving(tmp_path / "1", "--max-delay-ms", "1000", "--timeout-secs", "0.1") as server,
        triton.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match=r"DEADLINE_EXCEEDED.*0\.1 s"),
    ):
        client.infer("same", inputs(triton, ONE))


def test_the_clients_deadline_and_the_limit_of_the_queue_are_kept(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    # A request waits for an hour.
    slow = ("--max-delay-ms", "3600000", "--timeout-secs", "3600", "--max-queue", "1")
    with serving(tmp_path / "1", *slow) as server, triton.InferenceServerClient(server.grpc) as client:
        waiting = client.async_infer("same", inputs(triton, ONE), lambda result, error: None)
        wait_until_running(server, lambda: False)
        with pytest.raises(InferenceServerException, match=r"RESOURCE_EXHAUSTED.*wait already"):
            client.infer("same", inputs(triton, ONE))
        waiting.cancel()
    with (
        serving(tmp_path / "1", *slow) as server,
        triton.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match=r"(?i)deadline.exceeded"),
    ):
        client.infer("same", inputs(triton, ONE), client_timeout=0.5)


def wait_until_running(server: Server, is_over: Callable[[], bool]) -> None:
    """Wait until the server has read a request that it has not answered, or until `is_over`."""
    while not is_over():
        text = httpx.get(f"http://{server.rest}/metrics").text
        running = re.search(r"^te_requests_running (\S+)", text, re.MULTILINE)
        # The request for the metrics is one, too.
        if running is not None and float(running[1]) > 1:
            return


def test_a_request_is_answered_after_sigterm(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    answers: list[Any] = []
    done = threading.Event()

    def take(result: Any, error: Any) -> None:
        answers.append(error or result)
        done.set()

    with (
        serving(tmp_path / "1", "--max-delay-ms", "2000") as server,
        triton.InferenceServerClient(server.grpc) as client,
    ):
        client.async_infer("same", inputs(triton, ONE), take)
        # On a very busy machine it may be answered before this is seen.
        wait_until_running(server, done.is_set)
        server.process.send_signal(signal.SIGTERM)
        assert done.wait(60)
        assert_same(answers[0], ONE, 1)
        assert server.process.wait(60) == 0


def test_a_port_in_use_is_refused_at_the_command_line(server: Server, tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    port = server.grpc.rpartition(":")[2]
    ended = subprocess.run(
        command(tmp_path / "1", "--grpc-port", port), capture_output=True, text=True, cwd=ROOT, env=environment()
    )
    assert ended.returncode == 2
    assert ended.stderr.strip() == (
        f"estimator: error: gRPC cannot listen on 127.0.0.1, port {port}: Address already in use; "
        "choose another --grpc-port."
    )


def test_several_workers_share_a_port(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    settings, reserved = reserve_port(
        ServingOptions(models=(ServedModel(name="same", path=str(tmp_path / "1")),), grpc_port=0)
    )
    assert settings.grpc_port
    assert reserved is not None
    with pytest.raises(InvalidValueError, match="choose another --grpc-port"):
        reserve_port(settings)
    address = f"127.0.0.1:{settings.grpc_port}"
    services = [PredictionService(settings) for _ in range(2)]

    def ask() -> None:
        for _ in range(40):
            # Otherwise all clients of a process share one connection.
            with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                given = message().SerializeToString()
                answer = channel.unary_unary(f"/{SERVICE}/ModelInfer")(given, timeout=60)
                assert_same(triton.InferResult(service_pb2.ModelInferResponse.FromString(answer)), ROWS, 1)

    async def serve() -> None:
        servers = [GrpcServer(ServingApp(service)) for service in services]
        for one in servers:
            await one.start()
        try:
            await asyncio.to_thread(ask)
        finally:
            for one in servers:
                await one.stop_after(lambda: True)

    for service in services:
        service.start()
    try:
        asyncio.run(serve())
    finally:
        for service in services:
            service.close()
        reserved.close()
    counts = [
        sum(value for name, labels, value in service.metrics.samples() if name == "te_requests_total")
        for service in services
    ]
    assert sum(counts) == 40
    assert min(counts) > 0


def test_a_wrong_address_is_refused(tmp_path: Path) -> None:
    models = (ServedModel(name="same", path=str(tmp_path)),)
    with pytest.raises(InvalidValueError, match=r"gRPC cannot listen on 203\.0\.113\.1"):
        reserve_port(ServingOptions(models=models, host="203.0.113.1", grpc_port=0))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidValueError, match=f"port {port}: Address already in use"):
            reserve_port(ServingOptions(models=models, grpc_port=port))


def test_the_limit_of_a_message_is_that_of_the_inflated_one(server: Server) -> None:
    settings = {"compression": grpc.Compression.Gzip, "options": (("grpc.max_send_message_length", -1),)}
    with grpc.insecure_channel(server.grpc, **settings) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        assert ask(message().SerializeToString(), timeout=60)
        before = server.peak_bytes
        with pytest.raises(grpc.RpcError) as caught:
            ask(bytes(2**27), timeout=60)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.peak_bytes < before + 2**25
