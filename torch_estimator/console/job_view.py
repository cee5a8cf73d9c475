"""One job or run: what its roles did over time, its curves, and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator.console import texts
from torch_estimator.web.access import Access

if TYPE_CHECKING:
    from torch_estimator.console.app import Context


def routes(context: Context) -> list[Route]:
    """Return the routes of a job's page."""

    def show(request: Request, access: Access) -> Response:
        id = request.query_params.get("id", "")
        found = context.sources.find(id)
        return context.site.page(request, access, "job.html", found=found, row=context.index.row(id), texts=texts)

    return [Route("/page/job", context.showing(show))]
