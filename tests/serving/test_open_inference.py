from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from tests.serving.served import (
    DATATYPES,
    ROWS,
    Server,
    array,
    assert_same,
    inputs,
    serving,
    serving_two_versions,
    write_export,
)
from torch_estimator.export.dtypes import DTYPES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_two_versions(tmp_path_factory.mktemp("models")) as running:
        yield running


class Client(triton.InferenceServerClient):  # type: ignore[misc]  # it has no types
    """A client that is closed once: gevent refuses what the garbage collector would do again in another thread."""

    def __del__(self) -> None:
        pass


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with Client(server.rest) as made:
        yield made


def post(server: Server, content: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return httpx.post(f"http://{server.rest}/v2/models/same/infer", content=body, headers=headers, timeout=60)


def request(**changed: Any) -> dict[str, Any]:
    """A request of one row in JSON, with some inputs changed; None leaves an input out."""
    given = []
    for name, values in ROWS.items():
        shape = np.array(values[:1]).shape
        one = {"name": name, "datatype": DATATYPES[name], "shape": list(shape), "data": values[0]}
        if np.ndim(values[0]) == 0:
            one["data"] = [values[0]]
        if name not in changed:
            given.append(one)
        elif changed[name] is not None:
            given.append({**one, **changed[name]})
    return {"inputs": given}


@pytest.mark.parametrize("is_binary", [True, False])
def test_a_triton_client_sends_and_gets_all_types(client: Any, is_binary: bool) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in DATATYPES]
    result = client.infer("same", inputs(triton, ROWS, binary_data=is_binary), outputs=outputs, request_id="7")
    assert_same(result, ROWS, 100)
    answer = result.get_response()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("same", "2", "7")
    assert [one["name"] for one in answer["outputs"]] == list(DATATYPES)
    assert all(("data" in one) is not is_binary for one in answer["outputs"])


def test_inputs_and_outputs_may_be_binary_and_json_in_one_request(client: Any) -> None:
    given = [*inputs(triton, {"text": ROWS["text"]}, binary_data=False)]
    given += inputs(triton, {name: values for name, values in ROWS.items() if name != "text"})
    outputs = [
        triton.InferRequestedOutput("scaled", binary_data=True),
        triton.InferRequestedOutput("text", binary_data=False),
    ]
    result = client.infer("same", given, outputs=outputs)
    assert result.get_response()["outputs"][1]["data"] == ROWS["text"]
    assert result.as_numpy("scaled").tolist() == (array("number", ROWS["number"]) * np.float32(100)).tolist()
    assert result.as_numpy("number") is None


def test_a_request_names_its_version_and_its_signature(client: Any) -> None:
    assert_same(client.infer("same", inputs(triton, ROWS), model_version="1"), ROWS, 10)
    result = client.infer("same", inputs(triton, ROWS), parameters={"signature_name": "short"})
    assert [one["name"] for one in result.get_response()["outputs"]] == ["text"]


def test_requests_of_many_rows_and_of_many_clients_are_answered(client: Any) -> None:
    many = {name: values * 400 for name, values in ROWS.items()}
    assert_same(client.infer("same", inputs(triton, many)), many, 100)
    waiting = [
        client.async_infer(
            "same",
            inputs(triton, {name: values[at % 3 :][:1] for name, values in ROWS.items()}, binary_data=at % 2 == 0),
        )
        for at in range(30)
    ]
    for at, one in enumerate(waiting):
        assert_same(one.get_result(), {name: values[at % 3 :][:1] for name, values in ROWS.items()}, 100)


def test_answers_are_those_of_tensorflow_servings_rest(server: Server) -> None:
    served = httpx.post(f"http://{server.rest}/v1/models/same:predict", json={"inputs": ROWS}).json()["outputs"]
    given = [
        {"name": name, "datatype": DATATYPES[name], "shape": np.array(values).shape, "data": values}
        for name, values in ROWS.items()
    ]
    outputs = post(server, {"inputs": given}).json()["outputs"]
    assert {one["name"]: np.array(one["data"]).reshape(one["shape"]).tolist() for one in outputs} == served


