"""Two or more runs side by side: which arguments differ, and their curves over one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator.console import texts
from torch_estimator.console.curves import MOST_CHARTS, MOST_RUNS, Curve, charts_of, wait_until
from torch_estimator.console.sources import Found
from torch_estimator.web.access import Access
from torch_estimator.web.errors import RequestError

if TYPE_CHECKING:
    from torch_estimator.console.app import Context

_MOST_FOUND = 12


def routes(context: Context) -> list[Route]:
    """Return the routes of the comparison."""

    def show(request: Request, access: Access) -> Response:
        given = request.query_params
        text, search = given.get("tag", "")[:200], given.get("q", "")[:200]
        chosen = list(dict.fromkeys(given.getlist("id")))
        runs, problems = [], []
        for id in chosen[:MOST_RUNS]:
            try:
                runs.append(context.sources.find(id))
            except RequestError as error:
                problems.append(error.message)
        if len(chosen) > MOST_RUNS:
            problems.append(f"Only the first {MOST_RUNS} of {len(chosen)} are compared.")
        curves: dict[str, Curve] = {}
        until = wait_until()
        for run in runs:
            curves |= context.curves.of(run, until)[1]
        behind = [run.name for run in runs if context.curves.is_behind(run)]
        if behind:
            problems.append(f"Still being read: {', '.join(behind)}. Load the page again to see more of the curves.")
        charts = charts_of(curves, text)
        values = {run.id: arguments_of(run) for run in runs}
        names = list(dict.fromkeys(name for one in values.values() for name in one))
        rows = [(name, [values[run.id].get(name) for run in runs]) for name in names]
        differing = [row for row in rows if len(set(row[1])) > 1]
        return context.site.page(
            request,
            access,
            "compare.html",
            runs=runs,
            ids=[run.id for run in runs],
            problems=problems,
            found=_found(context, search, set(chosen)),
            search=search,
            rows=differing,
            same=len(rows) - len(differing),
            charts=charts[:MOST_CHARTS],
            tag=text,
            by="time" if given.get("by") == "time" else "step",
            clean=texts.clean,
        )

    return [Route("/page/compare", context.showing(show))]


def arguments_of(run: Found) -> dict[str, str]:
    """Return what may differ between runs: the arguments of their programs, and the parameters of their trials."""
    if run.spec is None:
        return {}
    found = texts.arguments_of(run.spec.arguments, run.spec.secret_arguments)
    if run.trial is not None:
        found |= texts.arguments_of([f"--{name}={value}" for name, value in run.trial.parameters.items()])
    return {**found, "tier": texts.clean(run.spec.tier, 100), "target": texts.clean(run.spec.target, 100)}


def _found(context: Context, text: str, chosen: set[str]) -> list[str]:
    """Return the ids of what has all words of a text; without a text, the newest."""
    words, entries = text.lower().split(), context.sources.entries()
    known = context.index.known(entries) if words else {}
    found = []
    for entry in entries:
        searched = known[entry.id].searched if entry.id in known else entry.name.lower()
        if entry.id not in chosen and all(word in searched for word in words):
            found.append(entry.id)
        if len(found) == _MOST_FOUND:
            break
    return found
