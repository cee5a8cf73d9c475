"""A study: its trials by rung, what their parameters have to do with their metric, and forms for its controller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator.console import texts
from torch_estimator.console.provenance import real_path
from torch_estimator.console.sources import Found, refused_as_conflict
from torch_estimator.console.studies import read_trials, states_of
from torch_estimator.console.study_pictures import HEIGHT, WIDTH, coordinates, rung_rows
from torch_estimator.errors import UserError
from torch_estimator.registry import Registry
from torch_estimator.tuning.directory import StudyDirectory, Trial, best_trial, newest_export, rank
from torch_estimator.tuning.importance import FEW, importance
from torch_estimator.tuning.requests import Requests
from torch_estimator.tuning.study import Study
from torch_estimator.web.access import Access
from torch_estimator.web.errors import RequestError
from torch_estimator.web.site import link

if TYPE_CHECKING:
    from torch_estimator.console.app import Context

_MOST_LISTED = 200
_MOST_ASKED = 5


def routes(context: Context) -> list[Route]:
    """Return the routes of a study's page."""

    def show(request: Request, access: Access) -> Response:
        given = request.query_params
        id = given.get("id", "")
        row, directory = context.index.row(id), _study_of(context.sources.find(id))
        with refused_as_conflict():
            study, (trials, problems) = directory.study(), read_trials(directory)
        numbers = [one.number for one in trials]
        states = states_of(directory, trials, is_over=row.is_over)
        best = best_trial(trials, study)
        asked_for = given.get("trial", "")
        chosen = next((one for one in trials if one.number == texts.whole(asked_for, 0)), None)
        if asked_for and chosen is None:
            problems.append(f"There is no trial {texts.clean(asked_for, 40)} that can be shown.")
        chosen = chosen or best or next(iter(trials), None)
        return context.site.page(
            request,
            access,
            "tuning.html",
            row=row,
            study=study,
            trials=trials,
            states=dict(zip(numbers, states, strict=True)),
            problems=[texts.clean(one, 300) for one in problems],
            best=best,
            chosen=chosen,
            rungs=rung_rows(trials, states, study),
            picture=coordinates(trials, study, best),
            size=(WIDTH, HEIGHT),
            importance=importance(trials, study),
            few=FEW,
            listed=sorted(trials, key=lambda trial: _rank(trial, study))[:_MOST_LISTED],
            names=list(dict.fromkeys(name for one in trials for name in one.parameters)),
            asked=_asked(directory),
            export=None if chosen is None else _export_of(context, id, chosen),
            models=_models(context),
            registry=context.sources.registry,
            short=_short,
            now=time.time(),
            texts=texts,
        )

    def ask(request: Request, form: Mapping[str, str]) -> str:
        id, number = form.get("id", ""), texts.whole(form.get("trial"), 0)
        Requests(_study_of(context.sources.find(id))).ask(form.get("action", ""), number)
        return f"{link(request, 'tuning', id=id, trial=number)}#trial"

    def register(request: Request, form: Mapping[str, str]) -> str:
        id, number, model = form.get("id", ""), texts.whole(form.get("trial"), 0), form.get("model", "").strip()
        export = _export_of(context, id, _study_of(context.sources.find(id)).trial(number))
        if export is None:
            raise RequestError(409, f"Trial {number} has no export; only a trial that ran to its end has one.")
        version = _register(context, model, export, f"trial {number} of {id.partition(':')[2]}")
        return link(request, "models", model=model, version=version)

    return [
        Route("/page/tuning", context.showing(show)),
        Route("/page/tuning/ask", context.changing(ask), methods=["POST"]),
        Route("/page/tuning/version", context.changing(register), methods=["POST"]),
    ]


def _study_of(found: Found) -> StudyDirectory:
    if found.job is None or found.spec is None or found.spec.study is None or not found.id.startswith("job:"):
        raise RequestError(404, f"{texts.clean(found.name, 200)} is no study, so that it has no trials.")
    return StudyDirectory(found.job)


def _rank(trial: Trial, study: Study) -> Any:
    """Return the key by which the best trials come first, and those without a value last."""
    value = trial.value
    return value is None, rank(0.0 if value is None else value, study), trial.number


def _short(text: str) -> str:
    """Return a value with the digits that a table has room for."""
    with contextlib.suppress(ValueError):
        return texts.number(float(text)) if len(text) > 8 else text
    return text


def _asked(directory: StudyDirectory) -> list[Any]:
    with contextlib.suppress(UserError, OSError):
        return Requests(directory).all(_MOST_ASKED)[::-1]
    return []


def _export_of(context: Context, id: str, trial: Trial) -> str | None:
    """Return the newest export of a trial. The path on record may be one in the folder of the study."""
    with contextlib.suppress(RequestError, OSError, ValueError):
        folder = context.sources.find(f"trial:{id.partition(':')[2]}/{trial.number}").folder
        return newest_export(folder)
    return None


def _models(context: Context) -> list[str]:
    with contextlib.suppress(UserError):
        return Registry(context.sources.registry).models() if context.sources.registry else []
    return []


def _register(context: Context, model: str, export: str, description: str) -> int:
    """Make an export the next version of a model, which need not exist; return the number of the version."""
    if context.sources.registry is None:
        raise RequestError(409, "The console knows no registry; start it with --registry.")
    registry = Registry(context.sources.registry)
    is_new = model not in registry.models()
    if is_new:
        registry.create_model(model)
    numbers = registry.versions(model)
    for number in numbers:
        with contextlib.suppress(UserError):
            if real_path(registry.read_version(model, number).origin) == real_path(export):
                raise RequestError(409, f"Version {number} of {model} was made from this export already.")
    try:
        version = max(numbers, default=0) + 1
        registry.create_version(model, version, export, description=description)
    except BaseException:
        if is_new:
            with contextlib.suppress(UserError):
                registry.delete_model(model)
        raise
    return version