def test_a_client_sees_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("same")
    assert client.is_model_ready("same", "1")
    assert not client.is_model_ready("same", "3")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_configuration", "statistics"]
    metadata = client.get_model_metadata("same", "1")
    assert (metadata["name"], metadata["versions"], metadata["platform"]) == ("same", ["1", "2"], "onnx_onnxv1")
    assert {"name": "pair", "datatype": "FP32", "shape": [-1, 2]} in metadata["inputs"]
    assert {"name": "scaled", "datatype": "FP32", "shape": [-1]} in metadata["outputs"]
    with pytest.raises(InferenceServerException, match="Servable not found"):
        client.get_model_metadata("other")


def test_infinities_and_nan_are_answered(server: Server) -> None:
    answer = post(server, request(number={"data": [math.nan]}, precise={"data": [math.inf]})).json()
    outputs = {one["name"]: one["data"] for one in answer["outputs"]}
    assert math.isnan(outputs["number"][0])
    assert outputs["precise"] == [math.inf]
    assert outputs["pair"] == [1, 2]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "JSON Parse error"),
        (b"\xff", "not UTF-8"),
        (b"[" * 10_000, "JSON Parse error"),
        (b'{"id": "\\ud800"}', "surrogate"),
        ([], "must be a JSON object"),
        ({}, "'inputs' must be a list of objects"),
        ({"inputs": {}}, "'inputs' must be a list of objects"),
        ({"inputs": [1]}, "'inputs' must be a list of objects"),
        ({"inputs": [{}]}, "Input 0 must have a 'name', a 'datatype' and a list as 'shape'"),
        ({**request(), "id": 5}, "'id' must be a string"),
        ({**request(), "parameters": []}, "object as 'parameters'"),
        ({**request(), "parameters": {"signature_name": "x"}}, "no signature 'x'"),
        ({**request(), "parameters": {"signature_name": []}}, "no signature []"),
        ({**request(), "parameters": {"binary_data_output": 1}}, "must be true or false"),
        ({**request(), "outputs": 5}, "'outputs' must be a list"),
        ({**request(), "outputs": [{"name": []}]}, "a string as 'name'"),
        ({**request(), "outputs": [{"name": "x"}]}, "no output 'x'"),
        ({**request(), "outputs": [{"name": "text"}, {"name": "text"}]}, "requested twice"),
        ({**request(), "outputs": [{"name": "text", "parameters": {"classification": 2}}]}, "'classification'"),
        (request(text=None), "Input text was missing"),
        (request(text={"name": "x"}), "Unexpected tensor name: 'x'"),
        (request(text={"data": "a"}), "must have a list as 'data'"),
        (request(text={"data": None}), "must have a list as 'data'"),
        (request(text={"data": [5]}), "Input text takes strings, but has 5"),
        (request(text={"data": ["\ud800"]}), "surrogate"),
        (request(text={"parameters": {"shared_memory_region": "x"}}), "'shared_memory_region'"),
        (request(text={"parameters": {"binary_data_size": 3}}), "but 0 bytes follow"),
        (request(text={"parameters": {"binary_data_size": 0}}), "both 'data' and a binary_data_size"),
        (request(number={"data": [True]}), "Input number takes numbers, but has True"),
        (request(number={"data": [{}]}), "Input number takes numbers, but has {}"),
        (request(number={"data": ["x"]}), "Instance 0: Input number takes numbers, but has 'x'"),
        (request(number={"data": [10**400]}), "Input number takes numbers"),
        (request(number={"data": [[[1]]]}), "Instance 0: Input number must be a single value, but has the shape"),
        (request(number={"datatype": "FP16"}), "has the datatype FP32, not 'FP16'"),
        (request(number={"datatype": None}), "must have a 'name', a 'datatype'"),
        (request(number={"shape": [-1]}), "must have the shape [rows], but has [-1]"),
        (request(number={"shape": [10**18]}), "Input number has 1"),
        (request(number={"shape": [10**30]}), "must have the shape"),
        (request(number={"shape": [1] * 1000}), "must have the shape"),
        (request(number={"shape": []}), "must have the shape"),
        (request(number={"shape": [1.0]}), "must have the shape"),
        (request(number={"shape": [2], "data": [1, 2]}), "Input number has 2 rows"),
        (request(small={"data": [2**31]}), "does not fit into int32"),
        (request(small={"data": [1.5]}), "Input small takes integers, but has 1.5"),
        (request(large={"data": [2**63]}), "does not fit into int64"),
        (request(ids={"data": [[1], 2], "shape": [1, 2]}), ""),
        (request(ids={"data": [[[1]]], "shape": [1, 1]}), "lists of lists"),
    ],
)  # fmt: skip
def test_wrong_json_gets_a_sentence(server: Server, content: Any, problem: str) -> None:
    answer = post(server, content)
    assert answer.status_code == (400 if problem else 200), answer.text
    assert problem in answer.json().get("error", "")


