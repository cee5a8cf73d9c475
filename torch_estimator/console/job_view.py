"""One job or run: what its roles did over time, its curves on the same axis, its log, and forms for a job."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torch_estimator import files
from torch_estimator.activity.timeline import Run
from torch_estimator.checkpoint.index import checkpoint_step, read_index
from torch_estimator.console import texts
from torch_estimator.console.curves import (
    MOST_CHARTS,
    MOST_RUNS,
    Curve,
    between,
    charts_of,
    label_of,
    reduced,
    set_of,
    wait_until,
)
from torch_estimator.console.lanes import STATES, Lane, Segment, drawn, lanes_of, pauses_of, spent_by, time_sentence
from torch_estimator.console.log_window import LogWindow
from torch_estimator.console.rows import Row
from torch_estimator.console.sources import Found, is_evaluation, main_folder
from torch_estimator.console.studies import states_of
from torch_estimator.errors import UserError
from torch_estimator.jobs.advice import advise
from torch_estimator.jobs.directory import JobDirectory, JobSpec
from torch_estimator.jobs.kinds import KINDS
from torch_estimator.jobs.submission import cancel, resubmit
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.requests import Requests
from torch_estimator.web.access import Access
from torch_estimator.web.errors import RequestError
from torch_estimator.web.site import link

if TYPE_CHECKING:
    from torch_estimator.console.app import Context

_MOST_SERIES = 60
_MOST_POINTS = 2000
_MOST_MARKS = 400
_MOST_EVENTS = 200
_MOST_AHEAD_SECS = 1e9
# A mark that is nearer to the last one than this part of the axis would cover it.
_LEAST_APART = 1 / 400


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on the axis: a ``checkpoint``, an ``evaluation``, an ``export`` or a ``restart``."""

    time: float
    kind: str
    note: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that a page shows, in seconds since 1970, within all the time of the job."""

    low: float
    high: float
    first: float
    last: float

    @property
    def is_part(self) -> bool:
        """Whether only a part is shown."""
        return self.low > self.first or self.high < self.last

    def at(self, moment: float) -> str:
        """Return where a moment is, as SVG wants it."""
        return f"{100 * (moment - self.low) / (self.high - self.low):.3f}%"

    def width(self, segment: Segment) -> str:
        """Return the width of a segment, which is wide enough to be seen."""
        return f"{max(0.1, 100 * (segment.end - segment.start) / (self.high - self.low)):.3f}%"

    def ticks(self) -> list[tuple[str, str]]:
        """Return places and times of day for about six ticks."""
        steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000)
        step = next((one for one in steps if one * 7 > self.high - self.low), steps[-1])
        offset = time.localtime(self.low).tm_gmtoff
        first = math.ceil((self.low + offset) / step) * step - offset
        form = "%b %d" if step >= 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
        count = min(12, int((self.high - first) // step) + 1)
        found = [first + place * step for place in range(count)]
        # The last label would be cut.
        return [(self.at(one), time.strftime(form, time.localtime(one))) for one in found if one < self.high - step / 8]


def routes(context: Context) -> list[Route]:
    """Return the routes of a job's page."""

    def show(request: Request, access: Access) -> Response:
        given = request.query_params
        found = context.sources.find(given.get("id", ""))
        log, at = _log(request, found), texts.real(given.get("at"))
        window = log.last() if at is None else log.around(at)
        after = [place for place, one in enumerate(window.lines) if at is not None and one.time >= at - 0.01]
        now = _now(context, request, found)
        charts = charts_of(now["curves"], given.get("tag", "")[:200])
        spec = found.spec
        return context.site.page(
            request,
            access,
            "job.html",
            **now,
            spec=spec,
            arguments={} if spec is None else texts.arguments_of(spec.arguments, spec.secret_arguments),
            charts=charts[:MOST_CHARTS],
            set_of_charts=set_of(now["curves"]),
            hidden_charts=max(0, len(charts) - MOST_CHARTS),
            tag=given.get("tag", "")[:200],
            log=log,
            roles=log.roles(),
            window=window,
            at=at,
            mark=next(iter(after), None),
            clean=texts.clean,
        )

    def show_now(request: Request, access: Access) -> Response:
        found = context.sources.find(request.query_params.get("id", ""))
        return context.site.page(request, access, "now.html", **_now(context, request, found))

    def points(request: Request, access: Access) -> Response:
        """Answer with points of curves: ``id=…&name=…&by=step|time&from=…&to=…&points=…``, ids and names may repeat."""
        given = request.query_params
        by = "step" if given.get("by") == "step" else "time"
        low, high = texts.real(given.get("from")), texts.real(given.get("to"))
        buckets = min(_MOST_POINTS, max(10, texts.whole(given.get("points"), 500)))
        series: list[dict[str, Any]] = []
        version, until, is_behind = 0, wait_until(), False
        for id in list(dict.fromkeys(given.getlist("id")))[:MOST_RUNS]:
            found = context.sources.find(id)
            changed, there = context.curves.of(found, until)
            version += changed
            is_behind = is_behind or context.curves.is_behind(found)
            names = [name for name in given.getlist("name") if name in there][: _MOST_SERIES - len(series)]
            for curve in (there[name] for name in names):
                x, y = reduced(*between(curve.points, by, low, high), buckets)
                # JSON has no infinities, and a chart no place for them; NaN becomes null.
                series.append({"id": id, "label": label_of(curve), "x": x, "y": np.where(np.isfinite(y), y, np.nan)})
        return _json({"series": series, "version": version, "is_behind": is_behind})

    def follow(request: Request, access: Access) -> Response:
        """Answer with the lines since a cursor, and with what changes when other parts of the page should."""
        found = context.sources.find(request.query_params.get("id", ""))
        window = _log(request, found).since(request.query_params.get("cursor", ""))
        lines = [[texts.clock(one.time)[11:], one.role, one.text, one.level] for one in window.lines]
        version, curves = context.curves.of(found)
        seen = _seen(version, _row(context, found))
        return _json(
            {"lines": lines, "cursor": window.cursor, "curves": version, "seen": seen, "set_of_charts": set_of(curves)}
        )

    def change(request: Request, form: Mapping[str, str]) -> str:
        id = form.get("id", "")
        found = context.sources.find(id)
        if found.job is None or found.spec is None or found.trial is not None:
            raise RequestError(404, f"{texts.clean(found.name, 200)} is no job, so that it is not ended from here.")
        _change(found.job, found.spec, form.get("action", ""))
        context.index.forget(id)
        return link(request, "job", id=id)

    return [
        Route("/page/job", context.showing(show)),
        Route("/page/job/change", context.changing(change), methods=["POST"]),
        Route("/page/now", context.showing(show_now)),
        Route("/page/points", context.showing(points)),
        Route("/page/follow", context.showing(follow)),
    ]


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def _change(job: JobDirectory, spec: JobSpec, action: str) -> None:
    """Cancel a job, or start it again."""
    if spec.settings.get("kind") not in KINDS:
        raise RequestError(409, f"Job {job.name} ran on a target that this version does not know.")
    if action == "cancel":
        cancel(job)
    elif action == "resume" and spec.study is not None and not spec.package:
        raise RequestError(409, f"The trials of {job.name} run a function; call tune again with the same directory.")
    elif action == "resume":
        resubmit(job, None)
    else:
        raise RequestError(400, "A job can be cancelled or resumed; load the page again.")


