"""The console as a web application, and the server that runs it.

A view is a module with ``routes(context)``. To add one, write it with its templates, and list it in `VIEWS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from torch_estimator.console import compare_view, job_view, jobs_view, models_view, tuning_view
from torch_estimator.console.curves import Curves
from torch_estimator.console.index import Index
from torch_estimator.console.sources import Sources, refused_as_conflict
from torch_estimator.web.access import Access, AccessRules, Tokens
from torch_estimator.web.connection import server_config
from torch_estimator.web.site import Site

_STALLED_SECS = 30.0
_DRAIN_SECS = 3


VIEWS: tuple[Any, ...] = (jobs_view, job_view, compare_view, tuning_view, models_view)


@dataclass(frozen=True, slots=True)
class Context:
    """What views share: the site, and what was read of the directories."""

    site: Site
    sources: Sources
    index: Index
    curves: Curves

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


def make_app(sources: Sources, *, host: str, token_file: str | None = None) -> Starlette:
    """Return the application."""
    tokens = Tokens(token_file)
    rules = AccessRules(has_tokens=bool(tokens), check_authorization=tokens.check, host=host)
    site = Site(rules, Path(__file__).parent, home="the jobs")
    context = Context(site, sources, Index(sources), Curves())
    site.views |= {"": "Jobs", "compare": "Compare", "models": "Models"}
    if sources.server is not None:
        site.elsewhere["Server"] = sources.server

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.index.start()
        yield
        await run_in_threadpool(context.index.close)

    routes = [route for view in VIEWS for route in view.routes(context)]
    app = Starlette(routes=[*routes, *site.routes()], lifespan=lifespan)
    app.state.context = context
    # A redirect would lead to the host that the client names.
    app.router.redirect_slashes = False
    return app


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    config = server_config(app, _STALLED_SECS, timeout_graceful_shutdown=_DRAIN_SECS)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))
