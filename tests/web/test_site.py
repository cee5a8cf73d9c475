"""A site of one page and one form: who may send it, its cookies, its files, and its answers to errors."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.in_process import InProcess
from torch_estimator.errors import InvalidValueError, RegistryError
from torch_estimator.web.access import AccessRules
from torch_estimator.web.errors import RequestError
from torch_estimator.web.site import Site

HERE = "http://127.0.0.1:8501"
TOKEN = "s3cret-töken"


def check(value: bytes) -> None:
    if value != f"Bearer {TOKEN}".encode():
        raise RequestError(401, "no")


def browser(
    folder: Path, *, has_tokens: bool = False, host: str = "127.0.0.1", at: str = HERE, mounted_at: str = ""
) -> httpx.Client:
    """A browser of a site that shows a form, and answers it with what it says."""
    for name in ("templates", "static"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "templates" / "own.html").write_text(
        '{% extends "base.html" %}{% block body %}{{ static("own.js") }} '
        '{% if access.may_use %}<form><input name="form_key" value="{{ form_key }}"></form>{% endif %}{% endblock %}'
    )
    own = folder / "static" / "own.js"
    if not own.exists():
        own.write_text("1")
    site = Site(AccessRules(has_tokens=has_tokens, check_authorization=check, host=host), folder, home="the <things>")

    async def show(request: Request) -> Response:
        access = site.rules.access(request)
        return site.page(request, access, "own.html") if access.may_see else site.ask_for_token(request)

    async def say(request: Request) -> Response:
        return PlainTextResponse((await site.rules.form(request))["say"])

    async def fail(request: Request) -> Response:
        raise {
            "request": RequestError(429, "Too <many>."),
            "registry": RegistryError("Changed <meanwhile>."),
            "value": InvalidValueError("Wrong <value>."),
        }[request.query_params["with"]]

    own_routes = [
        Route("/", site.answering(show)),
        Route("/page/say", site.answering(say), methods=["POST"]),
        Route("/page/fail", site.answering(fail)),
    ]
    app = Starlette(routes=[*own_routes, *site.routes()])
    return httpx.Client(transport=InProcess(app, mounted_at), base_url=at)


def key_in(answer: httpx.Response) -> str:
    found = re.search(r'name="form_key" value="([^"]+)"', answer.text)
    assert found is not None
    return found[1]


# Who may send a form.


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "same-origin"}, {"origin": HERE}])
def test_forms_of_the_site_itself_are_taken(tmp_path: Path, headers: dict[str, str]) -> None:
    site = browser(tmp_path)
    sent = {"form_key": key_in(site.get("/")), "say": "é"}
    answer = site.post("/page/say", data=sent, headers=headers)
    assert (answer.status_code, answer.text) == (200, "é")


def test_a_form_without_a_cookie_is_refused(tmp_path: Path) -> None:
    site = browser(tmp_path)
    sent = {"form_key": key_in(site.get("/")), "say": "x"}
    site.cookies.clear()
    assert site.post("/page/say", data=sent).status_code == 403
    assert site.post("/page/say", data={**sent, "form_key": ""}).status_code == 403


def test_a_form_that_is_too_large_is_refused(tmp_path: Path) -> None:
    site = browser(tmp_path)
    sent = {"form_key": key_in(site.get("/")), "say": "x"}
    assert site.post("/page/say", data={**sent, "text": "x" * 2**20}).status_code == 413
    assert site.post("/page/say", data={**sent, **{str(place): "" for place in range(10_001)}}).status_code == 400
    assert site.post("/page/say", data=sent).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.168.1.5:80", "[", ""])
def test_a_name_of_another_site_for_this_machine_only_shows(tmp_path: Path, host: str) -> None:
    site = browser(tmp_path)
    sent = {"form_key": key_in(site.get("/")), "say": "x"}
    shown = site.get("/", headers={"host": host})
    assert shown.status_code == 200
    assert "<form" not in shown.text
    refused = site.post("/page/say", data=sent, headers={"host": host})
    assert refused.status_code == 403
    assert "open it as 127.0.0.1 or localhost" in refused.text
    assert "from other machines" not in refused.text
    if host == "evil.example":
        assert "it was asked for by the name &#39;evil.example&#39;" in refused.text


@pytest.mark.parametrize("host", ["localhost", "localhost:8501", "127.0.0.1:1", "127.8.8.8", "[::1]:8501"])
def test_every_name_of_this_machine_may_use_the_site(tmp_path: Path, host: str) -> None:
    assert "<form" in browser(tmp_path).get("/", headers={"host": host}).text


def test_beyond_loopback_a_site_without_tokens_only_shows(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.168.1.5", "name.example"):
        site = browser(tmp_path, host=host)
        assert "<form" not in site.get("/").text
        assert "takes requests from other machines and has no tokens" in site.post("/page/say").text


def test_a_token_is_kept_until_the_visitor_signs_out(tmp_path: Path) -> None:
    site = browser(tmp_path, has_tokens=True, host="0.0.0.0", mounted_at="/below")
    assert site.get("/").headers["location"] == "/below/page/login"
    key = key_in(site.get("/page/login"))
    wrong = site.post("/page/login", data={"form_key": key, "token": "guess"})
    assert (wrong.status_code, "estimator_token" in site.cookies) == (401, False)
    assert site.post("/page/say", data={"form_key": key, "say": "x"}).status_code == 401
    right = site.post("/page/login", data={"form_key": key, "token": f" {TOKEN} "})
    assert (right.status_code, right.headers["location"]) == (303, "/below/")
    assert "Sign out" in site.get("/").text
    assert site.post("/page/say", data={"form_key": key, "say": "x"}).status_code == 200
    assert site.post("/page/logout", data={"form_key": key}).status_code == 303
    assert site.get("/").headers["location"] == "/below/page/login"


def test_the_cookie_of_forms_is_not_for_scripts_nor_for_other_sites(tmp_path: Path) -> None:
    site = browser(tmp_path)
    cookie = site.get("/").headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert "set-cookie" not in site.get("/").headers
    assert "; secure" in browser(tmp_path, at="https://localhost").get("/").headers["set-cookie"].lower()


# Answers to errors, and files.


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        ("request", 429, "Too &lt;many&gt;."),
        ("registry", 409, "Changed &lt;meanwhile&gt;."),
        ("value", 400, "Wrong &lt;value&gt;."),
    ],
)
def test_an_error_is_answered_with_a_page(tmp_path: Path, error: str, status: int, sentence: str) -> None:
    answer = browser(tmp_path).get("/page/fail", params={"with": error})
    assert answer.status_code == status
    assert sentence in answer.text
    assert "Back to the &lt;things&gt;" in answer.text
    assert answer.headers["hx-retarget"] == "main"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_the_address_of_a_file_changes_with_its_content(tmp_path: Path) -> None:
    addresses = []
    for text in ("one", "other"):
        (tmp_path / text / "static").mkdir(parents=True)
        (tmp_path / text / "static" / "own.js").write_text(text)
        (tmp_path / text / "static" / "README.md").write_text("not for browsers")
        site = browser(tmp_path / text, mounted_at="/below")
        found = re.search(r"/below(/page/static/own\.js\?[0-9a-f]{12}) ", site.get("/").text)
        assert found is not None
        addresses.append(found[1])
        answer = site.get(found[1])
        assert (answer.text, answer.headers["content-type"]) == (text, "text/javascript; charset=utf-8")
        assert "immutable" in answer.headers["cache-control"]
        # A shared file is there, too.
        assert site.get("/page/static/htmx.min.js").status_code == 200
        for name in ("..%2ftemplates%2fown.html", "README.md", "none.js"):
            assert site.get(f"/page/static/{name}").status_code == 404
    assert addresses[0] != addresses[1]
