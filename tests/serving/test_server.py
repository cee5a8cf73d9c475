"""A server in a process of its own: its start and end, TLS, settings, logs, traces and metrics."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.models import MANY_SECS, ROOT, app_of, ask, error_of, predict, serving, wait_until, write_export
from torch_estimator.cli import main
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.registry import Registry
from torch_estimator.serving.config import read_config
from torch_estimator.serving.grpc_server import reserve_port
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy
from torch_estimator.web.connection import listen

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with the signature ``slow``."""
    return write_export(tmp_path_factory.mktemp("slow") / "1", is_slow=True)


def turns_of(slow: Path, secs: float) -> int:
    """How often the loop of the signature ``slow`` turns in some seconds on this machine, roughly."""
    model = ExportedModel.load(slow)
    began = time.perf_counter()
    model.predict({"turns": [20_000]}, "slow")
    return int(20_000 * secs / (time.perf_counter() - began))


def test_sigterm_answers_what_is_running_and_ends_with_status_0(slow: Path) -> None:
    with serving("--model", f"small={slow}", "--max-batch", "1") as server:
        content = {"signature_name": "slow", "instances": [turns_of(slow, 3.0)] * 2}
        with concurrent.futures.ThreadPoolExecutor() as threads:
            running = threads.submit(
                httpx.post, f"{server.url}/v1/models/small:predict", json=content, timeout=MANY_SECS
            )
            wait_until(lambda: "te_requests_running 2.0" in httpx.get(f"{server.url}/metrics").text)
            status, log = server.end()
            assert (running.result().status_code, status) == (200, 0), log
        with pytest.raises(OSError):
            socket.create_connection(server.address)
    assert "Traceback" not in log


def test_half_a_request_behind_a_slow_one_does_not_disturb_its_answer(slow: Path) -> None:
    with serving("--model", f"small={slow}", "--max-batch", "1", "--body-secs", "0.5") as server:
        content = json.dumps({"signature_name": "slow", "instances": [turns_of(slow, 3.0)] * 2}).encode()
        head = b"POST /v1/models/small:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(content)
        with socket.create_connection(server.address, timeout=MANY_SECS) as connection:
            connection.sendall(head + content + head + content[:-1])
            with connection.makefile("rb") as answer:
                answers = answer.read()
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")] == [b"", b"200", b"408"]


def test_a_client_that_has_closed_its_side_gets_its_answers(slow: Path) -> None:
    content = json.dumps({"signature_name": "slow", "instances": [turns_of(slow, 0.2)]}).encode()
    post = b"POST /v1/models/small:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(content)
    get = b"GET /v1/models/small HTTP/1.1\r\nHost: a\r\n\r\n"

    def answers_to(sent: bytes) -> list[bytes]:
        with socket.create_connection(server.address, timeout=MANY_SECS) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answer:
                return [part[:3] for part in answer.read().split(b"HTTP/1.1 ")[1:]]

    with serving("--model", f"small={slow}") as server:
        for _ in range(10):
            assert answers_to(get) == [b"200"]
        assert answers_to(post + content) == [b"200"]
        assert answers_to(post + content + get + get) == [b"200"] * 3
        assert answers_to(post + content[:-1]) == [b"400"]
        assert answers_to(b"") == answers_to(get[:-2]) == []


def test_ctrl_c_ends_with_its_status(base: Path) -> None:
    with serving("--model", f"small={base}") as server:
        server.process.send_signal(signal.SIGINT)
        _, log = server.process.communicate(timeout=MANY_SECS)
    assert server.process.returncode == 130
    assert "Traceback" not in log


