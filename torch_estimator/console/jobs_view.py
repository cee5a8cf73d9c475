"""The list of jobs and runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator.console import texts
from torch_estimator.console.index import PAGE
from torch_estimator.console.rows import Row
from torch_estimator.console.sources import MOST_LISTED, Entry
from torch_estimator.web.access import Access

if TYPE_CHECKING:
    from torch_estimator.console.app import Context


def routes(context: Context) -> list[Route]:
    """Return the routes of the list."""

    def show(request: Request, access: Access) -> Response:
        text = request.query_params.get("q", "")[:200]
        page = texts.whole(request.query_params.get("page"), 1)
        entries = context.sources.entries()
        matching, waiting = _matching(context, entries, text)
        pages = max(1, -(-len(matching) // PAGE))
        page = min(max(page, 1), pages)
        shown = matching[(page - 1) * PAGE : page * PAGE]
        rows = context.index.rows(shown)
        return context.site.page(
            request,
            access,
            "jobs.html",
            rows=[rows.get(one.id) or Row(id=one.id, name=texts.clean(one.name, 200)) for one in shown],
            count=len(matching),
            listed=len(entries),
            is_cut=len(entries) >= MOST_LISTED,
            waiting=waiting,
            page=page,
            pages=pages,
            text=text,
            problems=context.sources.problems(),
            sources=context.sources,
            now=time.time(),
            texts=texts,
        )

    return [Route("/", context.showing(show))]


def _matching(context: Context, entries: list[Entry], text: str) -> tuple[list[Entry], int]:
    """Return what has all words of a text, and of how many this is not known yet."""
    words = text.lower().split()
    if not words:
        return entries, 0
    known = context.index.known(entries)
    known |= context.index.rows(one for one in entries if one.id not in known)
    found = [one for one in entries if (row := known.get(one.id)) and all(word in row.searched for word in words)]
    return found, len(entries) - len(known)
