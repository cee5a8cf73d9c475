"""The page at ``/``: models, versions, load, and a form that predicts.

It is HTML that works without JavaScript, but for the plots. With JavaScript, htmx replaces the part of the page that
an answer changes, which it takes from the same whole page.

Who may do what:

- A server with tokens shows the page to people who have given a token. It is kept in a cookie that scripts cannot read
  and that other sites cannot send.
- A server without tokens that listens on loopback lets everybody on the machine use the page.
- Beyond loopback without a token it only shows models and load. It has no form either, since the form holds a row of
  the data that the model was trained or evaluated with.

What changes something must come from a form of this page: a random value in a cookie has to be in the form, too, and
the browser must not say that another site has sent it.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from torch_estimator.errors import RegistryError, UserError
from torch_estimator.export.instances import to_columns
from torch_estimator.serving.errors import RequestError
from torch_estimator.serving.http import read_body
from torch_estimator.serving.load import LoadHistory
from torch_estimator.serving.page_forms import command_line, outcome_of, read_instance
from torch_estimator.serving.page_view import Chosen, Models, Tried, link, signature_of
from torch_estimator.serving.service import PredictionService

if TYPE_CHECKING:
    from jinja2 import Environment

PREFIX = "/page/"
"""Beginning of all paths of the page but ``/``."""

_TOKEN_COOKIE = "estimator_token"
_FORM_COOKIE = "estimator_form"
_FORM_FIELD = "form_key"
_INPUT = "input."

_HERE = Path(__file__).parent
_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

_MOST_FORM_BYTES = 2**20
_MOST_FIELDS = 10_000

# Time that a changed default may take until the page shows it; the answer does not wait longer.
_SWITCH_SECS = 3.0

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not 'no-referrer', with which browsers would not say where a form comes from.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

CheckAuthorization = Callable[[bytes], None]
"""Function that raises a `RequestError` if a value of the header ``Authorization`` does not let a client in."""

_Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Access:
    """What a visitor may do: see the page, use its forms; and whether a cookie holds a token."""

    may_see: bool
    may_use: bool
    is_signed_in: bool = False


def routes(service: PredictionService, check_authorization: CheckAuthorization) -> list[Route]:
    """Return the routes of the page."""
    page = _Page(service, check_authorization)
    return [
        Route("/", page.answering(page.show)),
        Route(f"{PREFIX}default", page.answering(page.set_default), methods=["POST"]),
        Route(f"{PREFIX}predict", page.answering(page.predict), methods=["POST"]),
        Route(f"{PREFIX}login", page.answering(page.login), methods=["GET", "POST"]),
        Route(f"{PREFIX}logout", page.answering(page.logout), methods=["POST"]),
        Route(f"{PREFIX}load", page.answering(page.load)),
        Route(f"{PREFIX}static/{{name}}", _static),
    ]


class _Page:
    def __init__(self, service: PredictionService, check_authorization: CheckAuthorization) -> None:
        self._service = service
        self._check_authorization = check_authorization
        self._has_tokens = service.options.token_file is not None
        self._is_loopback = _is_loopback(service.options.host)
        self._models = Models(service.catalog, service.options)
        self._history = LoadHistory(service.metrics)

    def answering(self, endpoint: _Endpoint) -> _Endpoint:
        """Return an endpoint that answers errors with a page, and sets the headers that all answers have."""

        @functools.wraps(endpoint)
        async def answer(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except RequestError as error:
                response = self._error(request, error.status, error.message)
            except RegistryError as error:
                response = self._error(request, 409, str(error))
            except UserError as error:
                response = self._error(request, 400, str(error))
            response.headers.update(_HEADERS)
            return response

        return answer

    # What is shown.

    async def show(self, request: Request) -> Response:
        """Answer ``GET /``."""
        access = self._access(request)
        if not access.may_see:
            return _redirect(request, f"{_root(request)}{PREFIX}login")
        return await self._page(request, access, _chosen(request.query_params), switched=request.query_params.get("to"))

    async def load(self, request: Request) -> Response:
        """Answer ``GET /page/load?since=SECOND``: the load since then, as JSON."""
        if not self._access(request).may_see:
            return JSONResponse({"error": "Sign in first."}, 401)
        self._history.watch()
        since = _integer(request.query_params.get("since")) or 0
        return JSONResponse({**self._history.since(since), "models_are": self._models.fingerprint()})

    async def _page(
        self,
        request: Request,
        access: _Access,
        chosen: Chosen,
        *,
        tried: Tried | None = None,
        switched: str | None = None,
    ) -> Response:
        self._history.watch()

        def render() -> str:
            model = self._models.view(chosen, with_form=access.may_use, tried=tried)
            return (
                _environment()
                .get_template("page.html")
                .render(
                    **self._common(request, access, form_key),
                    model=model,
                    models=self._models.names(),
                    chosen=chosen,
                    tried=tried,
                    switched=_integer(switched),
                    load=self._history.latest(),
                    has_tokens=self._has_tokens,
                )
            )

        form_key = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(18)
        # In a thread, because this reads the registry, which may be far away.
        text = await run_in_threadpool(render)
        response = HTMLResponse(text, 400 if tried is not None and tried.problem else 200)
        return self._with_form_key(request, response, form_key)

    def _common(self, request: Request, access: _Access, form_key: str) -> dict[str, Any]:
        return {
            "server": self._service.describe(),
            "access": access,
            "form_key": form_key,
            "address": request.headers.get("host", ""),
            "link": functools.partial(link, _root(request)),
            "static": functools.partial(_static_address, _root(request)),
            "prefix": f"{_root(request)}{PREFIX}",
        }

    def _error(self, request: Request, status: int, message: str) -> Response:
        access = self._access(request)
        text = (
            _environment()
            .get_template("error.html")
            .render(
                **self._common(request, access, request.cookies.get(_FORM_COOKIE, "")), status=status, message=message
            )
        )
        # Have htmx replace all that is shown, since the part that it wants is not in this answer.
        return HTMLResponse(text, status, {"hx-retarget": "main", "hx-reselect": "main", "hx-reswap": "outerHTML"})

    # What a person does.

    async def predict(self, request: Request) -> Response:
        """Answer the form of a prediction."""
        form, access = await self._form(request), self._access(request)
        chosen = _chosen(form)
        version = self._models.version_of(chosen.model, chosen.version)
        signature = signature_of(version, chosen.signature)
        if "answered" in request.scope:
            answered = request.scope["answered"]
            answered.model, answered.version, answered.method = version.model, version.number, "predict"
            answered.instances = 1
        texts = {name.removeprefix(_INPUT): text for name, text in form.items() if name.startswith(_INPUT)}
        began = time.perf_counter()
        try:
            instance = read_instance(signature, texts)
            columns = to_columns([instance], signature)
            result = await self._service.predict(version, chosen.signature, columns, 1)
        except UserError as error:
            tried = Tried(texts=texts, problem=str(error))
        except RequestError as error:
            if error.status != 400:
                raise
            tried = Tried(texts=texts, problem=error.message)
        else:
            host = f"{request.headers.get('host', '')}{_root(request)}"
            url = f"{request.url.scheme}://{host}/v1/models/{quote(version.model)}"
            tried = Tried(
                texts=texts,
                outcome=outcome_of(
                    result.outputs,
                    milliseconds=(time.perf_counter() - began) * 1000,
                    request=command_line(
                        f"{url}/versions/{version.number}", chosen.signature, instance, with_token=self._has_tokens
                    ),
                ),
            )
        return await self._page(request, access, chosen, tried=tried)

    async def set_default(self, request: Request) -> Response:
        """Answer the form that makes a version the default."""
        form = await self._form(request)
        chosen = _chosen(form)
        if chosen.version is None:
            raise RequestError(400, "The form names no version; load the page again.")
        # Refuse a model that is not served here, although the registry may have it.
        model = self._models.name_of(chosen.model)
        await run_in_threadpool(self._models.registry_of(model).set_default, model, chosen.version)
        # The catalog finds the change by itself, soon. Wait for it, so that the page shows the new default.
        catalog, deadline = self._service.catalog, time.monotonic() + _SWITCH_SECS
        while catalog.state(model).default != chosen.version and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return RedirectResponse(link(_root(request), model=model, to=chosen.version), 303)

    async def login(self, request: Request) -> Response:
        """Show the form for the token, and answer it."""
        if not self._has_tokens:
            return RedirectResponse(link(_root(request)), 303)
        problem = ""
        if request.method == "POST":
            token = (await self._form(request, needs_access=False)).get("token", "").strip().encode()
            try:
                self._check_authorization(b"Bearer " + token)
            except RequestError:
                problem = "The server has no such token."
            else:
                response: Response = RedirectResponse(link(_root(request)), 303)
                value = base64.urlsafe_b64encode(token).decode()
                return self._with_cookie(request, response, _TOKEN_COOKIE, value)
        form_key = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(18)
        text = (
            _environment()
            .get_template("login.html")
            .render(**self._common(request, _Access(may_see=False, may_use=False), form_key), problem=problem)
        )
        return self._with_form_key(request, HTMLResponse(text, 401 if problem else 200), form_key)

    async def logout(self, request: Request) -> Response:
        """Forget the token."""
        await self._form(request)
        response = RedirectResponse(link(_root(request)), 303)
        response.delete_cookie(_TOKEN_COOKIE, httponly=True, samesite="strict")
        return response

    # Who may do it.

    def _access(self, request: Request) -> _Access:
        if not self._has_tokens:
            # A site of an attacker may have its name resolved to 127.0.0.1, so look at the name, too.
            is_local = self._is_loopback and _is_loopback(_host_name(request))
            return _Access(may_see=True, may_use=is_local)
        try:
            cookie = request.cookies.get(_TOKEN_COOKIE, "")
            given = request.headers.get("authorization", "").encode("latin-1")
            self._check_authorization(b"Bearer " + base64.urlsafe_b64decode(cookie) if cookie else given)
        except (RequestError, ValueError):
            return _Access(may_see=False, may_use=False)
        return _Access(may_see=True, may_use=True, is_signed_in=bool(cookie))

    async def _form(self, request: Request, *, needs_access: bool = True) -> dict[str, str]:
        """Return the fields of a submitted form.

        Raise a RequestError if the visitor may not send it, it was not made by this page, or it is not a form.
        """
        body = await read_body(request.scope, request.receive, most_bytes=_MOST_FORM_BYTES)
        access = self._access(request)
        if needs_access and not access.may_use:
            if self._has_tokens:
                raise RequestError(401, "You are not signed in, or the token has changed; sign in again.")
            raise RequestError(
                403,
                "This page only shows, because the server takes requests from other machines and has no tokens; start "
                "it with --token-file, or open the page on its own machine with --host 127.0.0.1.",
            )
        try:
            fields = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
        except ValueError as error:
            raise RequestError(400, f"The form has more than {_MOST_FIELDS} fields.") from error
        key = request.cookies.get(_FORM_COOKIE, "")
        is_own = bool(key) and hmac.compare_digest(key.encode(), fields.get(_FORM_FIELD, "").encode())
        if not is_own or not _is_from_here(request):
            raise RequestError(
                403, "The form is out of date, or another site has sent it; load the page again and repeat it."
            )
        return fields

    def _with_form_key(self, request: Request, response: Response, form_key: str) -> Response:
        if request.cookies.get(_FORM_COOKIE) == form_key:
            return response
        return self._with_cookie(request, response, _FORM_COOKIE, form_key)

    def _with_cookie(self, request: Request, response: Response, name: str, value: str) -> Response:
        is_secure = request.url.scheme == "https"
        response.set_cookie(name, value, httponly=True, samesite="strict", secure=is_secure)
        return response


def _chosen(fields: Mapping[str, str]) -> Chosen:
    """Return what the fields of an address or a form choose; raise a RequestError if a number is not one."""
    version = fields.get("version", "")
    number = _integer(version.removeprefix("v"))
    if version and number is None:
        raise RequestError(404, "A version is a whole number.")
    return Chosen(
        model=fields.get("model", ""),
        version=number,
        signature=fields.get("signature", ""),
        example=_integer(fields.get("example")) or 0,
        all=fields.get("all") == "1",
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else None


def _root(request: Request) -> str:
    """Return the path under which the server is mounted; empty if it has the whole host."""
    root: str = request.scope.get("root_path", "")
    return quote(root.rstrip("/"))


def _host_name(request: Request) -> str:
    """Return the name of the server in a request, without the port; empty if it is no name."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_from_here(request: Request) -> bool:
    """Return whether the browser says that a page of this server has sent the form."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    # A client without either header is no browser, or an old one. It needs the right value in the form anyway.
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _redirect(request: Request, path: str) -> Response:
    if "hx-request" in request.headers:
        # htmx would put the form for the token into a part of the page.
        return Response(status_code=200, headers={"hx-redirect": path})
    return RedirectResponse(path, 303)


async def _static(request: Request) -> Response:
    """Answer a request for a file. Its address has its checksum, so a browser may keep it."""
    found = _static_files().get(request.path_params["name"])
    if found is None:
        return Response("Not Found", 404)
    content, kind, _ = found
    headers = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
    return Response(content, media_type=kind, headers=headers)


@functools.cache
def _static_files() -> dict[str, tuple[bytes, str, str]]:
    """Return content, type and checksum of the files, by name."""
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        if path.suffix in _STATIC_TYPES:
            content = path.read_bytes()
            found[path.name] = (content, _STATIC_TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])
    return found


def _static_address(root: str, name: str) -> str:
    return f"{root}{PREFIX}static/{name}?{_static_files()[name][2]}"


@functools.cache
def _environment() -> Environment:
    # Servers whose page nobody looks at need not import Jinja.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["input_prefix"] = _INPUT
    return environment