def test_a_slow_model_gets_504_and_a_full_queue_429(slow: Path) -> None:
    arguments = ("--max-batch", "1", "--max-queue", "2", "--timeout-secs", "2")
    with serving("--model", f"small={slow}", *arguments) as server, concurrent.futures.ThreadPoolExecutor() as threads:
        content = {"signature_name": "slow", "instances": [turns_of(slow, 10.0)] * 2}
        url = f"{server.url}/v1/models/small:predict"
        slow = threads.submit(httpx.post, url, json=content, timeout=MANY_SECS)
        wait_until(lambda: "te_requests_running 2.0" in httpx.get(f"{server.url}/metrics").text)
        full = httpx.post(url, json=content)
        assert error_of(full) == (429, "2 instances wait already.")
        assert full.headers["retry-after"] == "1"
        assert error_of(slow.result()) == (504, "The model has not answered within 2 s.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to serve"),
        (["--model", "small"], "the model 'small' has no directory"),
        (["--model", "=x"], "--model takes NAME=DIR"),
        (["--model", "a/b=x"], "the model name 'a/b' may have letters"),
        (["--model", "a=x", "--model", "A=y"], "the model name 'a' is given twice"),
        (["--model", "a=none-such"], "the directory of model a, none-such, does not exist."),
        (["--registry", "none-such"], "the registry none-such does not exist"),
        (["--model", "a=.", "--versions", "newest"], "'newest' is no version policy"),
        (["--model", "a=.", "--host", "192.0.2.1"], "the server cannot listen on 192.0.2.1, port 8501: "),
        (["--model", "a=.", "--token-file", "none-such"], "the token file none-such cannot be read"),
        (["--model", "a=.", "--tls-key", "x"], "TLS needs both a certificate and a key"),
        (
            ["--model", "a=.", "--port", "0", "--tls-certificate", "none-such", "--tls-key", "x"],
            "the certificate none-such with the key x cannot be used: ",
        ),
        (["--config", "none-such"], "none-such cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_one_sentence_and_status_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_ESTIMATOR_REGISTRY", raising=False)
    command = [sys.executable, "-m", "torch_estimator.cli", "serve", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=MANY_SECS)
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"estimator: error: {message}")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("host", ["192.0.2.1", "::no address"])
def test_an_address_that_cannot_be_used_asks_for_another_host_and_a_port_in_use_for_another_port(host: str) -> None:
    models = (ServedModel(name="small", path="."),)
    with pytest.raises(InvalidValueError, match=r"; choose another --host\.$"):
        reserve_port(ServingOptions(models=models, host=host, grpc_port=0))
    with pytest.raises(InvalidValueError, match=r"; choose another --host\.$"):
        listen(host, 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidValueError, match=rf"port {port}: .*; choose another --port\.$"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_may_stand_in_brackets(base: Path, host: str) -> None:
    with serving("--model", f"small={base}", "--host", host) as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}/v2/health/ready").json()["ready"]


@pytest.mark.parametrize("origins", ["", "page.example", "https://page.example/", "https://A.example", "https://a, b"])
def test_an_origin_is_named_as_browsers_name_it(origins: str) -> None:
    models = (ServedModel(name="small", path="."),)
    with pytest.raises(InvalidValueError, match=r"cors_origins must be origins such as https://page\.example:8080"):
        ServingOptions(models=models, cors_origins=origins)
    allowed = ServingOptions(models=models, cors_origins="https://a.example:1, http://localhost").allowed_origins
    assert allowed == ["https://a.example:1", "http://localhost"]
    assert ServingOptions(models=models, cors_origins="*").allowed_origins == ["*"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with serving("--model", f"small={base}", *tls) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{server.url}/v1/models/small", verify=context).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http"))
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url)

        instances = tmp_path / "instances"
        instances.write_text("1.5\n")
        asked = ["predict", "--server", server.url, "--model", "small", "--json-instances", str(instances)]
        asked += ["--signature-name", "bare"]
        assert main(asked) == 2
        assert "certificate verify failed" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert main(asked) == 0
        assert capsys.readouterr().out == "SCALED\n3.0\n"
        assert server.end()[0] == 0


