"""Metric objects, such as torchmetrics': things that are updated batch by batch, and asked for their value at the end.

torchmetrics is never imported here: whoever gives its objects has done so.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

_METHODS = ("update", "compute", "reset")
# Further away are libraries' own functions.
_DEPTH = 4
_MOST_ITEMS = 1000
_ADDS_UP = ("dim_zero_sum", "dim_zero_max", "dim_zero_min", "dim_zero_cat")


def is_metric(value: object) -> bool:
    """Whether something is a metric object: one with `update`, `compute` and `reset`, and no class."""
    return not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in _METHODS)


def is_collection(value: object) -> bool:
    """Whether something is torchmetrics' MetricCollection."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.MetricCollection)


def can_merge(metric: Any) -> bool:
    """Whether two of a metric, updated with a batch each, can be made one that was updated with both.

    torchmetrics merges more kinds of states than it merges rightly: a mean is merged as if the other were empty.
    """
    merge = getattr(type(metric), "merge_state", None)
    if merge is None:
        return False
    reductions = getattr(metric, "_reductions", None)
    if reductions is None or merge.__module__ != "torchmetrics.metric":
        return True
    known = all(getattr(reduction, "__name__", "") in _ADDS_UP for reduction in reductions.values())
    return known and metric.full_state_update is False and not metric.dist_sync_on_step


def merge(metric: Any, other: Any) -> None:
    """Adds to a metric what another was updated with."""
    metric.merge_state(other)
    if hasattr(metric, "_computed"):
        # torchmetrics would return what the metric was before, if somebody has computed it already.
        metric._computed = None


def metrics_outside(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """The metric objects, each with a name, that a function uses and did not make.

    They are those of its closure, globals, bound arguments and object, and of the functions and objects among these.
    """
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    level: list[tuple[str, Any]] = [("", function)]
    for _ in range(_DEPTH):
        level = [(name, value) for name, value in level if id(value) not in seen]
        seen.update(id(value) for _, value in level)
        found += [(name, value) for name, value in level if is_metric(value) or is_collection(value)]
        level = [item for _, value in level for item in _reached(value)]
    return found


def updates(metric: Any) -> int:
    """How often a metric object was updated since it was made or reset, as far as it says."""
    if is_collection(metric):
        return sum(updates(member) for member in metric.values(copy_state=False))
    count = getattr(metric, "update_count", 0)
    return count if isinstance(count, int) else 0


def _reached(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield "", value.func
        yield from ((str(position), argument) for position, argument in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, MethodType):
        yield "", value.__func__
        yield from getattr(value.__self__, "__dict__", {}).items()
    elif isinstance(value, FunctionType):
        with contextlib.suppress(ValueError):  # a variable of the closure that has no value yet
            used = inspect.getclosurevars(value)
            yield from used.nonlocals.items()
            yield from used.globals.items()
    elif isinstance(value, dict):
        yield from ((str(name), item) for name, item in islice(value.items(), _MOST_ITEMS))
    elif isinstance(value, (list, tuple)):
        yield from ((str(position), item) for position, item in enumerate(value[:_MOST_ITEMS]))
    elif not isinstance(value, type | ModuleType):
        yield from getattr(value, "__dict__", {}).items()
