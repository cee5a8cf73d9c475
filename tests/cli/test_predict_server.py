"""``estimator predict --server`` prints what ``estimator predict`` prints, and its errors are one sentence."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from tests.serving.models import Server, serving
from torch_estimator.cli import main

TOKEN = "a-token"


@pytest.fixture(scope="module")
def server(exports: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the exports ``raw``, ``json`` and ``csv`` that wants a token."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    models = [f"--model={name}={exports / name}" for name in ("raw", "json", "csv")]
    with serving(*models, "--token-file", str(tokens)) as made:
        yield made


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main(["predict", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err.removeprefix("estimator: error: ").rstrip()


def instances(tmp_path: Path, text: str) -> str:
    path = tmp_path / "instances"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(
    ("model", "option", "text", "signature"),
    [
        (
            "raw",
            "--json-instances",
            '{"word": "é", "x": 0.1}\n{"word": "a", "x": Infinity, "key": "k"}\n',
            "serving_default",
        ),
        ("raw", "--json-instances", '{"word": "a", "x": 1}\n', "predict"),
        ("raw", "--json-request", '{"instances": [{"word": "a", "x": 1}], "signature_name": "predict"}', None),
        ("csv", "--text-instances", '17,a,1\n18,"b,c",2\n', "serving_default"),
        ("raw", "--json-instances", '{"word": "a", "x": 1}\n' * 3000, "predict"),
    ],
    ids=["rows", "signature", "request", "CSV", "many"],
)
def test_it_prints_what_the_export_prints(
    exports: Path,
    server: Server,
    token: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    option: str,
    text: str,
    signature: str | None,
    form: str,
) -> None:
    shared = [option, instances(tmp_path, text), "--format", form]
    if signature is not None:
        shared += ["--signature-name", signature]
    local = run(capsys, "--model-dir", exports / model / "1700000000", *shared)
    asked = run(capsys, "--server", server.url, "--model", model, "--token-file", token, *shared)
    assert asked == local
    assert asked[0] == 0


def test_a_version_is_named_as_gcloud_names_it(
    server: Server, token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = instances(tmp_path, '{"word": "a", "x": 1}\n')
    shared = ("--server", f"{server.url}/", "--model", "raw", "--token-file", token, "--json-instances", path)
    answers = {version: run(capsys, *shared, "--version", version) for version in ("1700000000", "v1700000000", "v3")}
    assert answers["1700000000"] == answers["v1700000000"] == run(capsys, *shared)
    status, _, error = answers["v3"]
    assert status == 2
    assert error.endswith("answers with status 404: Servable not found for request: Specific(raw, 3)")
    assert run(capsys, *shared, "--version", "gold")[2].endswith(
        "status 400: Unrecognized servable version label: gold"
    )


def test_a_wrong_instance_is_named_by_its_line(
    server: Server, token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = instances(tmp_path, '{"word": "a", "x": 1}\n' * 2000 + '{"word": "a", "x": "b"}\n')
    shared = ("--server", server.url, "--model", "raw", "--token-file", token, "--json-instances", path)
    status, out, error = run(capsys, *shared)
    assert (status, out) == (2, "")
    assert error == f"{path}, line 2001: Input x takes numbers, but has 'b' (str)."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "{url}"], "--server needs --model, the name of the model on the server."),
        (["--server", "{address}", "--model", "raw"], "--server must be an address such as http://127.0.0.1:8501"),
        (
            ["--server", "{url}", "--model", "raw", "--ignore-unknown"],
            "--ignore-unknown is for --model-dir; give it to estimator serve for a server.",
        ),
        (["--model-dir", "x", "--model", "raw"], "--model is for --server, and --model-dir is an export."),
        (["--model-dir", "x", "--token-file", "y"], "--token-file is for --server, and --model-dir is an export."),
        (["--server", "http://127.0.0.1:1", "--model", "raw"], "the server http://127.0.0.1:1 cannot be asked: Conn"),
        (["--server", "http://none.invalid", "--model", "raw"], "the server http://none.invalid cannot be asked: "),
        (["--server", "http://a b", "--model", "raw"], "the server http://a b cannot be asked: "),
        (["--server", "{url}", "--model", "raw"], "the server {url} answers with status 401: The request needs an "),
        (
            ["--server", "{url}", "--model", "none", "--token-file", "{token}"],
            "the server {url} answers with status 404: Servable not found for request: Latest(none)",
        ),
        (
            ["--server", "{url}", "--model", "raw", "--token-file", "{token}", "--signature-name", "none"],
            "the signature 'none' is not in the model on {url}, which has ",
        ),
        (["--server", "{url}", "--model", "raw", "--token-file", "none"], "the token file none cannot be read: "),
    ],
)
def test_a_mistake_is_one_sentence(
    server: Server,
    token: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    names = {"url": server.url, "address": server.url.removeprefix("http://"), "token": token}
    path = instances(tmp_path, '{"word": "a", "x": 1}\n')
    given = [argument.format(**names) for argument in arguments]
    status, out, error = run(capsys, *given, "--json-instances", path)
    assert (status, out) == (2, "")
    assert error.startswith(message.format(**names))
    assert "\n" not in error


class _Strange(BaseHTTPRequestHandler):
    """A server that is none of TensorFlow Serving's, and sends its visitors elsewhere."""

    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        if self.path.startswith("/v1/models/moved"):
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"metadata": []}).encode() if "list" in self.path else b"<html>")

    def log_message(self, *_: object) -> None:
        pass


def test_another_kind_of_server_is_told_apart_and_gets_no_token_by_a_redirect(
    token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = instances(tmp_path, '{"word": "a", "x": 1}\n')
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Strange) as strange:
        threading.Thread(target=strange.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{strange.server_address[1]}"
        shared = ("--server", url, "--token-file", token, "--json-instances", path)
        for model in ("page", "list"):
            status, _, error = run(capsys, *shared, "--model", model)
            assert (status, error) == (2, f"the server {url} does not answer as TensorFlow Serving does.")
        assert run(capsys, *shared, "--model", "moved")[2] == f"the server {url} answers with status 302: Found"
        strange.shutdown()
    assert _Strange.tokens == [f"Bearer {TOKEN}"] * 3
