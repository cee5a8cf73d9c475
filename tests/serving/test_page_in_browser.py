"""The page in headless Chromium: without loading it anew, and without JavaScript.

Install it with ``apt-get install chromium chromium-driver``; without it, these tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.browser import Browser, browser, is_installed
from tests.serving.echo_export import HOSTILE, write_echo
from tests.serving.page_server import PageServer, serving, write_registry
from torch_estimator.registry import Registry
from torch_estimator.serving.catalog import DirectorySource
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="needs Chromium: apt-get install chromium chromium-driver (half a minute)"
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with the versions 1, 2 and 3 of a model ``echo``, of which 2 is the default."""
    base = tmp_path_factory.mktemp("template")
    write_registry(base)
    return base / "registry"


@pytest.fixture
def registry(template: Path, tmp_path: Path) -> Registry:
    shutil.copytree(template, tmp_path / "registry")
    return Registry(tmp_path / "registry")


@pytest.fixture
def server(registry: Registry) -> Iterator[PageServer]:
    with serving(ServingOptions(registry=registry.url, port=0), VersionPolicy(all=True)) as running:
        yield running


@pytest.fixture
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def mark(window: Browser) -> None:
    """Leave a mark that is gone if the page is loaded anew."""
    window.run("window.isSamePage = true")


def is_marked(window: Browser) -> bool:
    return bool(window.run("return window.isSamePage === true"))


def test_a_prediction_appears_without_loading_the_page(server: PageServer, window: Browser) -> None:
    window.open(f"{server.url}/?signature={quote(HOSTILE)}")
    mark(window)
    window.write("input[name='input.text']", "hello")
    window.write("input[name='input.number']", "x")
    window.click("#try form button")
    window.wait_for("#outcome", "Input number must be a number, but got 'x'")
    window.write("input[name='input.number']", "1")
    window.write("input[name='input.pair']", "[1, 2]")
    window.click("#try form button")
    window.wait_for("#outcome .headline", "^hello$")
    assert is_marked(window)
    assert window.url.startswith(f"{server.url}/?signature=")
    # The one message is the status 400 of the wrong number; there is none about the content security policy.
    assert [message for message in window.log() if "400 (Bad Request)" not in message] == []


def test_the_load_is_drawn_as_it_comes(server: PageServer, window: Browser) -> None:
    window.open(server.url)
    window.wait_until(lambda: len(window.find(".plot canvas")) == 2)
    request = {"signature_name": HOSTILE, "inputs": {"text": ["a"], "number": [1], "flag": [True], "pair": [[1, 2]]}}

    def is_shown() -> bool:
        httpx.post(f"{server.url}/v1/models/echo:predict", json=request, trust_env=False).raise_for_status()
        httpx.post(f"{server.url}/v1/models/echo:predict", json={}, trust_env=False)
        shown = [window.text(f"[data-now={name}]") for name in ("answered", "failed", "p50", "p99")]
        return all(text[0] in "123456789" or text.startswith("0.") for text in shown)

    window.wait_until(is_shown)
    assert window.text("[data-rate-of=echo]").endswith("/s")
    # The middle of the plot is no longer empty.
    count = "const c = arguments[0]; return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(Boolean)"
    for canvas in ("requests", "latency"):
        script = f"return (function() {{ {count} }})(document.querySelector('[data-plot={canvas}] canvas'))"
        assert window.run(script)
    assert window.log() == []


def test_the_default_is_switched_with_a_click(server: PageServer, registry: Registry, window: Browser) -> None:
    window.open(server.url)
    mark(window)
    window.wait_for("#versions tbody tr:first-child", "Make default")
    window.click("#versions tbody tr:first-child button")
    window.wait_for("#versions", "Version 3 is the default now")
    assert registry.read_model("echo").default == 3
    # The list of models follows by itself, and so does all that somebody else changes.
    window.wait_for("#models", "v3")
    registry.set_default("echo", 1)
    registry.update("echo", 3, labels=["blue"])
    window.wait_for("#models", "v1")
    window.wait_for("#versions tbody tr:first-child", "blue")
    # The form follows the default, too, and keeps what a person has written.
    window.write("input[name='input.text']", "kept")
    registry.set_default("echo", 2)
    window.wait_for("#choices [aria-current]", "2")
    window.wait_for("#title", "version 2")
    window.click("#try form button")
    window.wait_for("#outcome", "Version 2, predict")
    assert "kept" in window.text("#outcome")
    assert is_marked(window)
    assert window.log() == []


