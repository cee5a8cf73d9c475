"""Whatever a client sends gets the right 4xx and a sentence, and the server goes on."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.models import INPUTS, Server, ask, predict, serving, wait_until
from torch_estimator.serving.app import ServingApp

CONTENT = {"signature_name": "one", "instances": [{"x": 1}]}

# CI takes a few hundred; TE_IDLE_CONNECTIONS=10000 takes what a server has to bear.
IDLE = int(os.environ.get("TE_IDLE_CONNECTIONS", "300"))

many = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([{"b64": "YQ=="}, {"b64": "gA=="}, {"b64": "?"}, {"b64": 1}, {}]),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=10)
names = st.sampled_from([*INPUTS, "", "y", "__class__"])
rows = st.dictionaries(names, values, max_size=6)
columns = st.dictionaries(names, st.one_of(values, st.lists(values, max_size=4)), max_size=6)
requests = st.fixed_dictionaries(
    {},
    optional={
        "signature_name": st.one_of(st.sampled_from(["", "one", "bare", "classify", "regress", "none"]), scalars),
        "instances": st.one_of(st.lists(st.one_of(rows, values), max_size=4), values, rows),
        "inputs": st.one_of(columns, values),
        "examples": st.one_of(st.lists(st.one_of(rows, values), max_size=4), values),
        "context": st.one_of(rows, values),
    },
)


def assert_sensible(answer: httpx.Response) -> None:
    """Check that an answer is one, or a 4xx with a sentence."""
    if answer.status_code == 200:
        assert {"predictions", "outputs", "results"} & set(answer.json())
        return
    assert answer.status_code in (400, 404), answer.text
    assert list(answer.json()) == ["error"]
    assert 10 < len(answer.json()["error"]) < 1100


@many
@given(request=requests, method=st.sampled_from(["predict", "classify", "regress"]))
def test_any_json_is_answered_or_refused(app: ServingApp, request: Any, method: str) -> None:
    assert_sensible(ask(app, f"/v1/models/small:{method}", json.dumps(request).encode()))


@many
@given(row=st.fixed_dictionaries({"x": values}, optional={name: values for name in INPUTS if name != "x"}))
def test_features_of_any_type_are_answered_or_refused_with_the_name_of_instance_and_feature(
    app: ServingApp, row: Any
) -> None:
    answer = predict(app, {"instances": [{"x": 1.0}, row]})
    assert_sensible(answer)
    if answer.status_code != 200:
        message = answer.json()["error"]
        assert message.startswith("Instance 1: ")
        assert any(f"nput {name}" in message for name in INPUTS)


@many
@given(body=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_refused(app: ServingApp, body: bytes) -> None:
    answer = ask(app, "/v1/models/small:predict", body, verb="POST")
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]


@many
@given(
    text=st.text(st.sampled_from('[]{}",:0eE-.\\u dNaIn'), max_size=60).map(
        lambda inner: f'{{"signature_name": "bare", "inputs": {inner}}}'
    )
)
def test_any_text_that_is_nearly_json_is_answered_or_refused(app: ServingApp, text: str) -> None:
    assert_sensible(ask(app, "/v1/models/small:predict", text.encode()))


@many
@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *(
                        "v1",
                        "models",
                        "small",
                        "versions",
                        "1",
                        "labels",
                        "metadata",
                        "..",
                        ".",
                        "%2e%2e",
                        "%2F",
                        "%00",
                        "",
                    )
                ]
            ),
            st.text("abz019:%-_~é", max_size=6),
        ),
        max_size=8,
    ),
    end=st.sampled_from(["", ":predict", ":classify", "/metadata", "/", "?a=b", ":predict?x"]),
    verb=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"]),
)
def test_any_path_is_answered_or_refused(app: ServingApp, parts: list[str], end: str, verb: str) -> None:
    # The path goes to the application as it is, because a client would tidy it up.
    path = "/" + "/".join(parts) + end.partition("?")[0]
    answer = ask_raw(app, verb, path)
    assert answer in (200, 400, 404, 405)


def ask_raw(app: ServingApp, verb: str, path: str) -> int:
    """The status of the answer to a request with a path that no client would send."""
    import asyncio
    from urllib.parse import quote, unquote

    sent: list[Any] = []
    raw = quote(path, safe="/:%~-_.").encode()
    scope = {
        "type": "http",
        "method": verb,
        "path": unquote(raw.decode()),
        "raw_path": raw,
        "query_string": b"",
        "headers": [],
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    status: int = sent[0]["status"]
    return status


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[Server]:
    """A server that gives a client a second for its body."""
    with serving("--model", f"small={base}", "--max-body-mb", "16", "--body-secs", "1") as made:
        yield made
        status, log = made.end()
        assert (status, "Traceback" in log, "has failed" in log) == (0, False, False), log


def connect(server: Server) -> socket.socket:
    connection = socket.create_connection(server.address, timeout=60)
    connection.settimeout(60)
    return connection


def received(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    parts = []
    with suppress(ConnectionResetError):
        while part := connection.recv(2**16):
            parts.append(part)
    return b"".join(parts)


def assert_goes_on(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/models/small:predict", json=CONTENT, timeout=60)
    assert answer.json() == {"predictions": [2.0]}


def request(body: bytes, *, length: int | None = None) -> bytes:
    head = f"POST /v1/models/small:predict HTTP/1.1\r\nHost: a\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["text", "TLS", "version", "length"],
)
def test_what_is_no_http_gets_400(server: Server, sent: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "The request is not valid HTTP/1.1."}
    assert_goes_on(server)


GOOD = json.dumps(CONTENT).encode()
OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "TLS": b"Connection: upgrade\r\nupgrade: TLS/1.2, HTTP/1.1\r\n",
}
FRAMES = {
    "length": b"Content-Length: %d\r\n\r\n%s" % (len(GOOD), GOOD),
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (GOOD[:5], len(GOOD) - 5, GOOD[5:]),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("split", [0, 20, 95, -1], ids=["whole", "head", "headers", "body"])
def test_an_offer_of_another_protocol_is_answered_in_http_1_1(
    server: Server, offer: str, frame: str, split: int
) -> None:
    sent = b"POST /v1/models/small:predict HTTP/1.1\r\nHost: a\r\n" + OFFERS[offer] + FRAMES[frame]
    with connect(server) as connection:
        for part in (sent[:split], sent[split:]):
            connection.sendall(part)
        # The next request on the connection has its offer, too, and a body in the same packet as the one after it.
        connection.sendall(sent + b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answers = received(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 3, answers
    assert answers.count(b'{"predictions":[2.0]}') == 2
    assert_goes_on(server)


def test_a_request_for_a_tunnel_gets_400(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + GOOD)
        assert received(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert_goes_on(server)


@pytest.mark.parametrize(
    ("version", "headers", "said"),
    [
        (b"1.1", b"", b"0 Host headers in place of one."),
        (b"1.1", b"Host: a\r\nhost: b\r\n", b"2 Host headers in place of one."),
        (b"1.0", b"Host: a\r\nHost: a\r\n", b"2 Host headers in place of one."),
        (b"1.0", b"", b"model_version_status"),
        (b"1.1", b"Host:\r\n", b"model_version_status"),
    ],
)
def test_a_request_names_one_host(server: Server, version: bytes, headers: bytes, said: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(
            request(GOOD) + b"GET /v1/models/small HTTP/%s\r\n%sConnection: close\r\n\r\n" % (version, headers)
        )
        answers = received(connection)
    assert answers.count(b'{"predictions":[2.0]}') == 1
    assert said in answers or (b"in place of one" in said and answers.count(b"HTTP/1.1 ") == 1)
    with connect(server) as connection:
        connection.sendall(b"GET /v1/models/small HTTP/%s\r\n%sConnection: close\r\n\r\n" % (version, headers))
        assert said in received(connection)
    assert_goes_on(server)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("size", "status"), [(50_000, b"200"), (70_000, b"431")])
def test_the_limit_is_of_the_headers_and_not_of_a_read(
    server: Server, size: int, status: bytes, together: bool
) -> None:
    sent = b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\nA: %s\r\nConnection: close\r\n\r\n" % (b"b" * size)
    with connect(server) as connection:
        try:
            for start in range(0, len(sent), len(sent) if together else 5_000):
                connection.sendall(sent[start : start + (len(sent) if together else 5_000)])
            answer = received(connection)
        except ConnectionResetError:
            answer = b"HTTP/1.1 431 "
    assert answer[9:12] == status
    assert_goes_on(server)


def test_many_requests_in_one_packet_are_no_large_header(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\n\r\n" * 3000)
        connection.sendall(b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert received(connection).count(b"HTTP/1.1 200 OK") == 3001


@pytest.mark.parametrize("path", ["/metrics/", "/openapi.json/", "//evil.example/metrics/"])
def test_no_path_redirects_to_the_host_that_a_client_names(server: Server, path: str) -> None:
    with connect(server) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
        answer = received(connection)
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 "))
    assert b"evil" not in answer.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize("junk", [b"garbage\r\n\r\n", b"\x16\x03\x01", b"x" * 2**17], ids=["text", "TLS", "long"])
@pytest.mark.parametrize("requests", [1, 3])
def test_requests_before_junk_in_their_packet_are_answered(server: Server, requests: int, junk: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(request(GOOD) * requests + junk)
        answers = received(connection)
    assert answers.count(b'{"predictions":[2.0]}') == requests
    assert_goes_on(server)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"POST /v1/models/small:predict HTTP/1.1\r\nHost: a\r\nConte", b"408"),
        (b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\n\r\nGET /v1", b"200"),
        (request(b'{"inputs"', length=1000), b"408"),
    ],
    ids=["nothing", "half a header", "half a second request", "half a body"],
)
def test_a_client_that_stops_sending_is_disconnected(server: Server, sent: bytes, status: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        answer = received(connection)
    assert answer[9:12] == status
    assert (b"408" in answer) == (sent != b"")
    assert_goes_on(server)


def test_half_a_body_is_told_what_is_wrong_and_counted_as_408(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(request(b'{"inputs"', length=1000))
        body = received(connection).partition(b"\r\n\r\n")[2]
    assert json.loads(body) == {"error": "The body was not sent within 1 s."}
    counted = httpx.get(f"{server.url}/metrics", trust_env=False).text
    assert re.search(r'^te_requests_total\{code="408",.*\} [1-9]', counted, re.MULTILINE)


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /v1/models/small HTTP/1.1\r\n")
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < began + 60:
                connection.sendall(b"a: b\r\n")
                time.sleep(0.05)
    assert_goes_on(server)


def test_a_client_that_closes_in_the_middle_is_forgotten(server: Server) -> None:
    for sent in (b"POST /v1", request(b'{"inputs"', length=1000), request(json.dumps(CONTENT).encode())):
        for _ in range(20):
            with connect(server) as connection:
                connection.sendall(sent)
    wait_until(lambda: "te_requests_running 1.0" in httpx.get(f"{server.url}/metrics").text)
    assert_goes_on(server)


def test_headers_without_end_get_431(server: Server) -> None:
    with connect(server) as connection:
        # The server may close before everything is sent.
        with suppress(OSError):
            connection.sendall(b"GET /v1/models/small HTTP/1.1\r\n" + b"a: " + b"b" * 10_000_000)
        answer = received(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert_goes_on(server)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_gets_413_which_the_client_sees(server: Server, is_chunked: bool) -> None:
    body = b"[" + b" " * 17 * 2**20 + b"]"

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 2**20):
            yield body[start : start + 2**20]

    with httpx.Client(timeout=60) as client:
        content: Any = chunks() if is_chunked else body
        answer = client.post(f"{server.url}/v1/models/small:predict", content=content)
        assert (answer.status_code, answer.json()) == (413, {"error": "The body is larger than 16 MiB."})
    assert_goes_on(server)


def test_a_body_for_a_path_that_does_not_exist_does_not_break_the_connection(server: Server) -> None:
    with httpx.Client(timeout=60) as client:
        for _ in range(3):
            answer = client.post(f"{server.url}/v1/models/none:predict", content=b" " * 5_000_000)
            assert answer.status_code == 404
            assert client.post(f"{server.url}/v1/models/small:predict", json=CONTENT).status_code == 200


def test_a_string_of_10_mb_is_a_value_as_others(server: Server) -> None:
    word = "ab" * 5_000_000
    url = f"{server.url}/v1/models/small:predict"
    answer = httpx.post(url, json={"signature_name": "classify", "instances": [{"x": 1, "word": word}]}, timeout=60)
    assert answer.json()["predictions"][0]["classes"] == [word, word]
    answer = httpx.post(url, json={"instances": [{"x": word}]}, timeout=60)
    assert answer.status_code == 400
    assert len(answer.content) < 2000
    assert_goes_on(server)


def test_a_client_that_does_not_read_its_answer_is_disconnected(server: Server) -> None:
    body = json.dumps({"inputs": {"x": [0.1] * 100_000}}).encode()
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.2)
        # The server reads no further request before this one is answered.
        with suppress(OSError):
            while True:
                connection.sendall(request(body))
        wait_until(lambda: "te_requests_running 1.0" in httpx.get(f"{server.url}/metrics", timeout=60).text)
    assert_goes_on(server)


def test_many_idle_connections_leave_the_server_as_it_is(base: Path) -> None:
    with serving("--model", f"small={base}") as server, ExitStack() as open_ones:
        used = b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\n\r\n"
        for number in range(IDLE):
            connection = open_ones.enter_context(connect(server))
            if number % 2:
                connection.sendall(used)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: assert_goes_on(server), range(32)))
        assert server.end()[0] == 0