def _log(request: Request, found: Found) -> LogWindow:
    given = request.query_params
    directory = "" if found.job is None else found.job.logs
    role = given.get("role", "")[:100]
    if found.trial is not None:
        role = f"trial-{found.trial.number}"
    return LogWindow(directory, role, given.get("text", "")[:200])


def _row(context: Context, found: Found) -> Row:
    """Return the row of a job or a run; of a trial, the row of its study."""
    return context.index.row(found.id if found.trial is None or found.job is None else f"job:{found.job.name}")


def _seen(version: int, row: Row) -> str:
    """Return a text that changes with the curves and the state; a page that shows another one is loaded anew."""
    return f"{version} {row.state}"


def _now(context: Context, request: Request, found: Found) -> dict[str, Any]:
    """Return what changes while a job runs: its state, the lanes, and where the time went."""
    trial = found.trial
    row = _row(context, found)
    runs, events = context.curves.timelines(found)
    now = time.time()
    trial_state, paused = _of_trial(found, runs, now, is_over=row.is_over)
    lanes = lanes_of(runs, events, now=now, paused=paused)
    version, curves = context.curves.of(found)
    marks = _marks(found, curves)
    axis = _axis(request, found, lanes, marks, curves, now)
    restarts = sorted((one for lane in lanes for one in lane.restarts), key=lambda one: one.time)
    spent, processes = spent_by(runs)
    total = sum(spent.values())
    return {
        "found": found,
        "curves": curves,
        "seen": _seen(version, row),
        "row": row if trial is None else None,
        "trial": trial,
        "study": row,
        "trial_state": trial_state,
        "name": texts.clean(found.name, 200),
        "axis": axis,
        "lanes": [(lane, drawn(lane.segments, axis.low, axis.high)) for lane in lanes],
        "marks": _apart(marks, axis),
        "all_states": STATES,
        "states": {one.state for lane in lanes for one in lane.segments},
        "restarts": restarts,
        "restarts_sentence": restarts_sentence(restarts),
        "waits": _waits(lanes),
        "parts": [(part, secs / total) for part, secs in spent.items() if total and secs / total > 0.002],
        "time_sentence": time_sentence(spent, processes),
        "advice": texts.clean(advice(runs)),
        "events": [one for one in events if one.reason or one.kind not in ("started", "exited")][-_MOST_EVENTS:][::-1],
        "zoom": lambda low, high: link(request, "job", id=found.id, **{"from": f"{low:.3f}", "to": f"{high:.3f}"}),
        "texts": texts,
        "now": now,
        "is_live": bool(row.state and not row.is_over),
    }


