"""Site: signing in and out, answers to errors, headers, static files, and the templates that pages extend."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from torch_estimator.errors import RegistryError, UserError
from torch_estimator.web.access import FORM_COOKIE, Access, AccessRules, form_key, set_cookie
from torch_estimator.web.errors import RequestError

if TYPE_CHECKING:
    from jinja2 import Environment

PREFIX = "/page/"
"""Beginning of all paths of a site but ``/``."""

_HERE = Path(__file__).parent
_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

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

_Endpoint = Callable[[Request], Awaitable[Response]]


class Site:
    """The shared part of a site, whose own ``templates`` and ``static`` files are in `folder`.

    `home` says in words what the address ``/`` shows, such as ``"the models"``. `views` has the titles of the pages to
    which the top of each page links, by their names, and `elsewhere` the addresses of other sites by their titles.
    """

    def __init__(self, rules: AccessRules, folder: Path, *, home: str) -> None:
        self.rules = rules
        self.views: dict[str, str] = {}
        self.elsewhere: dict[str, str] = {}
        self._folder = folder
        self._home = home

    def routes(self) -> list[Route]:
        """Return the routes that every site has."""
        return [
            Route(f"{PREFIX}login", self.answering(self._login), methods=["GET", "POST"]),
            Route(f"{PREFIX}logout", self.answering(self._logout), methods=["POST"]),
            Route(f"{PREFIX}static/{{name}}", self._static),
        ]

    def answering(self, endpoint: _Endpoint) -> _Endpoint:
        """Return an endpoint that answers errors with a page, and sets the headers that all answers have."""

        @functools.wraps(endpoint)
        async def answer(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except RequestError as error:
                response = self._error(request, error.status, error.message)
            except UserError as error:
                response = self._error(request, 409 if isinstance(error, RegistryError) else 400, str(error))
            response.headers.update(_HEADERS)
            return response

        return answer

    def page(self, request: Request, access: Access, template: str, status: int = 200, **values: Any) -> Response:
        """Return a template, filled with `values`, and with the value that its forms must have."""
        key = form_key(request) or secrets.token_urlsafe(18)
        response = HTMLResponse(self._render(request, access, key, template, values), status)
        if not form_key(request):
            set_cookie(request, response, FORM_COOKIE, key)
        return response

    def ask_for_token(self, request: Request) -> Response:
        """Lead a visitor who may not see the site to the form for the token."""
        path = f"{mounted_at(request)}{PREFIX}login"
        if "hx-request" in request.headers:
            # htmx would put the form for the token into a part of the page.
            return Response(status_code=200, headers={"hx-redirect": path})
        return RedirectResponse(path, 303)

    def _render(self, request: Request, access: Access, key: str, template: str, values: dict[str, Any]) -> str:
        from torch_estimator import __version__

        return (
            environment(self._folder)
            .get_template(template)
            .render(
                version=__version__,
                access=access,
                form_key=key,
                address=request.headers.get("host", ""),
                link=functools.partial(link, request),
                static=functools.partial(self._static_address, request),
                prefix=f"{mounted_at(request)}{PREFIX}",
                views=self.views,
                elsewhere=self.elsewhere,
                path=request.url.path,
                **values,
            )
        )

    def _error(self, request: Request, status: int, message: str) -> Response:
        values = {"status": status, "message": message, "home": self._home}
        text = self._render(request, self.rules.access(request), form_key(request), "error.html", values)
        # Have htmx replace all that is shown, since the part that it wants is not in this answer.
        return HTMLResponse(text, status, {"hx-retarget": "main", "hx-reselect": "main", "hx-reswap": "outerHTML"})

    async def _login(self, request: Request) -> Response:
        """Show the form for the token, and answer it."""
        home = RedirectResponse(link(request), 303)
        if not self.rules.has_tokens:
            return home
        problem = ""
        if request.method == "POST":
            form = await self.rules.form(request, needs_access=False)
            if self.rules.sign_in(request, home, form.get("token", "")):
                return home
            problem = "The server has no such token."
        return self.page(request, Access(), "login.html", 401 if problem else 200, problem=problem)

    async def _logout(self, request: Request) -> Response:
        """Forget the token."""
        await self.rules.form(request)
        response = RedirectResponse(link(request), 303)
        self.rules.sign_out(response)
        return response

    async def _static(self, request: Request) -> Response:
        """Answer a request for a file. Its address has its checksum, so a browser may keep it."""
        found = _static_files(self._folder).get(request.path_params["name"])
        if found is None:
            return Response("Not Found", 404)
        content, kind, _ = found
        headers = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
        return Response(content, media_type=kind, headers=headers)

    def _static_address(self, request: Request, name: str) -> str:
        return f"{mounted_at(request)}{PREFIX}static/{name}?{_static_files(self._folder)[name][2]}"


def mounted_at(request: Request) -> str:
    """Return the path under which the server is mounted; empty if it has the whole host."""
    root: str = request.scope.get("root_path", "")
    return quote(root.rstrip("/"))


def link(request: Request, page: str = "", /, **values: Any) -> str:
    """Return the address of the page that shows what the arguments choose, such as ``model="census"``.

    Unset values are left out. `page` is the name of a further page of the site.
    """
    query = urlencode({key: value for key, value in values.items() if value not in (None, "", False)}, doseq=True)
    path = f"{mounted_at(request)}{PREFIX if page else '/'}{page}"
    return f"{path}?{query}" if query else path


@functools.cache
def _static_files(folder: Path) -> dict[str, tuple[bytes, str, str]]:
    """Return content, type and checksum of the shared files and of a site's own, by name."""
    found = {}
    for path in [*(_HERE / "static").iterdir(), *(folder / "static").iterdir()]:
        if path.suffix in _STATIC_TYPES:
            content = path.read_bytes()
            found[path.name] = (content, _STATIC_TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])
    return found


@functools.cache
def environment(folder: Path) -> Environment:
    """Return the environment of a site's own templates and the shared ones; of one name, its own."""
    # Servers whose page nobody looks at need not import Jinja.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([folder / "templates", _HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
