"""What Triton's clients ask for beside inferences: settings, statistics and the index of all models."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from tests.properties.trials import tried
from tests.serving.served import ROWS, Server, assert_same, inputs, serving, write_export
from torch_estimator.registry import Registry
from torch_estimator.serving.grpc_server import SERVICE

MODULES = {"http": triton_http, "grpc": triton_grpc}


class HttpClient(triton_http.InferenceServerClient):  # type: ignore[misc]  # it has no types
    """A client that is closed once: gevent refuses what the garbage collector would do again in another thread."""

    def __del__(self) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("models")
    for number in (1, 2):
        write_export(base / "export" / str(number), factor=number)
    registry = Registry(base / "registry")
    registry.create_model("empty")
    arguments = ("--registry", registry.url, "--model", "empty", "--max-delay-ms", "2", "--max-batch", "32")
    with serving(base / "export", *arguments) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = {"http": HttpClient, "grpc": triton_grpc.InferenceServerClient}[request.param]
    with kind({"http": server.rest, "grpc": server.grpc}[request.param]) as made:
        made.is_grpc = request.param == "grpc"
        yield made


def content(answer: Any) -> Any:
    """What a client got, in the same form for both protocols."""
    if isinstance(answer, dict | list):
        return answer
    shown = json_format.MessageToJson(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.loads(shown)


def test_a_client_reads_the_settings_of_a_model(client: Any) -> None:
    found = content(client.get_model_config("same", "2"))
    config = found.get("config", found)
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("same", "onnxruntime", 32)
    assert int(config["dynamic_batching"]["max_queue_delay_microseconds"]) == 2000
    by_name = {one["name"]: one for one in config["input"]}
    assert by_name.keys() == {one["name"] for one in client_metadata(client)["inputs"]}
    assert (by_name["pair"]["data_type"], list(map(int, by_name["pair"]["dims"]))) == ("TYPE_FP32", [2])
    assert (by_name["text"]["data_type"], by_name["text"]["dims"]) == ("TYPE_STRING", [])
    assert [name for name, one in by_name.items() if one["optional"]] == ["tags", "ids", "bonus"]
    assert {one["name"] for one in config["output"]} == {*ROWS, "scaled"}


def client_metadata(client: Any) -> Any:
    return content(client.get_model_metadata("same"))


def statistics(client: Any, *names: str) -> dict[tuple[str, str], Any]:
    found = content(client.get_inference_statistics(*names))["model_stats"]
    return {(one["name"], one["version"]): one for one in found}


def numbers(statistic: Any) -> dict[str, int]:
    """The numbers of one version: counts, and nanoseconds with the ending ``_ns``."""
    parts = statistic["inference_stats"]
    return {
        "inferences": int(statistic["inference_count"]),
        "executions": int(statistic["execution_count"]),
        **{name: int(part["count"]) for name, part in parts.items()},
        **{f"{name}_ns": int(part["ns"]) for name, part in parts.items()},
    }


def test_statistics_are_what_was_answered_in_the_time_that_it_took(client: Any) -> None:
    module = triton_grpc if client.is_grpc else triton_http
    before = numbers(statistics(client)["same", "1"])
    other = numbers(statistics(client)["same", "2"])
    began, asked = time.time_ns(), time.perf_counter_ns()
    for rows in (3, 3, 6):
        given = {name: values * (rows // 3) for name, values in ROWS.items()}
        assert_same(client.infer("same", inputs(module, given), model_version="1"), given, 1)
    # More instances than run together are run by themselves.
    many = {name: values * 20 for name, values in ROWS.items()}
    client.infer("same", inputs(module, many), model_version="1")
    for _ in range(2):
        with pytest.raises(InferenceServerException):
            client.infer("same", inputs(module, {"text": ["a"]}), model_version="1")
    took = time.perf_counter_ns() - asked
    after = statistics(client, "same", "1")["same", "1"]
    changed = {name: value - before[name] for name, value in numbers(after).items()}
    assert (changed["inferences"], changed["executions"], changed["success"], changed["fail"]) == (72, 4, 4, 2)
    assert changed["queue"] == changed["compute_infer"] == 4
    # The first three wait 2 ms for others, as exactly as the event loop's timer is.
    assert changed["queue_ns"] >= 3_000_000
    assert 0 < changed["compute_infer_ns"] < changed["success_ns"]
    assert changed["queue_ns"] + changed["compute_infer_ns"] <= changed["success_ns"] + 1000
    assert changed["success_ns"] + changed["fail_ns"] < took
    assert changed["fail_ns"] > 0
    assert began / 1e6 - 1 <= int(after["last_inference"]) <= time.time() * 1e3 + 1
    assert numbers(statistics(client)["same", "2"]) == other


def test_each_request_of_a_batch_counts_with_the_time_of_its_run(server: Server) -> None:
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        before = numbers(statistics(client)["same", "2"])
        answers: list[Any] = []
        one = {name: values[:1] for name, values in ROWS.items()}
        while numbers(statistics(client)["same", "2"])["executions"] - before["executions"] == len(answers):
            started = len(answers)
            for _ in range(16):
                client.async_infer("same", inputs(triton_grpc, one), lambda result, error: answers.append(error))
            deadline = time.monotonic() + 60
            while len(answers) < started + 16:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        after = numbers(statistics(client)["same", "2"])
    assert answers == [None] * len(answers)
    assert after["success"] - before["success"] == after["compute_infer"] - before["compute_infer"] == len(answers)
    assert 0 < after["executions"] - before["executions"] < len(answers)


def test_the_statistics_of_several_processes_are_added_up(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    with serving(tmp_path, "--workers", "2") as server:
        for _ in range(20):
            # Each has a connection of its own, so both processes get some.
            body = {"inputs": {name: values[:1] for name, values in ROWS.items()}}
            assert httpx.post(f"http://{server.rest}/v1/models/same:predict", json=body).status_code == 200
        deadline = time.monotonic() + 60
        found: dict[str, int] = {}
        # A process publishes what it has executed several times a second.
        while found.get("executions") != 20:
            assert time.monotonic() < deadline, found
            answer = httpx.get(f"http://{server.rest}/v2/models/same/versions/1/stats").json()
            found = numbers(answer["model_stats"][0])
    assert (found["success"], found["inferences"], found["fail"]) == (20, 20, 0)


def test_the_index_has_every_version_and_models_without_one(client: Any) -> None:
    found = content(client.get_model_repository_index())
    index = found["models"] if client.is_grpc else found
    assert [{key: value for key, value in one.items() if value} for one in index] == [
        {"name": "empty"},
        {"name": "same", "version": "1", "state": "READY"},
        {"name": "same", "version": "2", "state": "READY"},
    ]


def test_the_index_may_be_of_what_is_ready_and_says_why_the_rest_is_not(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    write_export(tmp_path / "2")
    (tmp_path / "2" / "model.onnx").write_bytes(b"no graph")
    with serving(tmp_path) as server:
        index = httpx.post(f"http://{server.rest}/v2/repository/index").json()
        assert [(one["version"], one["state"]) for one in index] == [("1", "READY"), ("2", "UNAVAILABLE")]
        assert "model.onnx" in index[1]["reason"]
        ready = httpx.post(f"http://{server.rest}/v2/repository/index", json={"ready": True}).json()
        assert ready == index[:1]
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            assert [one.state for one in client.get_model_repository_index().models] == ["READY", "UNAVAILABLE"]


def test_unknown_names_get_a_sentence(client: Any) -> None:
    for asked in (client.get_model_config, client.get_inference_statistics):
        with pytest.raises(InferenceServerException, match=r"request: Latest\(other\)"):
            asked("other")
        with pytest.raises(InferenceServerException, match=r"request: Specific\(same, 7\)"):
            asked("same", "7")
        with pytest.raises(InferenceServerException, match="has no version 'x'; versions are numbers"):
            asked("same", "x")


@pytest.mark.parametrize("body", [b"[]", b'{"ready": 1}', b"{", b"\xff", b"5", b'"' + b"x" * 5000])
def test_a_wrong_body_for_the_index_gets_a_sentence(server: Server, body: bytes) -> None:
    answer = httpx.post(f"http://{server.rest}/v2/repository/index", content=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


@tried(50)
@given(st.sampled_from(["ModelConfig", "ModelStatistics", "RepositoryIndex"]), st.binary(max_size=30))
def test_any_bytes_for_a_method_of_grpc_are_answered_or_refused(server: Server, method: str, content: bytes) -> None:
    wanted = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    with grpc.insecure_channel(server.grpc) as channel:
        try:
            channel.unary_unary(f"/{SERVICE}/{method}")(content, timeout=60)
        except grpc.RpcError as error:
            assert error.code() in wanted
            assert error.details().endswith((".", ")"))


@pytest.fixture(scope="module")
def rest() -> Iterator[httpx.Client]:
    """One for all requests, as making one takes longer than a request."""
    with httpx.Client(timeout=60) as one:
        yield one


_words = st.one_of(
    st.sampled_from(["same", "empty", "stats", "1", "v2", "versions", "config", ""]), st.text(max_size=8)
)


@tried(50)
@given(_words, _words, st.sampled_from(["config", "stats", "index"]), st.booleans(), st.binary(max_size=12))
def test_any_names_and_bodies_are_answered_or_refused(
    server: Server, rest: httpx.Client, model: str, version: str, what: str, is_post: bool, body: bytes
) -> None:
    path = f"/v2/models/{model}" + f"/versions/{version}" * bool(version) + f"/{what}"
    answers = [rest.post(f"http://{server.rest}/v2/repository/index", content=body)]
    verb = "POST" if is_post else "GET"
    with contextlib.suppress(httpx.InvalidURL):
        answers.append(rest.request(verb, f"http://{server.rest}{httpx.URL(path=path).raw_path.decode()}"))
    for answer in answers:
        assert answer.status_code in (200, 400, 404, 405), answer.text
        assert answer.status_code == 200 or list(answer.json()) == ["error"]
