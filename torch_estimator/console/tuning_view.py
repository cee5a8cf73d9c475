"""A study: its trials by rung, what their parameters have to do with their metric, and forms for its controller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from torch_estimator import files
from torch_estimator.console import texts
from torch_estimator.console.provenance import real_path
from torch_estimator.console.sources import Found
from torch_estimator.console.studies import read_trials
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

_PART = 200
_MOST_ASKED = 5


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a page shows of a study: its trials that can be read, their states, and what is wrong with others."""

    directory: StudyDirectory
    study: Study
    trials: list[Trial]
    states: dict[int, str]
    problems: list[str]

    @classmethod
    def read(cls, found: Found, *, is_over: bool) -> _Shown:
        directory = _study_of(found)
        trials, problems = read_trials(directory)
        states: list[str] = [trial.state for trial in trials]
        # Whether a process of a trial is there, a reader without the right to lock its file cannot know.
        with contextlib.suppress(OSError):
            states = directory.states(trials, is_over=is_over)
        by_number = dict(zip((trial.number for trial in trials), states, strict=True))
        return cls(directory, directory.study(), trials, by_number, [texts.clean(one, 300) for one in problems])

    def trial(self, number: int) -> Trial | None:
        return next((one for one in self.trials if one.number == number), None)


def routes(context: Context) -> list[Route]:
    """Return the routes of a study's page."""

    def show(request: Request, access: Access) -> Response:
        given = request.query_params
        id = given.get("id", "")
        row, found = context.index.row(id), context.sources.find(id)
        with refused_as_conflict():
            shown = _Shown.read(found, is_over=row.is_over)
        best = best_trial(shown.trials, shown.study)
        asked_for = given.get("trial", "")
        chosen = shown.trial(texts.whole(asked_for, 0))
        if asked_for and chosen is None:
            shown.problems.append(f"There is no trial {texts.clean(asked_for, 40)} that can be shown.")
        chosen = chosen or best or next(iter(shown.trials), None)
        by, part = given.get("by", "value"), texts.whole(given.get("part"), 1)
        ordered = sorted(shown.trials, key=_order(by, shown.study))
        parts = max(1, -(-len(ordered) // _PART))
        part = min(max(part, 1), parts)
        names = list(dict.fromkeys(name for one in shown.trials for name in one.parameters))
        return context.site.page(
            request,
            access,
            "tuning.html",
            row=row,
            study=shown.study,
            trials=shown.trials,
            states=shown.states,
            problems=shown.problems,
            best=best,
            chosen=chosen,
            rungs=rung_rows(shown.trials, [shown.states[one.number] for one in shown.trials], shown.study),
            picture=coordinates(shown.trials, shown.study, best),
            size=(WIDTH, HEIGHT),
            importance=importance(shown.trials, shown.study),
            few=FEW,
            sampler=_sampler(shown),
            listed=ordered[(part - 1) * _PART : part * _PART],
            names=names,
            by=by,
            part=part,
            parts=parts,
            asked=_asked(shown.directory),
            export=None if chosen is None else _export_of(context, id, chosen),
            models=_models(context),
            registry=context.sources.registry,
            short=_short,
            now=time.time(),
            texts=texts,
        )

    async def ask(request: Request) -> Response:
        form = await context.site.rules.form(request)
        id, number = form.get("id", ""), texts.whole(form.get("trial"), 0)

        def write() -> None:
            with refused_as_conflict():
                Requests(_study_of(context.sources.find(id))).ask(form.get("action", ""), number)

        await run_in_threadpool(write)
        return RedirectResponse(f"{link(request, 'tuning', id=id, trial=number)}#trial", 303)

    async def register(request: Request) -> Response:
        form = await context.site.rules.form(request)
        id, number, model = form.get("id", ""), texts.whole(form.get("trial"), 0), form.get("model", "").strip()

        def create() -> int:
            with refused_as_conflict():
                trial = _study_of(context.sources.find(id)).trial(number)
                export = _export_of(context, id, trial)
                if export is None:
                    raise RequestError(409, f"Trial {number} has no export; only a trial that ran to its end has one.")
                return _register(context, model, export, f"trial {number} of {id.partition(':')[2]}")

        version = await run_in_threadpool(create)
        return RedirectResponse(link(request, "models", model=model, version=version), 303)

    site = context.site
    return [
        Route("/page/tuning", context.showing(show)),
        Route("/page/tuning/ask", site.answering(ask), methods=["POST"]),
        Route("/page/tuning/version", site.answering(register), methods=["POST"]),
    ]


@contextlib.contextmanager
def refused_as_conflict() -> Any:
    """Answer what cannot be done as things are now, such as for a job that has ended or was removed meanwhile."""
    try:
        yield
    except UserError as error:
        raise RequestError(409, f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    except (OSError, ValueError) as error:
        place = getattr(error, "filename", None) or "A file"
        raise RequestError(409, f"{place} cannot be used: {files.reason(error)}.") from error


def _study_of(found: Found) -> StudyDirectory:
    if found.job is None or found.spec is None or found.spec.study is None or not found.id.startswith("job:"):
        raise RequestError(404, f"{texts.clean(found.name, 200)} is no study, so that it has no trials.")
    return StudyDirectory(found.job)


def _order(by: str, study: Study) -> Callable[[Trial], Any]:
    """Return the key that sorts trials: by their number, rung, metric, or a parameter."""

    def by_value(trial: Trial) -> Any:
        value = trial.value
        return value is None, rank(0.0 if value is None else value, study), trial.number

    def by_parameter(trial: Trial) -> Any:
        text = trial.parameters.get(by.removeprefix("--"), "")
        try:
            return text == "", False, float(text), text
        except ValueError:
            return text == "", True, 0.0, text

    keys: dict[str, Callable[[Trial], Any]] = {
        "number": lambda trial: trial.number,
        "rung": lambda trial: (-trial.rung, by_value(trial)),
        "value": by_value,
    }
    return by_parameter if by.startswith("--") else keys.get(by, by_value)


def _short(text: str) -> str:
    """Return a value with the digits that a table has room for."""
    with contextlib.suppress(ValueError):
        return texts.number(float(text)) if len(text) > 8 else text
    return text


def _sampler(shown: _Shown) -> str:
    """Return who proposes the values of the next trial, in a sentence."""
    study, count = shown.study, len(shown.trials)
    if study.algorithm == "GRID":
        return f"The grid is tried point by point: {count} of {study.space.size}."
    learned = sum(one.value is not None for one in shown.trials)
    if study.algorithm is None and files.exists(files.join(shown.directory.job.url, "optuna.journal")):
        return f"Optuna proposes values, and has learned from {learned} trial{'s' * (learned != 1)}."
    return f"Values are random, with the seed {study.seed}."


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