BINARY_JSON = json.dumps(
    {
        "inputs": [
            *request(text=None, number=None)["inputs"],
            {"name": "number", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
            {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}},
        ]
    }
).encode()
BINARY_DATA = struct.pack("<f", 0.5) + DTYPES["DT_STRING"].encode(np.array(["abc"]))
LENGTH = "Inference-Header-Content-Length"


def test_binary_data_follows_the_json(server: Server) -> None:
    answer = post(server, BINARY_JSON + BINARY_DATA, {LENGTH: str(len(BINARY_JSON))})
    assert answer.status_code == 200
    outputs = {one["name"]: one["data"] for one in answer.json()["outputs"]}
    assert (outputs["number"], outputs["text"]) == ([0.5], ["abc"])


@pytest.mark.parametrize("length", ["", "0", "-1", "+5", "1e3", "0x10", "9" * 400, "5, 5", "99999", "10"])
def test_a_wrong_length_of_the_json_is_refused(server: Server, length: str) -> None:
    assert post(server, BINARY_JSON + BINARY_DATA, {LENGTH: length}).status_code == 400


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (BINARY_JSON, "has the binary_data_size 4, but 0 bytes follow"),
        (BINARY_JSON + BINARY_DATA[:-1], "Input 'text' has the binary_data_size 7, but 6 bytes follow"),
        (BINARY_JSON + BINARY_DATA + b"x", "1 bytes after the data of the last input"),
        (BINARY_JSON + BINARY_DATA[:4] + b"\xff\xff\xff\xffabc", "Input text ends within element 0"),
        (BINARY_JSON + BINARY_DATA[:4] + b"\x02\0\0\0abc", "Input text has 1 bytes after its 1 elements"),
        (BINARY_JSON + BINARY_DATA[:4] + b"\x03\0\0\0\xff\xff\xff", "not UTF-8"),
    ],
)
def test_wrong_binary_data_gets_a_sentence(server: Server, body: bytes, problem: str) -> None:
    answer = post(server, body, {LENGTH: str(len(BINARY_JSON))})
    assert answer.status_code == 400
    assert problem in answer.json()["error"]


@pytest.mark.parametrize("size", [-1, 1.5, "4", True, 2**63, None, [], 3, 5])
def test_a_wrong_size_of_binary_data_is_refused(server: Server, size: Any) -> None:
    one = {"name": "number", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [*request(number=None)["inputs"], one]}).encode()
    assert post(server, text + b"\0\0\0\0", {LENGTH: str(len(text))}).status_code == 400


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["number", "text", "ids", "flag"]), st.binary(max_size=24)),
    st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**40, 2**62]), max_size=3),
    st.integers(-3, 3),
)
def test_hostile_binary_data_never_fails_the_server(
    server: Server, parts: dict[str, bytes], shape: list[int], shift: int
) -> None:
    given = request(**dict.fromkeys(parts))["inputs"]
    for name, data in parts.items():
        parameters = {"binary_data_size": len(data)}
        given.append({"name": name, "datatype": DATATYPES[name], "shape": shape, "parameters": parameters})
    text = json.dumps({"inputs": given}).encode()
    answer = post(server, text + b"".join(parts.values()), {LENGTH: str(len(text) + shift)})
    assert answer.status_code in (200, 400), answer.text


