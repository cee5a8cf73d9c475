"""The page at ``/``, as HTML: what it shows, its forms, who may use them, and that nothing on it runs by itself."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serving.echo_export import HOSTILE, INSTANCE, write_echo
from tests.serving.page_server import PageServer, serving, write_registry
from torch_estimator.errors import InvalidValueError
from torch_estimator.registry import Registry
from torch_estimator.serving.catalog import DirectorySource
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy

MANY_SECS = 60.0
TOKEN = "s3cret-töken"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with the versions 1, 2 and 3 of a model ``echo``, of which 2 is the default."""
    base = tmp_path_factory.mktemp("template")
    write_registry(base, description=HOSTILE)
    return base / "registry"


@pytest.fixture
def registry(template: Path, tmp_path: Path) -> Registry:
    shutil.copytree(template, tmp_path / "registry")
    return Registry(tmp_path / "registry")


@pytest.fixture
def server(registry: Registry) -> Iterator[PageServer]:
    """A server of the registry, which loads the versions 2 and 3."""
    with serving(ServingOptions(registry=registry.url, port=0), VersionPolicy(latest=2)) as running:
        yield running


@pytest.fixture
def locked(registry: Registry, tmp_path: Path) -> Iterator[PageServer]:
    """The same with a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"another\n{TOKEN}\n")
    options = ServingOptions(registry=registry.url, port=0, token_file=str(tokens))
    with serving(options, VersionPolicy(latest=2)) as running:
        yield running


def client(server: PageServer, **settings: Any) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False, timeout=MANY_SECS, **settings)


def values(text: str, prefix: str = "", path: str = "") -> dict[str, str]:
    """Name and value of the hidden fields and the other inputs of the form that predicts, or signs in."""
    found: dict[str, str] = {}

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            given = dict(attributes)
            if tag in ("input", "textarea") and given.get("name"):
                found[str(given["name"])] = given.get("value") or ""

    at = text.find(f'action="{path}/page/predict#try"')
    Reader().feed(text[max(at, 0) :])
    # HTML parsers do not say which option is selected, so take it from the text.
    for name, options in re.findall(r'<select id="[^"]*" name="([^"]*)">(.*?)</select>', text, re.DOTALL):
        selected = re.search(r"<option selected>(\w+)", options)
        found[html.unescape(name)] = selected[1] if selected else ""
    return {name: value for name, value in found.items() if name.startswith(prefix)}


def form_key(text: str) -> str:
    return values(text)["form_key"]


def part(text: str, name: str) -> str:
    """One section of the page."""
    return text[text.index(f'id="{name}"') :].split("</section>")[0]


def plain(text: str) -> str:
    """The text of HTML without tags and line breaks, with a hyphen for the dash that stands for nothing."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()).replace("\u2013", "-")


# What is shown.


def test_it_shows_versions_with_state_default_and_labels(server: PageServer) -> None:
    with client(server) as browser:
        text = browser.get("/").text
    rows = [plain(row) for row in part(text, "versions").split("<tr")[2:]]
    assert [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", row.partition("> ")[2]) for row in rows] == [
        f"3 canary First {HOSTILE} available 12 auc 0.875 TIME Make default",
        f"2 default First {HOSTILE} available 12 auc 0.875 TIME",
        f"1 First {HOSTILE} not loaded 12 - TIME Make default",
    ]
    assert "version 2 answers by default" in text
    assert f"Says {HOSTILE}" in plain(text)


def test_it_shows_the_signatures(server: PageServer) -> None:
    with client(server) as browser:
        shown = plain(part(browser.get("/").text, "signatures"))
    assert f"Input Type Default text string - {HOSTILE} string" in shown
    assert "number float - count int64 7 flag bool - pair float [2] - tags list of string 'none'" in shown