def test_a_key_with_a_password_is_refused_and_asks_nobody(tmp_path: Path, base: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:secret", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    command = ("--model", f"small={base}", "--tls-certificate", str(certificate), "--tls-key", str(key))
    with pytest.raises(AssertionError, match="cannot be used"), serving(*command):
        pass


def test_the_access_log_has_one_object_a_request(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    with app_of(base, access_log=str(file)) as app:
        predict(app, {"inputs": {"x": [1, 2, 3]}}, "/versions/1")
        ask(app, "/v1/models/none", headers={"traceparent": TRACE})
        ask(app, "/metrics", headers={"traceparent": "nonsense\xff".encode("latin-1")})
        ask(app, "/nothing%0Ahere")
    first, second, third, fourth = map(json.loads, file.read_text().splitlines())
    assert first.pop("milliseconds") > 0
    assert first.pop("time").endswith("Z")
    assert first == {
        "client": "127.0.0.1",
        "verb": "POST",
        "path": "/v1/models/small/versions/1:predict",
        "status": 200,
        "model": "small",
        "version": 1,
        "instances": 3,
        "traceparent": None,
    }
    assert (second["status"], second["model"], second["traceparent"]) == (404, "", TRACE)
    assert (third["status"], third["traceparent"]) == (200, None)
    assert (fourth["status"], fourth["path"]) == (404, "/nothing\nhere")


def test_a_full_disk_under_the_access_log_fails_no_request(base: Path) -> None:
    with serving("--model", f"small={base}", "--access-log", "/dev/full") as server, httpx.Client() as client:
        for _ in range(4):
            answer = client.post(f"{server.url}/v1/models/small:predict", json={"inputs": {"x": [1]}})
            assert answer.status_code == 200
        status, log = server.end()
    assert status == 0
    assert log.count("The access log /dev/full cannot be written: No space left on device") == 1


def test_an_access_log_that_cannot_be_opened_is_named(base: Path, tmp_path: Path) -> None:
    options = ("--model", f"small={base}", "--access-log", str(tmp_path / "absent" / "log"))
    for more in ((), ("--min-nodes", "0")):
        with pytest.raises(AssertionError, match="absent/log cannot be opened: No such file"), serving(*options, *more):
            pass


def test_a_traceparent_is_passed_on_in_the_answer(base: Path) -> None:
    with app_of(base) as app:
        for path in ("/v1/models/small", "/v1/models/none", "/metrics", "/none"):
            assert ask(app, path, headers={"traceparent": TRACE}).headers["traceparent"] == TRACE
            for wrong in ("nonsense", TRACE.upper(), f"ff{TRACE[2:]}"):
                assert "traceparent" not in ask(app, path, headers={"traceparent": wrong}).headers
        assert "traceparent" not in ask(app, "/v1/models/small").headers


# A tracer provider as a program would set it, which prints each span when it ends. It is made of OpenTelemetry's
# interface alone, so that its SDK is not needed.
TRACED = """
import json, sys
from opentelemetry import trace
from torch_estimator.cli import main

class Span(trace.NonRecordingSpan):
    def __init__(self, name, parent, attributes):
        given = trace.get_current_span(parent).get_span_context()
        super().__init__(trace.SpanContext(given.trace_id or 1, 77, False, trace.TraceFlags(1)))
        self.content = {"name": name, "parent": given.span_id, "attributes": dict(attributes)}
    def update_name(self, name):
        self.content["name"] = name
    def set_attributes(self, attributes):
        self.content["attributes"].update(attributes)
    def set_status(self, status, description=None):
        self.content["status"] = str(status)
    def end(self, end_time=None):
        print(json.dumps(self.content), file=sys.stderr, flush=True)

class Tracer(trace.NoOpTracer):
    def start_span(self, name, context=None, kind=None, attributes=None, **settings):
        return Span(name, context, attributes)

class Provider(trace.TracerProvider):
    def get_tracer(self, *arguments, **settings):
        return Tracer()

trace.set_tracer_provider(Provider())
sys.exit(main())
"""


def test_each_request_is_a_span_where_a_tracer_provider_is_set(base: Path) -> None:
    pytest.importorskip("opentelemetry.trace")
    with serving("--model", f"small={base}", program=("-c", TRACED)) as server:
        url = f"{server.url}/v1/models/small:predict"
        answer = httpx.post(url, json={"instances": [{"x": 1}]}, headers={"traceparent": TRACE})
        assert answer.headers["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-000000000000004d-01"
        assert httpx.get(f"{server.url}/none").headers["traceparent"] == f"00-{1:032x}-000000000000004d-01"
        _, log = server.end()
    predicted, missing = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
    assert predicted == {
        "name": "predict small",
        "parent": 0xB7AD6B7169203331,
        "attributes": {
            "http.request.method": "POST",
            "url.path": "/v1/models/small:predict",
            "http.response.status_code": 200,
            "model": "small",
            "version": 2,
            "instances": 1,
        },
    }
    assert (missing["name"], missing["parent"], missing["attributes"]["http.response.status_code"]) == ("GET", 0, 404)


def test_metrics_count_requests_batches_and_seconds(base: Path) -> None:
    with app_of(base) as app:
        predict(app, {"inputs": {"x": [1, 2, 3]}})
        predict(app, {"inputs": {"x": ["a"]}})
        predict(app, {"inputs": {"x": [1]}}, "/versions/9")
        ask(app, "/none")
        text = ask(app, "/metrics").text
        assert ask(app, "/monitoring/prometheus/metrics").status_code == 200
    for line in (
        'te_requests_total{code="200",method="predict",model="small",version="2"} 1.0',
        'te_requests_total{code="400",method="predict",model="small",version="2"} 1.0',
        'te_requests_total{code="404",method="predict",model="",version=""} 1.0',
        'te_requests_total{code="404",method="",model="",version=""} 1.0',
        'te_request_seconds_count{method="predict",model="small",version="2"} 2.0',
        'te_batch_instances_sum{model="small",version="2"} 4.0',
        "te_requests_running 1.0",
    ):
        assert line in text.splitlines()


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "models.yaml"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_settings_come_from_a_yaml_file(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        """
        models:
          - name: census
            path: runs/census
            policy: latest(2)
          - {name: other, path: runs/other, policy: 3, labels: {stable: 2}}
          - name: third
        registry: runs/registry
        max_batch: 128
        max_delay_ms: 2
        grpc_port: null
        ignore_unknown: true
        """,
    )
    options = ServingOptions(**read_config(path))
    assert options == ServingOptions(
        models=(
            ServedModel(name="census", path="runs/census", policy=VersionPolicy(latest=2)),
            ServedModel(name="other", path="runs/other", policy=VersionPolicy(specific=(3,)), labels={"stable": 2}),
            ServedModel(name="third"),
        ),
        registry="runs/registry",
        max_batch=128,
        max_delay_ms=2.0,
        ignore_unknown=True,
    )
    assert ServingOptions.from_json(options.to_json()) == options
    assert read_config(config(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 1\nmax_bach: 2", "line 2 has the unknown key 'max_bach'; the keys are models, registry, "),
        ("models:\n- name: a\n  dir: b", "line 3 has the unknown key 'dir'; the keys are name, path, policy, labels."),
        ("port: 1\nport: 2", "line 2 has the key 'port' a second time; remove one of them."),
        ("port: many", "line 1: port must be a whole number, but got 'many'."),
        ("port: true", "line 1: port must be a whole number, but got True."),
        ("ignore_unknown: 1", "line 1: ignore_unknown must be true or false, but got 1."),
        ("host: 1", "line 1: host must be a text, but got 1."),
        ("drain_secs: []", "line 1: drain_secs must be a number, but got []."),
        ("models: census", "line 1: models must be a list, but got 'census'."),
        ("models:\n- census", "line 2 must have keys and values, but has 'census'."),
        ("models:\n- path: a", "line 2 has a model without the key 'name'."),
        ("models:\n- name: a/b", "line 2: the model name 'a/b' may have letters, "),
        ("models:\n- name: a\n  policy: new", "line 3: 'new' is no version policy"),
        ("models:\n- name: a\n  policy: [1]", "line 3: policy must be such as latest(2), all or 1,3, but got [1]."),
        ("models:\n- name: a\n  labels: new", "line 3: labels must be such as {stable: 3}, but got 'new'."),
        ("models:\n- name: a\n  labels: {new: old}", "line 3: labels must be such as {stable: 3}, but got "),
        ("models:\n- {name: a, path: b, labels: {a/b: 1}}", "line 2: the label 'a/b' may have letters, "),
        ("models:\n- {name: a, labels: {b: 1}}", "line 2: the labels of the model 'a' are in its registry: use "),
        ("- a", "line 1 must have keys and values, but has ['a']."),
        ("? [a]\n: b", "is not YAML: "),
        ("a: [", "is not YAML: "),
        ("1: 2", "line 1 has the unknown key '1'"),
    ],
)
def test_a_mistake_in_the_yaml_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = config(tmp_path, text)
    with pytest.raises(InvalidValueError) as raised:
        read_config(path)
    assert str(raised.value).removeprefix(path).lstrip(", ").startswith(message)


def test_the_command_line_comes_before_the_file(base: Path, tmp_path: Path) -> None:
    export = write_export(tmp_path / "third", 3)
    path = config(tmp_path, f"models: [{{name: small, path: {base}}}]\nport: 1\nmax_body_mb: 0.001")
    with serving("--config", path, "--model", f"other={export}") as server:
        content = {"signature_name": "one", "instances": [{"x": 1}]}
        for name, expected in (("small", 2.0), ("other", 3.0)):
            answer = httpx.post(f"{server.url}/v1/models/{name}:predict", json=content)
            assert answer.json() == {"predictions": [expected]}
        assert httpx.post(f"{server.url}/v1/models/small:predict", content=b" " * 2000).status_code == 413


def test_a_registry_of_the_environment_is_served_where_nothing_is_named(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "registry")
    registry.create_model("small")
    registry.create_version("small", 1, base / "1")
    monkeypatch.setenv("TORCH_ESTIMATOR_REGISTRY", registry.url)
    with serving() as server:
        content: dict[str, Any] = {"signature_name": "one", "instances": [{"x": 1}]}
        assert httpx.post(f"{server.url}/v1/models/small:predict", json=content).json() == {"predictions": [1.0]}
