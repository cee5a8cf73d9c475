"""The console as a web application, and the server that runs it.

A view is a module with ``routes(context)``. To add one, write it with its templates, and list it in `_Views`. The list
of jobs is what a visitor waits for; all other views are imported when one of their pages is first asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from torch_estimator.console import jobs_view
from torch_estimator.console.index import Index
from torch_estimator.console.sources import Sources, refused_as_conflict
from torch_estimator.web.access import Access, AccessRules, Tokens
from torch_estimator.web.connection import server_config
from torch_estimator.web.site import PREFIX, Site

if TYPE_CHECKING:
    from torch_estimator.console.curves import Curves

_STALLED_SECS = 30.0
_DRAIN_SECS = 3


@dataclass(frozen=True)
class Context:
    """What views share: the site, and what was read of the directories."""

    site: Site
    sources: Sources
    index: Index

    @functools.cached_property
    def curves(self) -> Curves:
        """The curves that were read so far."""
        from torch_estimator.console.curves import Curves

        return Curves()

    def showing(self, show: Callable[[Request, Access], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of what only shows. `show` reads files, so it is called in a thread."""

        async def answer(request: Request) -> Response:
            access = self.site.rules.access(request)
            if not access.may_see:
                return self.site.ask_for_token(request)
            return await run_in_threadpool(show, request, access)

        return self.site.answering(answer)

    def changing(self, change: Callable[[Request, Mapping[str, str]], str]) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a form. `change` gets its fields in a thread, and returns where to go on."""

        async def answer(request: Request) -> Response:
            form = await self.site.rules.form(request)
            with refused_as_conflict():
                return RedirectResponse(await run_in_threadpool(change, request, form), 303)

        return self.site.answering(answer)


class _Views:
    """All views but the list of jobs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            self._router = await run_in_threadpool(self._imported)
        await self._router(scope, receive, send)

    def _imported(self) -> Router:
        from torch_estimator.console import compare_view, job_view, models_view, tuning_view

        views = (job_view, compare_view, tuning_view, models_view)
        return Router([route for view in views for route in view.routes(self._context)], redirect_slashes=False)


def make_app(sources: Sources, *, host: str, token_file: str | None = None) -> Starlette:
    """Return the application."""
    tokens = Tokens(token_file)
    rules = AccessRules(has_tokens=bool(tokens), check_authorization=tokens.check, host=host)
    site = Site(rules, Path(__file__).parent, home="the jobs")
    context = Context(site, sources, Index(sources))
    site.views |= {"": "Jobs", "compare": "Compare", "models": "Models"}
    if sources.server is not None:
        site.elsewhere["Server"] = sources.server

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.index.start()
        yield
        await run_in_threadpool(context.index.close)

    others = Route(f"{PREFIX}{{rest:path}}", _Views(context))
    app = Starlette(routes=[*jobs_view.routes(context), *site.routes(), others], lifespan=lifespan)
    app.state.context = context
    # A redirect would lead to the host that the client names.
    app.router.redirect_slashes = False
    return app


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    config = server_config(app, _STALLED_SECS, timeout_graceful_shutdown=_DRAIN_SECS)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))
