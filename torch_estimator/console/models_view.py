"""The models of a registry: their versions, from which job each comes, which requests it gets, and what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator.console import texts
from torch_estimator.console.provenance import Origin, Provenance
from torch_estimator.console.traffic import Traffic
from torch_estimator.errors import RegistryError, UserError
from torch_estimator.registry import Registry, VersionInfo
from torch_estimator.web.access import Access
from torch_estimator.web.errors import RequestError
from torch_estimator.web.site import link

if TYPE_CHECKING:
    from torch_estimator.console.app import Context

_MOST_VERSIONS = 50
_MOST_CHANGES = 20
_MOST_METRICS = 3


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version, its manifest and its origin, or what is wrong with its manifest."""

    number: int
    labels: list[str]
    info: VersionInfo | None = None
    origin: Origin | None = None
    problem: str = ""

    @property
    def metrics(self) -> Mapping[str, float]:
        """A few metrics of the first evaluation."""
        found = next(iter(self.info.metrics.values()), {}) if self.info is not None else {}
        usual = [name for name in ("auc", "accuracy", "average_loss", "loss") if name in found]
        names = [*usual, *(name for name in found if name not in usual and name != "global_step")]
        return {name: found[name] for name in names[:_MOST_METRICS]}


def routes(context: Context) -> list[Route]:
    """Return the routes of the models' page."""
    provenance, traffic = Provenance(context.sources), Traffic(context.sources.server)

    def show(request: Request, access: Access) -> Response:
        given = request.query_params
        values: dict[str, Any] = {"models": [], "model": None, "problem": "", "rows": [], "row": None, "changes": []}
        if context.sources.registry is not None:
            registry = Registry(context.sources.registry)
            try:
                values["models"] = registry.models()
                if name := given.get("model") or next(iter(values["models"]), ""):
                    values |= _model(registry, provenance, name, given)
            except RegistryError as error:
                if given.get("model") and not values["problem"]:
                    raise RequestError(404, texts.clean(error, 500)) from error
                values["problem"] = texts.clean(error, 500)
        return context.site.page(
            request,
            access,
            "models.html",
            **values,
            registry=context.sources.registry,
            server=traffic.server,
            load=traffic.load(),
            switched=texts.whole(given.get("to"), 0),
            job_state=_job_state(context, values["row"]),
            texts=texts,
        )

    def set_default(request: Request, form: Mapping[str, str]) -> str:
        model, version = form.get("model", ""), texts.whole(form.get("version"), 0)
        if context.sources.registry is None:
            raise RequestError(409, "The console knows no registry; start it with --registry.")
        Registry(context.sources.registry).set_default(model, version)
        return link(request, "models", model=model, to=version)

    return [
        Route("/page/models", context.showing(show)),
        Route("/page/models/default", context.changing(set_default), methods=["POST"]),
    ]


def _model(registry: Registry, provenance: Provenance, name: str, given: Mapping[str, str]) -> dict[str, Any]:
    # Whatever name the file has.
    state = replace(registry.read_model(name), name=name)
    numbers = sorted(registry.versions(name), reverse=True)
    chosen = texts.whole(given.get("version"), 0) or texts.whole(given.get("to"), 0) or state.default
    in_use = {state.default, chosen, *state.labels.values()}
    listed = [number for place, number in enumerate(numbers) if place < _MOST_VERSIONS or number in in_use]
    rows = [_row(registry, provenance, name, number, state.labels) for number in listed]
    row = next((one for one in rows if one.number == chosen), None)
    if row is None and given.get("version"):
        raise RequestError(404, f"The model {name} has no version {texts.clean(given['version'], 40)}.")
    try:
        changes, problem = registry.history(name)[: -_MOST_CHANGES - 1 : -1], ""
    except UserError as error:
        changes, problem = [], texts.clean(error, 500)
    return {
        "model": state,
        "rows": rows,
        "row": row or next(iter(rows), None),
        "hidden": len(numbers) - len(rows),
        "changes": changes,
        "problem": problem,
    }


def _row(registry: Registry, provenance: Provenance, model: str, number: int, labels: Mapping[str, int]) -> VersionRow:
    own = sorted(label for label, version in labels.items() if version == number)
    try:
        info = registry.read_version(model, number)
    except UserError as error:
        return VersionRow(number, own, problem=texts.clean(error, 300))
    return VersionRow(number, own, info, provenance.of(info))


def _job_state(context: Context, row: VersionRow | None) -> str:
    """Return the state of the job of a version; empty if it is gone."""
    if row is None or row.origin is None or not row.origin.job:
        return ""
    return context.index.row(row.origin.job).shown_state.lower()