def test_hostile_requests_take_little_memory(server: Server) -> None:
    before = server.peak_bytes
    for shape in ([10**9], [10**9, 0], [0, 10**18], [2**62, 2**62]):
        for name in ("number", "text", "ids"):
            assert post(server, request(**{name: {"shape": shape, "data": []}})).status_code == 400
    ids = {"name": "ids", "datatype": "INT64", "shape": [10**9, 0], "data": []}
    assert post(server, {"inputs": [ids]}).status_code == 400
    assert server.peak_bytes < before + 50e6


def test_a_too_large_body_is_refused(server: Server) -> None:
    assert post(server, request(text={"data": ["x" * 2**20]})).status_code == 413


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_client_may_compress_its_requests(client: Any, algorithm: str) -> None:
    for is_binary in (True, False):
        given = inputs(triton, ROWS, binary_data=is_binary)
        assert_same(client.infer("same", given, request_compression_algorithm=algorithm), ROWS, 100)


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("HEAD", "/v2", 200),
        ("HEAD", "/v2/health/ready", 200),
        ("HEAD", "/v2/models/same/versions/2/config", 200),
        ("HEAD", "/v2/models/other", 404),
        ("HEAD", "/v2/models/same/infer", 405),
        ("HEAD", "/v1/models/same/metadata", 200),
        ("HEAD", "/metrics", 200),
        ("HEAD", "/", 200),
        ("GET", "/v2/repository/index", 405),
        ("POST", "/v2/models/stats", 405),
        ("DELETE", "/v2/models/same/stats", 405),
        ("PUT", "/metrics", 405),
        ("GET", "/v2/models/same/versions/3/stats", 404),
        ("GET", "/v2/models/other/stats", 404),
        ("GET", "/v2/models/other/config", 404),
        ("POST", "/v2/repository/models/same/load", 404),
        ("GET", "/v2", 200),
        ("GET", "/v2/", 200),
        ("POST", "/v2", 405),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/x", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/same/versions/v2", 200),
        ("GET", "/v2/models/same/versions/3", 404),
        ("GET", "/v2/models/same/versions/-1", 404),
        ("GET", f"/v2/models/same/versions/{'9' * 5000}", 404),
        ("GET", "/v2/models/..%2f..%2fetc", 404),
        ("GET", "/v2/models/same/infer", 405),
        ("POST", "/v2/models/same", 405),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", "/v2/models/same/versions/2/ready", 200),
    ],
)
def test_paths(server: Server, verb: str, path: str, status: int) -> None:
    answer = httpx.request(verb, f"http://{server.rest}{path}")
    assert answer.status_code == status
    assert bool(answer.content) is (verb != "HEAD")
    if answer.content:
        assert ("error" in answer.json()) is (status != 200)
    assert ("allow" in answer.headers) is (status == 405)
    for allowed in [verb for verb in answer.headers.get("allow", "").split(", ") if verb]:
        assert httpx.request(allowed, f"http://{server.rest}{path}").status_code != 405


def test_requests_are_counted(server: Server, client: Any) -> None:
    client.infer("same", inputs(triton, ROWS), model_version="1")
    metrics = httpx.get(f"http://{server.rest}/metrics").text
    assert 'te_requests_total{code="200",method="infer",model="same",version="1"}' in metrics


def test_a_token_is_needed_but_for_health(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    (tmp_path / "tokens").write_text("secret\n")
    with (
        serving(tmp_path / "1", "--token-file", str(tmp_path / "tokens")) as server,
        Client(server.rest) as client,
    ):
        assert client.is_server_live()
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="401"):
            client.infer("same", inputs(triton, ROWS))
        assert_same(client.infer("same", inputs(triton, ROWS), headers={"Authorization": "Bearer secret"}), ROWS, 1)