def _of_trial(found: Found, runs: Sequence[Run], now: float, *, is_over: bool) -> tuple[str, list[Segment]]:
    """Return the state of a trial, and when it was paused; nothing of what is none."""
    if found.trial is None or found.job is None:
        return "", []
    trial, directory, asked = found.trial, StudyDirectory(found.job), []
    with contextlib.suppress(OSError, UserError):
        requests = [request for request, _ in Requests(directory).all()]
        asked = [one.time for one in requests if one.trial == trial.number and one.action == "PAUSE"]
    # In a study that is over, nothing goes on.
    until = now if trial.state == "PAUSED" and not is_over else None
    [state] = states_of(directory, [trial], is_over=is_over)
    return state, pauses_of(runs, [step for step, _ in trial.results], asked, until)


def advice(runs: Sequence[Run]) -> str:
    """Return in a sentence what bounds a training, and what would help; empty if that is not known."""
    # What other programs left in the records must not cost the page.
    with contextlib.suppress(UserError, ValueError, ArithmeticError):
        return advise(runs).sentence
    return ""


def _waits(lanes: Sequence[Lane]) -> list[tuple[str, Segment]]:
    """Return the ten longest waits."""
    waits = [(lane.role, one) for lane in lanes for one in lane.segments if one.state == "waiting"]
    return sorted(waits, key=lambda one: one[1].start - one[1].end)[:10]


def _axis(
    request: Request, found: Found, lanes: Sequence[Lane], marks: Sequence[Mark], curves: dict[str, Curve], now: float
) -> Axis:
    spans = [(lane.segments[0].start, lane.segments[-1].end) for lane in lanes if lane.segments]
    if not spans:
        times = [part.times for one in curves.values() for part in one.parts]
        spans = [(one.min(), one.max()) for one in times if len(one)]
    if not spans:
        spans = [(one.time, one.time) for one in marks] or [(now - 1, now)]
    first, last = float(min(low for low, _ in spans)), float(max(high for _, high in spans))
    # A damaged file may have a time that no clock shows, or NaN.
    first, last = (max(0.0, min(now + _MOST_AHEAD_SECS, one)) for one in (first, last))
    last = max(last, first + 1)
    low, high = (texts.real(request.query_params.get(name)) for name in ("from", "to"))
    low, high = max(first, first if low is None else low), min(last, last if high is None else high)
    return Axis(low, high, first, last) if high - low > 1e-3 else Axis(first, last, first, last)


def _marks(found: Found, curves: dict[str, Curve]) -> list[Mark]:
    """Return the checkpoints that are kept, the evaluations and the exports of a run."""
    marks: list[Mark] = []
    if not found.folder:
        return marks
    folder = main_folder(found)
    with contextlib.suppress(UserError):
        if (index := read_index(folder)) is not None:
            for one in index.saved:
                marks.append(Mark(one.timestamp, "checkpoint", f"checkpoint of step {checkpoint_step(one.name)}"))
    evaluated: dict[tuple[str, int], float] = {}
    for curve in curves.values():
        if is_evaluation(curve.place.rpartition("/")[2]):
            steps, _, moments = curve.points
            for step, moment in zip(steps[-_MOST_MARKS:], moments[-_MOST_MARKS:], strict=True):
                evaluated[curve.place, int(step)] = float(moment)
    for (place, at), moment in evaluated.items():
        note = " ".join(filter(None, ["evaluation", place.removeprefix("eval").removeprefix("_"), f"of step {at:,}"]))
        marks.append(Mark(moment, "evaluation", texts.clean(note, 200)))
    with contextlib.suppress(OSError):
        for exporter in files.listdir(files.join(folder, "export")):
            with contextlib.suppress(NotADirectoryError):
                for name in files.listdir(files.join(folder, "export", exporter)):
                    if name.isdecimal() and len(name) < 12:
                        marks.append(Mark(float(name), "export", f"export {texts.clean(exporter, 100)}/{name}"))
    return sorted(marks, key=lambda one: one.time)


def _apart(marks: Iterable[Mark], axis: Axis) -> list[Mark]:
    """Return the marks on the axis, without those that would cover another one of their kind."""
    last: dict[str, float] = {}
    shown = []
    for mark in marks:
        is_apart = mark.time - last.get(mark.kind, -math.inf) > (axis.high - axis.low) * _LEAST_APART
        if is_apart and axis.low <= mark.time <= axis.high:
            shown.append(mark)
            last[mark.kind] = mark.time
    return shown


def restarts_sentence(restarts: Sequence[Any]) -> str:
    """Return how often roles were restarted, and what that cost."""
    if not restarts:
        return ""
    secs = sum(one.secs or 0 for one in restarts)
    steps = sum(one.steps or 0 for one in restarts)
    times = "once" if len(restarts) == 1 else f"{len(restarts)} times"
    again = {0: "no step was", 1: "1 step was"}.get(steps, f"{steps:,} steps were") + " done again"
    if any(one.steps is None for one in restarts):
        again = f"at least {again}" if steps else "how many steps were done again is not known"
    return f"Restarted {times}: {texts.span(secs)} passed until the roles worked again; {again}."
