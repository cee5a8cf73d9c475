"""Clients that nobody here wrote, as they are: they need what HTTP and gRPC offer beside the requests of a prediction.

Those that are no Python packages are taken from this machine, and tests of missing ones are skipped. Packages that do
not fit beside the project's own are taken from the environment `.bench/clients`, which
``.venv/bin/python -m benchmarks.peers.environment clients`` makes.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import environment
from tests.properties.trials import tried
from tests.serving.models import write_export
from tests.serving.served import Server
from tests.serving.served import serving as serving_both

PREDICT = b'{"signature_name": "bare", "instances": [{"x": 1.5}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("models")
    write_export(base / "1", factor=2)
    with serving_both(base, "--cors-origins", "https://page.example", "--host", "[::1]") as running:
        assert running.rest.startswith("[::1]:")
        assert running.grpc.startswith("[::1]:")
        yield running


def run(*command: str | Path, timeout: float = 120, **settings: Any) -> str:
    """The output of a client, which must end without an error."""
    ended = subprocess.run(command, capture_output=True, timeout=timeout, **settings)
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")[-3000:]
    return ended.stdout.decode()


def needed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def clients() -> Path:
    """The folder of the programs of the newest clients."""
    if not environment.is_installed("clients"):
        pytest.skip("python -m benchmarks.peers.environment clients installs the newest clients")
    return environment.folder("clients") / "bin"


def test_curl_offers_http_2(server: Server) -> None:
    curl = needed("curl")
    if "HTTP2" not in run(curl, "--version"):
        pytest.skip("this curl has no HTTP/2")
    url = f"http://{server.rest}/v1/models/same:predict"
    answer = run(curl, "--silent", "--fail", "--globoff", "--http2", "--data", PREDICT, url, url)
    assert answer == 2 * '{"predictions":[3.0]}'


def test_curl_sends_a_compressed_body(server: Server, tmp_path: Path) -> None:
    body = tmp_path / "body.gz"
    body.write_bytes(gzip.compress(PREDICT))
    url = f"http://{server.rest}/v1/models/same:predict"
    options = ("--silent", "--fail", "--globoff", "--header", "Content-Encoding: gzip", "--data-binary", f"@{body}")
    assert run(needed("curl"), *options, url) == '{"predictions":[3.0]}'


def test_wget_looks_whether_the_server_is_healthy(server: Server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/same/ready", "/v1/models/same"):
        run(needed("wget"), "--quiet", "--spider", "--tries=1", f"http://{server.rest}{path}")


def test_the_http_client_of_the_jdk_asks_with_its_defaults(server: Server, tmp_path: Path) -> None:
    java = needed("java")
    source = tmp_path / "Ask.java"
    source.write_text(
        textwrap.dedent(
            """
            import java.net.URI;
            import java.net.http.*;

            public class Ask {
                public static void main(String[] urls) throws Exception {
                    var client = HttpClient.newHttpClient();
                    for (int turn = 0; turn < 2; turn++) {
                        var body = HttpRequest.BodyPublishers.ofString("%s");
                        var request = HttpRequest.newBuilder(URI.create(urls[0])).POST(body).build();
                        System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
                    }
                    var head = HttpRequest.newBuilder(URI.create(urls[1]))
                        .method("HEAD", HttpRequest.BodyPublishers.noBody()).build();
                    System.out.println(client.send(head, HttpResponse.BodyHandlers.discarding()).statusCode());
                }
            }
            """
        )
        % PREDICT.decode().replace('"', '\\"')
    )
    base = f"http://{server.rest}"
    options = ("-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv6Addresses=true")
    said = run(java, *options, source, f"{base}/v1/models/same:predict", f"{base}/v2/health/ready")
    assert said.splitlines() == ['{"predictions":[3.0]}'] * 2 + ["200"]


def test_the_generator_of_python_clients_keeps_every_path(server: Server, tmp_path: Path) -> None:
    home = clients()
    document = httpx.get(f"http://{server.rest}/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    generate = (home / "openapi-python-client", "generate", "--meta", "none", "--output-path", "made")
    # It formats what it writes with the programs beside it.
    env = {**os.environ, "PATH": f"{home}{os.pathsep}{os.environ['PATH']}"}
    run(*generate, "--path", "openapi.json", "--fail-on-warning", cwd=tmp_path, env=env)
    made = {path.stem for path in (tmp_path / "made" / "api" / "default").glob("*.py")} - {"__init__"}
    assert len(made) == sum(len({"get", "post"} & path.keys()) for path in document["paths"].values())
    asks = f"""
        from made import Client
        from made.api.default import same_predict, same_status
        from made.models import SameBareByRow
        with Client("http://{server.rest}") as client:
            print(same_status.sync(client=client).model_version_status[0].state)
            body = SameBareByRow.from_dict({{"signature_name": "bare", "instances": [{{"x": 1.5}}]}})
            print(same_predict.sync_detailed(client=client, body=body).content.decode())
    """
    said = run(home / "python", "-c", textwrap.dedent(asks), cwd=tmp_path)
    assert said.splitlines() == ["AVAILABLE", '{"predictions":[3.0]}']


def newest(server: Server, program: str) -> str:
    """What a program prints that runs with the newest clients."""
    return run(clients() / "python", "-c", textwrap.dedent(program), server.rest, server.grpc)


def test_the_published_client_of_reflection(server: Server) -> None:
    program = """
        import sys
        import grpc
        from google.protobuf.descriptor_pool import DescriptorPool
        from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
        database = ProtoReflectionDescriptorDatabase(grpc.insecure_channel(sys.argv[2]))
        print("inference.GRPCInferenceService" in database.get_services())
        service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        print(service.methods_by_name["ModelInfer"].input_type.full_name)
    """
    assert newest(server, program) == "True\ninference.ModelInferRequest\n"


def test_the_newest_client_of_triton(server: Server) -> None:
    program = """
        import sys
        import numpy as np
        import tritonclient.grpc, tritonclient.http
        for module, address in ((tritonclient.http, sys.argv[1]), (tritonclient.grpc, sys.argv[2])):
            client = module.InferenceServerClient(address)
            one = module.InferInput("x", [2, 1], "FP32").set_data_from_numpy(np.array([[1.5], [2]], np.float32))
            answer = client.infer("same", [one], outputs=[module.InferRequestedOutput("scaled")])
            print(answer.as_numpy("scaled").tolist(), client.is_server_ready(), client.is_model_ready("same", "1"))
            client.get_model_config("same"), client.get_inference_statistics("same")
            client.get_model_repository_index()
    """
    assert newest(server, program) == "[3.0, 4.0] True True\n" * 2


def test_the_newest_client_of_kserve(server: Server) -> None:
    program = """
        import asyncio, sys
        from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

        async def main():
            rest = InferenceRESTClient(RESTConfig(protocol="v2"))
            url = f"http://{sys.argv[1]}"
            grpc = InferenceGRPCClient(sys.argv[2])
            print(await rest.is_server_ready(url), await rest.is_model_ready(url, "same"))
            print(await grpc.is_server_ready(), await grpc.is_model_ready("same"))
            asked = InferRequest("same", [InferInput("x", [2], "FP32", [1.5, 2.0])])
            for answer in (await rest.infer(url, asked, model_name="same"), await grpc.infer(asked)):
                print([one.data for one in answer.outputs if one.name == "scaled"])

        asyncio.run(main())
    """
    assert newest(server, program) == "True True\n" * 2 + "[[3.0, 4.0]]\n" * 2


@tried(50)
@given(
    origin=st.sampled_from(["https://page.example", "null", "*", "", "https://page.example/", "\xff"]),
    method=st.one_of(st.none(), st.sampled_from(["POST", "GET", "DELETE", "", "\xff"])),
    asked=st.one_of(st.none(), st.text("a,-\xff ", max_size=12)),
    verb=st.sampled_from(["OPTIONS", "GET", "HEAD"]),
    path=st.sampled_from(["/v1/models/same", "/v2", "/metrics", "/", "/none", "*"]),
)
def test_any_question_of_a_browser_is_answered_or_refused(
    server: Server, origin: str, method: str | None, asked: str | None, verb: str, path: str
) -> None:
    lines = [f"{verb} {path} HTTP/1.1", "Host: a", "Connection: close", f"Origin: {origin}"]
    lines += [] if method is None else [f"Access-Control-Request-Method: {method}"]
    lines += [] if asked is None else [f"Access-Control-Request-Headers: {asked}"]
    answer = exchange(server, "\r\n".join([*lines, "", ""]).encode("latin-1"))
    assert answer[:9] == b"HTTP/1.1 "
    assert answer[9:12] in (b"200", b"400", b"404", b"405"), answer
    # A page that is not listed gets no leave.
    if origin != "https://page.example":
        assert b"access-control-allow-origin" not in answer.lower()


@tried(50)
@given(garbage=st.one_of(st.binary(min_size=1, max_size=300), st.text("GET /HT1.\r\n: ", max_size=60).map(str.encode)))
def test_a_good_request_is_answered_whatever_follows_it(server: Server, garbage: bytes) -> None:
    head = b"POST /v1/models/same:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(PREDICT)
    answer = exchange(server, head + PREDICT + garbage)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'{"predictions":[3.0]}' in answer
    assert set(re.findall(rb"HTTP/1.1 (\d)", answer)) <= {b"2", b"4"}


def exchange(server: Server, sent: bytes) -> bytes:
    """What the server answers to bytes until it closes the connection."""
    host, _, port = server.rest.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return answer.read()


def ask_as_browser(server: Server, verb: str, path: str, origin: str, **headers: str) -> httpx.Response:
    return httpx.request(verb, f"http://{server.rest}{path}", headers={"Origin": origin, **headers})


def test_a_browser_may_ask_for_the_pages_that_are_listed(server: Server) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = ask_as_browser(server, "OPTIONS", "/v2/models/same/infer", "https://page.example", **asked)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert allowed.headers["access-control-allow-headers"] == "authorization,content-type"
    for path in ("/v2/health/ready", "/v1/models/other", "/v2/models/same/infer"):
        answer = ask_as_browser(server, "GET", path, "https://page.example")
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert "Origin" in answer.headers["vary"]
    for origin in ("https://other.example", "http://page.example", "https://page.example.other", "null"):
        refused = ask_as_browser(server, "OPTIONS", "/v2/models/same/infer", origin, **asked)
        assert refused.status_code == 400
        for answer in (refused, ask_as_browser(server, "GET", "/v2", origin)):
            assert "access-control-allow-origin" not in answer.headers
    assert not any(one.startswith("access-control") for one in httpx.get(f"http://{server.rest}/v2").headers)