def test_the_form_holds_a_recorded_instance(server: PageServer) -> None:
    with client(server) as browser:
        first, second = browser.get("/").text, browser.get("/?model=echo&example=1").text
    fields = values(first, "input.")
    assert fields == {
        "input.text": HOSTILE,
        f"input.{HOSTILE}": "x",
        "input.number": "2.5",
        "input.count": "9007199254740993",
        "input.flag": "true",
        "input.pair": "[1.0, 0.1]",
        "input.tags": json.dumps(["a", HOSTILE]),
    }
    assert values(second, "input.") == {**fields, "input.text": "the second"}


def test_without_recorded_instances_the_form_holds_values_of_the_right_types(tmp_path: Path) -> None:
    export = write_echo(tmp_path / "echo" / "1")
    shutil.rmtree(export / "assets.extra")
    options = ServingOptions(models=(ServedModel(name="echo", path=str(export)),), port=0)
    with serving(options) as running, client(running) as browser:
        text = browser.get("/").text
        assert values(text, "input.")["input.count"] == "7"
        assert browser.post("/page/predict", data=values(text)).status_code == 200


def test_a_version_and_a_signature_can_be_chosen(server: PageServer) -> None:
    with client(server) as browser:
        text = browser.get("/", params={"model": "ECHO", "version": "v3", "signature": HOSTILE}).text
    assert values(text)["version"] == "3"
    assert values(text)["signature"] == HOSTILE
    # Nothing was recorded for this signature.
    assert values(text, "input.")["input.text"] == ""


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("model=other", "There is no model other."),
        ("model=echo&version=1", "Version 1 of the model echo is not loaded."),
        ("version=x", "A version is a whole number."),
        ("signature=<b>", "Version 2 of the model echo has no signature <b>."),
    ],
)
def test_what_is_not_there_is_named(server: PageServer, query: str, sentence: str) -> None:
    with client(server) as browser:
        answer = browser.get(f"/?{query}")
    assert answer.status_code == 404
    assert sentence in plain(answer.text)
    assert "<b>" not in answer.text


def test_a_long_list_of_versions_is_cut(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "registry")
    for number in range(4, 41):
        shutil.copytree(template / "echo" / "3", tmp_path / "registry" / "echo" / str(number))
    with serving(ServingOptions(registry=str(tmp_path / "registry"), port=0)) as running, client(running) as browser:
        text = browser.get("/").text
        numbers = re.findall(r"<strong>(\d+)</strong>", part(text, "versions"))
        # The ten newest ones, the one with a label, and the default.
        assert numbers == [*(str(number) for number in range(40, 30, -1)), "3", "2"]
        assert "Show 28 older versions" in text
        text = browser.get("/?all=1").text
        assert len(re.findall(r"<strong>(\d+)</strong>", part(text, "versions"))) == 40


def test_a_version_that_cannot_be_loaded_is_shown_with_the_reason(registry: Registry) -> None:
    Path(registry.version_dir("echo", 3), "model.onnx").write_bytes(b"damaged")
    options = ServingOptions(registry=registry.url, port=0)
    with serving(options, VersionPolicy(latest=2)) as running, client(running) as browser:
        shown = part(browser.get("/").text, "versions").split("<tr")[2]
    assert "failed" in shown
    assert "model.onnx cannot be loaded" in shown
    assert "Make default" not in shown


def test_a_registry_that_cannot_be_read_leaves_what_is_loaded(server: PageServer, registry: Registry) -> None:
    Path(registry.url, "echo", "model.json").write_text("damaged")
    for change in Path(registry.url, "echo", "history").iterdir():
        change.write_text("damaged")
    with client(server) as browser:
        answer = browser.get("/")
        assert answer.status_code == 200
        assert "damaged" in part(answer.text, "versions")
        assert browser.post("/page/predict", data=values(answer.text)).status_code == 200


