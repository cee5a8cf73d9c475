"""Who may do what on a site, and how it knows its own forms.

- A site with tokens is shown to people who have given a token. It is kept in a cookie that scripts cannot read and that
  other sites cannot send.
- A site without tokens that listens on loopback lets everybody on the machine use it.
- Beyond loopback without a token it only shows.

What changes something must come from a form of the site: a random value in a cookie has to be in the form, too, and the
browser must not say that another site has sent it.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from torch_estimator.errors import InvalidValueError
from torch_estimator.web.errors import RequestError
from torch_estimator.web.http import read_body

_TOKEN_COOKIE = "estimator_token"
FORM_COOKIE = "estimator_form"
_FORM_FIELD = "form_key"

_MOST_FORM_BYTES = 2**20
_MOST_FIELDS = 10_000

CheckAuthorization = Callable[[bytes], None]
"""Function that raises a `RequestError` if a value of the header ``Authorization`` does not let a client in."""


class Tokens:
    """The tokens in a file, one a line; without a file there are none, and everybody is let in."""

    def __init__(self, path: str | None) -> None:
        self._tokens: list[bytes] = []
        if path is None:
            return
        try:
            self._tokens = [line.strip() for line in Path(path).read_bytes().splitlines() if line.strip()]
        except OSError as error:
            raise InvalidValueError(f"the token file {path} cannot be read: {error.strerror}.") from error
        if not self._tokens:
            raise InvalidValueError(f"the token file {path} has no token; write one a line.")

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def check(self, value: bytes) -> None:
        """Raise a RequestError if there are tokens and this value of ``Authorization`` holds none of them."""
        if not self._tokens:
            return
        scheme, _, given = value.partition(b" ")
        # Compare with every token in constant time, so that the time tells nothing about them.
        if sum(hmac.compare_digest(given.strip(), token) for token in self._tokens) == 0 or scheme.lower() != b"bearer":
            raise RequestError(401, "The request needs an 'Authorization: Bearer' header with a token of this server.")


@dataclass(frozen=True, slots=True)
class Access:
    """What a visitor may do: see the site, use its forms; and whether a cookie holds a token."""

    may_see: bool = False
    may_use: bool = False
    is_signed_in: bool = False


class AccessRules:
    """The rules of a site that listens on `host`, and that only people with a token may see if it `has_tokens`."""

    def __init__(self, *, has_tokens: bool, check_authorization: CheckAuthorization, host: str) -> None:
        self.has_tokens = has_tokens
        self._check_authorization = check_authorization
        self._is_loopback = _is_loopback(host)

    def access(self, request: Request) -> Access:
        """Return what the visitor who sends a request may do."""
        if not self.has_tokens:
            # A site of an attacker may have its name resolved to 127.0.0.1, so look at the name, too.
            is_local = self._is_loopback and _is_loopback(_host_name(request))
            return Access(may_see=True, may_use=is_local)
        try:
            cookie = request.cookies.get(_TOKEN_COOKIE, "")
            given = request.headers.get("authorization", "").encode("latin-1")
            self._check_authorization(b"Bearer " + base64.urlsafe_b64decode(cookie) if cookie else given)
        except (RequestError, ValueError):
            return Access()
        return Access(may_see=True, may_use=True, is_signed_in=bool(cookie))

    async def form(self, request: Request, *, needs_access: bool = True) -> dict[str, str]:
        """Return the fields of a submitted form.

        Raise a RequestError if the visitor may not send it, it was not made by this site, or it is not a form.
        """
        body = await read_body(request.scope, request.receive, most_bytes=_MOST_FORM_BYTES)
        if needs_access and not self.access(request).may_use:
            if self.has_tokens:
                raise RequestError(401, "You are not signed in, or the token has changed; sign in again.")
            raise RequestError(403, f"This page only shows, because {self._why_not(request)}")
        try:
            fields = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
        except ValueError as error:
            raise RequestError(400, f"The form has more than {_MOST_FIELDS} fields.") from error
        key = form_key(request)
        is_own = bool(key) and hmac.compare_digest(key.encode(), fields.get(_FORM_FIELD, "").encode())
        if not is_own or not _is_from_here(request):
            raise RequestError(
                403, "The form is out of date, or another site has sent it; load the page again and repeat it."
            )
        return fields

    def _why_not(self, request: Request) -> str:
        """Return why a site without tokens only shows, and what to do, as the end of a sentence."""
        if self._is_loopback:
            host = _host_name(request)[:100]
            return (
                f"it was asked for by the name {host!r}, under which other sites may send their visitors here; open it "
                "as 127.0.0.1 or localhost, or start the server with --token-file."
            )
        return (
            "the server takes requests from other machines and has no tokens; start it with --token-file, or open the "
            "page on its own machine with --host 127.0.0.1."
        )

    def sign_in(self, request: Request, response: Response, token: str) -> bool:
        """Have the browser keep a token; return False if it does not let anybody in."""
        given = token.strip().encode()
        try:
            self._check_authorization(b"Bearer " + given)
        except RequestError:
            return False
        set_cookie(request, response, _TOKEN_COOKIE, base64.urlsafe_b64encode(given).decode())
        return True

    def sign_out(self, response: Response) -> None:
        """Have the browser forget the token."""
        response.delete_cookie(_TOKEN_COOKIE, httponly=True, samesite="strict")


def form_key(request: Request) -> str:
    """Return the value that forms of this browser must have as ``form_key``; empty if it has none yet."""
    return request.cookies.get(FORM_COOKIE, "")


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Have the browser keep a value, which neither scripts nor other sites get."""
    is_secure = request.url.scheme == "https"
    response.set_cookie(name, value, httponly=True, samesite="strict", secure=is_secure)


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
