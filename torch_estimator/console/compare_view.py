"""Two or more runs side by side: which arguments differ, and their curves over one another."""

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
    """Return the routes of the comparison."""

    def show(request: Request, access: Access) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("id")))
        return context.site.page(request, access, "compare.html", ids=ids, texts=texts)

    return [Route("/page/compare", context.showing(show))]
