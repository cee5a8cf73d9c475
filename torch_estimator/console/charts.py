"""Charts: which curves of one or several runs are drawn together, and their points for a browser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from torch_estimator.console.curves import Curve, between, reduced
from torch_estimator.console.rows import preferred
from torch_estimator.console.texts import clean, number, real

if TYPE_CHECKING:
    from torch_estimator.console.app import Context

MOST_RUNS = 12
"""Most runs that are compared."""

_MOST_SERIES = 60
_MOST_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves of one tag, of the training and of evaluations: their names, and their last values as text."""

    title: str
    names: tuple[str, ...]
    last: str


def charts_of(curves: Mapping[str, Curve], text: str = "") -> list[Chart]:
    """Return the charts of a run, those that say most first; with a text, those whose title has it."""
    by_tag: dict[str, list[str]] = {}
    for name, curve in curves.items():
        by_tag.setdefault(curve.tag, []).append(name)
    first = preferred(by_tag)
    best = None if first is None else first[0]
    order = sorted(by_tag, key=lambda tag: (tag != "loss", tag != best, tag == "global_step/sec", tag))
    charts = []
    for tag in order:
        names = sorted(by_tag[tag], key=lambda name: (bool(curves[name].place), name))
        shown = [curves[name] for name in names[:4]]
        last = ", ".join(f"{label_of(one)} {number(float(one.points.values[-1]))}" for one in shown)
        title = clean(tag, 120)
        if text.lower() in title.lower():
            charts.append(Chart(title, tuple(names), last))
    return charts


def label_of(curve: Curve) -> str:
    """Return what a curve is called in its chart."""
    usual = {"": "training", "train": "training", "eval": "evaluation"}
    return usual.get(curve.place) or clean(curve.place.removeprefix("eval_"), 60)


def points_of(context: Context, request: Request) -> Response:
    """Answer with the points of a chart: ``id=…&name=…&by=step|time&from=…&to=…&points=…``; ids, names may repeat."""
    given = request.query_params
    by = "step" if given.get("by") == "step" else "time"
    low, high = real(given.get("from")), real(given.get("to"))
    buckets = min(_MOST_POINTS, max(10, int(given["points"]) if given.get("points", "").isdecimal() else 500))
    series: list[dict[str, Any]] = []
    version = 0
    for id in list(dict.fromkeys(given.getlist("id")))[:MOST_RUNS]:
        found = context.sources.find(id)
        changed, there = context.curves.of(found)
        version += changed
        for name in given.getlist("name"):
            if (curve := there.get(name)) is not None and len(series) < _MOST_SERIES:
                x, y = reduced(*between(curve.points, by, low, high), buckets)
                # JSON has no infinities, and a chart no place for them.
                series.append({"id": id, "label": label_of(curve), "x": x, "y": np.where(np.isfinite(y), y, np.nan)})
    # Floats that are no numbers become null.
    content = orjson.dumps({"series": series, "version": version}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type="application/json")
