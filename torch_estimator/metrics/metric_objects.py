"""Support for metric objects such as those of torchmetrics: they are updated per batch and computed at the end.

This module never imports torchmetrics. A user who passes objects of torchmetrics has imported it.
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
# Limits of `metrics_outside`: how many references in a row it follows, and how many items of a collection.
# Objects beyond these limits usually belong to libraries, and searching them takes long.
_DEPTH = 4
_MOST_ITEMS = 1000
# Names of torchmetrics' state reductions with which two states can be merged exactly.
_MERGEABLE = ("dim_zero_sum", "dim_zero_max", "dim_zero_min", "dim_zero_cat")


def is_metric(value: object) -> bool:
    """Return whether a value is a metric object: an instance with the methods `update`, `compute` and `reset`."""
    return not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in _METHODS)


def is_collection(value: object) -> bool:
    """Return whether a value is a MetricCollection of torchmetrics."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.MetricCollection)


def can_merge(metric: Any) -> bool:
    """Return whether metric objects like `metric`, each updated with one batch, can be merged exactly.

    This excludes states that torchmetrics merges wrongly: it merges a state with the reduction "mean" as if the other
    state were empty.
    """
    merge = getattr(type(metric), "merge_state", None)
    if merge is None:
        return False
    reductions = getattr(metric, "_reductions", None)
    if reductions is None or merge.__module__ != "torchmetrics.metric":
        return True
    known = all(getattr(reduction, "__name__", "") in _MERGEABLE for reduction in reductions.values())
    return known and metric.full_state_update is False and not metric.dist_sync_on_step


def merge(metric: Any, other: Any) -> None:
    """Merge the state of another metric object into `metric`."""
    metric.merge_state(other)
    if hasattr(metric, "_computed"):
        # Drop a cached value, which torchmetrics would otherwise return.
        metric._computed = None


def metrics_outside(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return (name, object) for the metric objects that a function refers to, and thus did not create itself.

    The search covers the function's closure, globals, bound arguments and bound object, and follows the functions and
    objects among them.
    """
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    level: list[tuple[str, Any]] = [("", function)]
    for _ in range(_DEPTH):
        level = [(name, value) for name, value in level if id(value) not in seen]
        seen.update(id(value) for _, value in level)
        found += [(name, value) for name, value in level if is_metric(value) or is_collection(value)]
        level = [item for _, value in level for item in _references(value)]
    return found


def updates(metric: Any) -> int:
    """Return how often a metric object was updated since its creation or reset; 0 if the object does not count."""
    if is_collection(metric):
        return sum(updates(member) for member in metric.values(copy_state=False))
    count = getattr(metric, "update_count", 0)
    return count if isinstance(count, int) else 0


def _references(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values, each with a name, that a function, collection or object refers to."""
    if isinstance(value, functools.partial):
        yield "", value.func
        yield from ((str(position), argument) for position, argument in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, MethodType):
        yield "", value.__func__
        yield from getattr(value.__self__, "__dict__", {}).items()
    elif isinstance(value, FunctionType):
        # `getclosurevars` raises ValueError if a variable of the closure has no value yet.
        with contextlib.suppress(ValueError):
            used = inspect.getclosurevars(value)
            yield from used.nonlocals.items()
            yield from used.globals.items()
    elif isinstance(value, dict):
        yield from ((str(name), item) for name, item in islice(value.items(), _MOST_ITEMS))
    elif isinstance(value, (list, tuple)):
        yield from ((str(position), item) for position, item in enumerate(value[:_MOST_ITEMS]))
    elif not isinstance(value, type | ModuleType):
        yield from getattr(value, "__dict__", {}).items()