def test_a_server_without_models_says_so(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    with serving(ServingOptions(registry=str(tmp_path / "registry"), port=0)) as running, client(running) as browser:
        assert "Nothing is served yet." in browser.get("/").text


def test_it_links_to_a_console_whose_address_is_given(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    options = ServingOptions(registry=str(tmp_path / "registry"), port=0, console="http://127.0.0.1:8600")
    with serving(options) as running, client(running) as browser:
        assert '<a href="http://127.0.0.1:8600" rel="noreferrer">Console</a>' in browser.get("/").text
    with pytest.raises(
        InvalidValueError, match=r"console must be an address such as .* but got 'javascript:alert\(1\)'"
    ):
        ServingOptions(registry="registry", console="javascript:alert(1)")


# Predictions.


def test_the_form_predicts_what_requests_predict(server: PageServer) -> None:
    with client(server) as browser:
        answer = browser.post("/page/predict", data=values(browser.get("/").text))
        assert answer.status_code == 200
        request = {"signature_name": "predict", "inputs": {name: [value] for name, value in INSTANCE.items()}}
        outputs = browser.post("/v1/models/echo/versions/2:predict", json=request).json()["outputs"]
    wanted = {name: values[0] for name, values in outputs.items()}
    outcome = answer.text[answer.text.index('id="outcome"') :].split("</table>")[0]
    shown = {
        html.unescape(name): html.unescape(text)
        for name, text in re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', outcome, re.DOTALL)
    }
    assert shown == {
        name: json.dumps(value) if isinstance(value, list) and len(value) > 1 else str(np.array(value).item())
        for name, value in wanted.items()
    }
    # The form still holds what was sent.
    assert values(answer.text, "input.")["input.text"] == HOSTILE


def test_a_wrong_value_is_named_and_the_form_stays(server: PageServer) -> None:
    with client(server) as browser:
        sent = {**values(browser.get("/").text), "input.number": "many", "input.pair": "[1, 2]"}
        answer = browser.post("/page/predict", data=sent)
        assert answer.status_code == 400
        assert "Input number must be a number, but got 'many'." in plain(answer.text)
        assert values(answer.text, "input.") == {key: text for key, text in sent.items() if key.startswith("input.")}
        # What the model finds wrong is said as in requests.
        answer = browser.post("/page/predict", data={**sent, "input.number": "1", "input.pair": "[1, 2, 3]"})
        assert answer.status_code == 400
        assert "Input pair" in plain(part(answer.text, "try"))


# The default.


def test_the_default_is_switched_in_the_registry(server: PageServer, registry: Registry) -> None:
    with client(server) as browser:
        key = form_key(browser.get("/").text)
        answer = browser.post("/page/default", data={"form_key": key, "model": "echo", "version": "3"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/?model=echo&to=3")
        assert registry.read_model("echo").default == 3
        assert registry.history("echo")[-1].change == "set-default"
        assert server.service.catalog.state("echo").default == 3
        assert "Version 3 is the default now." in browser.get(answer.headers["location"]).text


def test_a_version_that_is_not_loaded_can_become_the_default(server: PageServer) -> None:
    with client(server, follow_redirects=True) as browser:
        key = form_key(browser.get("/").text)
        text = browser.post("/page/default", data={"form_key": key, "model": "echo", "version": "1"}).text
        assert "Version 1 is the default now." in text
        # The form asks the default, unless a person has chosen a version.
        assert values(text)["version"] == ""
        assert "Signatures of version 1" in text


@pytest.mark.parametrize(
    ("model", "version", "status", "sentence"),
    [
        ("echo", "9", 409, "has no version 9"),
        ("echo", "", 400, "The form names no version"),
        ("../echo", "1", 404, "There is no model ../echo."),
        ("other", "1", 404, "There is no model other."),
    ],
)
def test_a_default_that_cannot_be_is_refused(
    server: PageServer, registry: Registry, model: str, version: str, status: int, sentence: str
) -> None:
    with client(server) as browser:
        key = form_key(browser.get("/").text)
        answer = browser.post("/page/default", data={"form_key": key, "model": model, "version": version})
    assert answer.status_code == status
    assert sentence in plain(answer.text)
    assert registry.read_model("echo").default == 2


def test_a_default_that_cannot_be_loaded_is_said(server: PageServer, registry: Registry) -> None:
    Path(registry.version_dir("echo", 1), "model.onnx").write_bytes(b"damaged")
    registry.set_default("echo", 1)
    with client(server) as browser:
        text = browser.get("/").text
        assert "Version 1 is set as the default, but does not answer yet." in text
        assert "version 2 answers by default" in text or "version 3 answers by default" in text
        assert browser.post("/page/predict", data=values(text)).status_code == 200


def test_the_default_of_a_directory_is_not_switched(tmp_path: Path) -> None:
    write_echo(tmp_path / "echo" / "1")
    write_echo(tmp_path / "echo" / "2")
    model = ServedModel(name="echo", path=str(tmp_path / "echo"), policy=VersionPolicy(all=True))
    with serving(ServingOptions(models=(model,), port=0)) as running, client(running) as browser:
        text = browser.get("/").text
        assert "Make default" not in text
        assert "The newest version is the default." in text
        sent = {"form_key": form_key(text), "model": "echo", "version": "1"}
        assert browser.post("/page/default", data=sent).status_code == 409
        assert running.service.catalog.state("echo").default == 2


# Who may do what.


@pytest.mark.parametrize("path", ["/page/default", "/page/predict", "/page/logout"])
@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({}, "another"),
        ({"sec-fetch-site": "cross-site"}, None),
        ({"sec-fetch-site": "same-site"}, None),
        ({"origin": "https://evil.example"}, None),
        ({"origin": "null"}, None),
    ],
)
def test_forms_of_other_sites_are_refused(
    server: PageServer, registry: Registry, path: str, headers: dict[str, str], key: str | None
) -> None:
    with client(server) as browser:
        sent = {**values(browser.get("/").text), "version": "3"}
        if key is not None:
            sent["form_key"] = key
        answer = browser.post(path, data=sent, headers=headers)
    assert answer.status_code == 403
    assert registry.read_model("echo").default == 2


def test_a_token_is_asked_for_and_kept_in_a_cookie(locked: PageServer) -> None:
    with client(locked) as browser:
        answer = browser.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/page/login")
        assert browser.get("/page/load").status_code == 401
        key = form_key(browser.get("/page/login").text)
        wrong = browser.post("/page/login", data={"form_key": key, "token": "guess"})
        assert wrong.status_code == 401
        assert "no such token" in wrong.text
        assert "estimator_token" not in browser.cookies

        assert browser.post("/page/login", data={"token": TOKEN}).status_code == 403
        right = browser.post("/page/login", data={"form_key": key, "token": TOKEN})
        assert right.status_code == 303
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert TOKEN not in cookie

        text = browser.get("/").text
        assert browser.post("/page/predict", data=values(text)).status_code == 200
        assert browser.get("/page/load").status_code == 200
        sent = {"form_key": key, "model": "echo", "version": "3"}
        assert browser.post("/page/default", data=sent).status_code == 303

        assert browser.post("/page/logout", data={"form_key": key}).status_code == 303
        assert browser.get("/").headers["location"] == "/page/login"


def test_without_a_token_nothing_is_shown_and_nothing_changes(locked: PageServer, registry: Registry) -> None:
    with client(locked) as browser:
        key = form_key(browser.get("/page/login").text)
        for path in ("/page/default", "/page/predict", "/page/logout"):
            sent = {"form_key": key, "model": "echo", "version": "3", "signature": "predict"}
            answer = browser.post(path, data=sent)
            assert answer.status_code == 401
            assert "echo" not in answer.text
        browser.cookies.set("estimator_token", "not base64 %%%")
        assert browser.get("/").status_code == 303
        # htmx is sent away as a whole, since it would put the answer into a part of the page.
        assert browser.get("/", headers={"hx-request": "true"}).headers["hx-redirect"] == "/page/login"
    assert registry.read_model("echo").default == 2


def test_the_cookie_opens_the_page_only(locked: PageServer) -> None:
    request = {"signature_name": HOSTILE, "instances": [INSTANCE]}
    with client(locked) as browser:
        key = form_key(browser.get("/page/login").text)
        browser.post("/page/login", data={"form_key": key, "token": TOKEN})
        assert browser.post("/v1/models/echo:predict", json=request).status_code == 401
        assert browser.get("/metrics").status_code == 401
    with client(locked, headers={"authorization": "Bearer another"}) as program:
        assert program.post("/v1/models/echo:predict", json=request).status_code == 200
        assert "version 2 answers" in program.get("/").text


def test_beyond_loopback_without_a_token_the_page_only_shows(registry: Registry) -> None:
    options = ServingOptions(registry=registry.url, port=0, host="0.0.0.0")
    with serving(options) as running, client(running) as browser:
        text = browser.get("/").text
        assert "version 2 answers by default" in text
        assert "This page only shows" in text
        assert "<form" not in text
        # The example is a row of somebody's data.
        assert "the second" not in browser.get("/?example=1").text
        browser.cookies.set("estimator_form", "key")
        sent = {"form_key": "key", "model": "echo", "version": "3", "signature": "predict"}
        for path in ("/page/default", "/page/predict"):
            answer = browser.post(path, data=sent)
            assert answer.status_code == 403
            assert "--token-file" in answer.text
        assert browser.get("/page/load").status_code == 200
    assert registry.read_model("echo").default == 2


# Nothing on the page runs by itself.


class Strict(HTMLParser):
    """Collects what a page must not have: scripts and styles in it, handlers of events, and foreign addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attributes:
            address = name in ("href", "src", "action", "hx-get", "hx-post")
            if name.startswith("on") or name == "style" or (address and not re.match(r"[/#](?!/)", value or "")):
                self.wrong.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style") and data.strip():
            self.wrong.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def test_hostile_names_and_values_are_only_text(tmp_path: Path) -> None:
    export = write_echo(tmp_path / "echo" / "1")
    with serving(ServingOptions(models=(ServedModel(name="echo", path=str(export)),), port=0)) as running:
        running.service.catalog.add(HOSTILE, DirectorySource(str(export)), VersionPolicy())
        running.service.catalog.refresh()
        with client(running) as browser:
            pages = [browser.get("/", params={"model": HOSTILE}), browser.get("/", params={"signature": HOSTILE})]
            sent = values(pages[0].text)
            assert sent["model"] == HOSTILE
            for signature in ("predict", HOSTILE):
                pages.append(browser.post("/page/predict", data={**sent, "signature": signature}))
                assert pages[-1].status_code == 200
            pages.append(browser.post("/page/predict", data={**sent, "input.number": HOSTILE}))
            pages.append(browser.get("/", params={"model": HOSTILE[::-1]}))
            pages.append(browser.post("/page/default", data={**sent, "version": "1"}))
            pages.append(browser.get("/", headers={"host": f"localhost/{HOSTILE[:20]}"}))
            for answer in pages:
                strict = Strict()
                strict.feed(answer.text)
                assert strict.wrong == []
                assert "<script>" not in answer.text
                assert "<img src=x" not in answer.text


def test_every_answer_forbids_scripts_and_styles_in_the_page(locked: PageServer) -> None:
    with client(locked) as browser:
        for answer in (
            browser.get("/"),
            browser.get("/page/login"),
            browser.get("/page/load"),
            browser.post("/page/default"),
            browser.get("/", headers={"authorization": f"Bearer {TOKEN}".encode()}),
        ):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"


def test_files_have_addresses_that_change_with_their_content(server: PageServer) -> None:
    with client(server) as browser:
        addresses = set(re.findall(r'(?:src|href)="(/page/static/[^"]+)"', browser.get("/").text))
        assert {address.split("/")[-1].split("?")[0] for address in addresses} == {
            *("page.css", "page.js", "icon.svg", "htmx.min.js", "uplot.min.js", "uplot.min.css"),
        }
        for address in addresses:
            answer = browser.get(address)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert re.search(r"\?[0-9a-f]{12}$", address)
        for path in ("..%2f..%2fpage.py", "%2e%2e/page.py", "README.md", "none.js"):
            assert browser.get(f"/page/static/{path}").status_code == 404


def test_the_page_works_under_a_path_of_another_application(registry: Registry, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    options = ServingOptions(registry=registry.url, port=0, token_file=str(tokens))
    with serving(options, mounted_at="/models") as running, client(running, follow_redirects=True) as browser:
        text = browser.get("/models/").text
        assert 'action="/models/page/login"' in text
        text = browser.post("/models/page/login", data={"form_key": form_key(text), "token": TOKEN}).text
        found = re.findall(r'(?:src|href|action|hx-get|hx-post|data-load)="([^"]*)"', text)
        addresses = {html.unescape(address) for address in found}
        assert all(address.startswith("/models/") for address in addresses)
        for address in addresses:
            assert browser.get(address).status_code in (200, 405)
        answer = browser.post("/models/page/predict", data=values(text, path="/models"))
        assert "curl" in answer.text and "/models/v1/models/echo/versions/2:predict" in answer.text
        answer = browser.post(
            "/models/page/default", data={"form_key": form_key(answer.text), "model": "echo", "version": "3"}
        )
        assert "Version 3 is the default now." in answer.text


# The load.


def test_the_load_counts_requests_by_second_and_by_model(server: PageServer) -> None:
    with client(server) as browser:
        browser.get("/page/load")
        good = {"signature_name": HOSTILE, "instances": [INSTANCE]}
        seconds: list[int] = []
        answered = failed = 0.0
        models: dict[str, float] = {}
        load: dict[str, Any] = {}
        deadline = time.monotonic() + MANY_SECS
        while not (answered and failed and models.get("echo")):
            assert time.monotonic() < deadline
            assert browser.post("/v1/models/echo:predict", json=good).status_code == 200
            assert browser.post("/v1/models/echo:predict", json={}).status_code == 400
            load = browser.get("/page/load", params={"since": max(seconds, default=0)}).json()
            assert {len(load[name]) for name in ("answered", "failed", "p50", "p99")} == {len(load["second"])}
            # No second comes twice.
            assert [second for second in load["second"] if second in seconds] == []
            seconds += load["second"]
            answered += sum(load["answered"])
            failed += sum(load["failed"])
            models = load["models"]
        assert any(one is not None and one > 0 for one in load["p99"])
        assert seconds == sorted(seconds)


def test_the_load_says_when_models_change(server: PageServer, registry: Registry) -> None:
    with client(server) as browser:
        before = browser.get("/page/load").json()["models_are"]
        assert browser.get("/page/load").json()["models_are"] == before
        registry.set_default("echo", 3)
        deadline = time.monotonic() + MANY_SECS
        while browser.get("/page/load").json()["models_are"] == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_predictions_of_the_page_count_as_requests(server: PageServer) -> None:
    with client(server) as browser:
        browser.post("/page/predict", data=values(browser.get("/").text))
        lines = browser.get("/metrics").text.splitlines()
    counted = 'te_requests_total{code="200",method="predict",model="echo",version="2"} 1.0'
    assert counted in lines


def test_the_page_needs_neither_torch_nor_onnx(template: Path) -> None:
    program = """
import sys
from pathlib import Path
from torch_estimator.serving import page
from torch_estimator.errors import InvalidValueError
from torch_estimator.registry import Registry
print("jinja2" in sys.modules)
from torch_estimator.web.site import environment
environment(Path(page.__file__).parent).get_template("page.html")
print(*({"torch", "onnx", "pandas", "tensorboard"} & set(sys.modules)))
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    # A server whose page nobody looks at does without Jinja, too.
    assert printed.split("\n")[:2] == ["False", ""]