def test_forms_work_without_javascript(server: PageServer, registry: Registry, window: Browser) -> None:
    window.without_javascript()
    window.open(f"{server.url}/?signature={quote(HOSTILE)}")
    assert "The plots need JavaScript" in window.text("#load")
    window.write("input[name='input.text']", "hello")
    window.write("input[name='input.number']", "1")
    window.write("input[name='input.pair']", "[1, 2]")
    window.click("#try form button")
    window.wait_for("#outcome .headline", "^hello$")
    window.click("#versions tbody tr:first-child button")
    window.wait_for("#versions", "Version 3 is the default now")
    assert registry.read_model("echo").default == 3


def test_a_token_is_asked_for_and_kept(registry: Registry, tmp_path: Path, window: Browser) -> None:
    (tmp_path / "tokens").write_text("s3cret\n")
    options = ServingOptions(registry=registry.url, port=0, token_file=str(tmp_path / "tokens"))
    with serving(options, VersionPolicy(all=True)) as server:
        window.open(server.url)
        window.write("#token", "guess")
        window.click("main button")
        window.wait_for("main", "no such token")
        window.write("#token", "s3cret")
        window.click("main button")
        window.wait_for("#versions", "available")
        assert window.run("return document.cookie") == ""
        window.click("#try form button")
        window.wait_for("#outcome", "All outputs")
        window.click("#versions tbody tr:first-child button")
        window.wait_for("#versions", "Version 3 is the default now")
        window.click("header form button")
        window.wait_for("h1", "Sign in")
        window.open(server.url)
        assert window.url == f"{server.url}/page/login"


def test_a_page_left_open_asks_for_the_token_when_the_cookie_is_gone(
    registry: Registry, tmp_path: Path, window: Browser
) -> None:
    (tmp_path / "tokens").write_text("s3cret\n")
    with serving(ServingOptions(registry=registry.url, port=0, token_file=str(tmp_path / "tokens"))) as server:
        window.open(server.url)
        window.write("#token", "s3cret")
        window.click("main button")
        window.wait_for("#versions", "available")
        window.emulate("Network.clearBrowserCookies")
        window.wait_for("h1", "Sign in")


def test_nothing_hostile_runs(tmp_path: Path, window: Browser) -> None:
    export = write_echo(tmp_path / "echo" / "1")
    with serving(ServingOptions(models=(ServedModel(name="echo", path=str(export)),), port=0)) as server:
        server.service.catalog.add(HOSTILE, DirectorySource(str(export)), VersionPolicy())
        server.service.catalog.refresh()
        window.open(server.url)
        window.click("#models li:first-child a")
        window.wait_for("h1", "window.hacked=1")
        for signature in ("2", "3"):
            window.click("#try form button")
            window.wait_for("#outcome", "All outputs")
            window.click(f"#try .choices > span:nth-child(2) .pill:nth-child({int(signature) - 1})")
            window.wait_for("#outcome", "The prediction appears here")
        assert window.run("return typeof window.hacked") == "undefined"
        assert len(window.find("img[src=x]")) == 0
        assert window.log() == []


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_it_fits_a_screen(server: PageServer, window: Browser, width: int) -> None:
    window.resize(width, 900)
    window.open(server.url)
    window.click("#try form button")
    window.wait_for("#outcome", "All outputs")
    window.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert window.run("return document.documentElement.scrollWidth") <= width


def test_it_is_dark_for_who_wants_it_dark(server: PageServer, window: Browser) -> None:
    def background() -> int:
        color = window.run("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(",")))

    window.prefer("light")
    window.open(server.url)
    assert background() > 600
    window.prefer("dark")
    window.wait_until(lambda: background() < 150)
    window.wait_until(lambda: len(window.find(".plot canvas")) == 2)
