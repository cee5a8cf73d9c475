"""Metrics that users give as functions, evaluated exactly over all batches of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError, PairsError
from torch_estimator.metrics.broadcast_check import BroadcastCheck
from torch_estimator.metrics.collected import WHOLE, CollectedBatches, ReadRecorder
from torch_estimator.metrics.metric_objects import (
    can_merge,
    is_collection,
    is_metric,
    merge,
    metrics_outside,
    updates,
)

RESERVED = ("loss", "global_step")
"""Keys that the evaluation itself adds to the results, which no metric may have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricFunction:
    """A user's function that returns metrics by name, and the names of the arguments to call it with.

    Attributes:
        function: Function to call, by keyword.
        arguments: Names of the arguments it takes, out of ``labels``, ``predictions`` and ``features``.
        bound: Values of further arguments, by name.
        user: Function that the user gave, if `function` wraps it.
        names: Names of the metrics that the last call returned.

    >>> def bias(labels, predictions):
    ...     return {"bias": (predictions - labels).mean()}
    >>> metric = te.metrics.MetricFunction(function=bias, arguments=("labels", "predictions"))
    >>> metric({"labels": torch.tensor([1.0, 2.0]), "predictions": torch.tensor([2.0, 2.0])})
    {'bias': tensor(0.5000)}
    """

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    bound: Mapping[str, Any] = field(default_factory=dict)
    user: Callable[..., Any] | None = None
    names: list[str] = field(default_factory=list)

    @property
    def own(self) -> Callable[..., Any]:
        """The function that the user gave, without wrappers."""
        return self.user or self.function

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call the function with the arguments that it takes; return the metrics by name: numbers or metric objects."""
        try:
            result = self.function(**{name: arguments[name] for name in self.arguments}, **self.bound)
        except KeyError as error:
            keys = {name: list(value) for name, value in arguments.items() if isinstance(value, Mapping)}
            listed = "; ".join(
                f"{name} has {', '.join(map(repr, keys[name]))}" for name in self.arguments if name in keys
            )
            if listed:
                error.add_note(f"In the metric function {self}, {listed}.")
            raise
        if is_collection(result):
            result = dict(result.items())
        if not isinstance(result, Mapping):
            raise InvalidTypeError(
                f"The metric function {self} must return a dict of metrics by name, but returned {result!r}."
            )
        for name, value in result.items():
            if name in RESERVED:
                raise InvalidValueError(f"A metric must not be called {name!r}, which the evaluation adds itself.")
            if not is_metric(value):
                as_number(value, name)
        self.names[:] = result
        return dict(result)

    def __str__(self) -> str:
        return getattr(self.own, "__name__", None) or repr(self.own)


class MetricFunctions:
    """Metric functions, evaluated over all batches of one evaluation.

    A metric function is evaluated in one of two ways, depending on its first call:

    * If it returns metric objects that it created and updated, and that can be merged, it is called for every batch,
      and the objects are merged.
    * Otherwise it is called once, at the end, with all batches concatenated. The values that the function read on the
      first batch are collected from every batch, in host memory. Functions that read the same values share them.

    If a function would broadcast labels ``[N]`` against predictions ``[N, 1]``, it is called again with labels of the
    shape that the loss got. If it broadcasts these labels as well, the evaluation fails.

    Args:
        functions: Functions in the order of their metrics; later ones replace metrics of the same name.

    Attributes:
        label_dims: Number of dimensions of the labels that the loss got, or None if it is unknown.

    >>> def worst(labels, predictions):
    ...     return {"worst": (predictions["value"] - labels).abs().max()}
    >>> metrics = te.metrics.MetricFunctions(
    ...     [te.metrics.MetricFunction(function=worst, arguments=("labels", "predictions"))]
    ... )
    >>> for labels in (torch.tensor([1.0, 2.0]), torch.tensor([9.0, 4.0])):
    ...     metrics.update({"labels": labels, "predictions": {"value": torch.zeros(2)}})
    >>> metrics.compute()
    {'worst': 9.0}
    """

    def __init__(self, functions: Iterable[MetricFunction]) -> None:
        self._functions = tuple(functions)
        self._checks = {function: BroadcastCheck(f"The metric function {function}") for function in self._functions}
        self.label_dims: int | None = None
        self._merged: dict[MetricFunction, dict[str, Any]] = {}
        self._collected: CollectedBatches | None = None

    @property
    def arguments(self) -> set[str]:
        """Names of the arguments that the functions take, out of ``labels``, ``predictions`` and ``features``."""
        return {name for function in self._functions for name in function.arguments}

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Update metric objects that functions return; keep copies of the arrays that plain functions need at the end.

        Args:
            arguments: Arguments of the functions by name, with tensors on the CPU.

        Raises:
            InvalidTypeError: A function does not return metrics.
            InvalidValueError: A function returns other metrics than on the first batch, or uses a metric object that
                it did not create, which would add this batch to the previous ones.
        """
        if self._collected is None:
            self._collected = self._begin(arguments)
        else:
            for function, merged in self._merged.items():
                _merge(function, merged, self._called(function, arguments))
        self._collected.add(arguments)

    def compute(self) -> dict[str, float]:
        """Return all metrics. Without batches, return zeros for the metrics that an earlier evaluation returned."""
        if self._collected is None:
            return {name: 0.0 for function in self._functions for name in function.names}
        results: dict[str, float] = {}
        with torch.inference_mode():
            whole = self._collected.concatenated()
            for function in self._functions:
                values = self._merged[function] if function in self._merged else self._called(function, whole)
                results.update({name: as_number(value, name) for name, value in values.items()})
        return results

    def _begin(self, arguments: Mapping[str, Any]) -> CollectedBatches:
        """Call each function on the first batch to decide how to evaluate it; return a collector of values to keep."""
        wanted: dict[str, dict[Any, None]] = {}
        for function in self._functions:
            recorded = {
                name: ReadRecorder(value) if isinstance(value, Mapping) else value for name, value in arguments.items()
            }
            values = self._first_call(function, recorded)
            if all(is_metric(value) and can_merge(value) for value in values.values()):
                self._merged[function] = values
                continue
            for name in function.arguments:
                value = recorded[name]
                wanted.setdefault(name, {}).update(value.read if isinstance(value, ReadRecorder) else {WHOLE: None})
        return CollectedBatches({name: tuple(keys) for name, keys in wanted.items()})

    def _first_call(self, function: MetricFunction, arguments: Mapping[str, Any]) -> dict[str, Any]:
        outside = metrics_outside(function.own)
        before = [updates(metric) for _, metric in outside]
        values = self._called(function, arguments)
        for (name, metric), count in zip(outside, before, strict=True):
            if updates(metric) != count or any(value is metric for value in values.values()):
                raise _created_outside(function, name or type(metric).__name__)
        return values

    def _called(self, function: MetricFunction, arguments: Mapping[str, Any]) -> dict[str, Any]:
        check, plain = self._checks[function], _unrecorded(arguments)
        try:
            return check(plain, lambda: function(arguments))
        except PairsError:
            labels = with_dims(plain.get("labels"), self.label_dims)
            if labels is plain.get("labels"):
                raise
        return check({**plain, "labels": labels}, lambda: function({**arguments, "labels": labels}))


def with_dims(labels: Any, dims: int | None) -> Any:
    """Drop or add a last dimension of size 1 if the labels then have `dims` dimensions.

    Other labels are returned unchanged, and so are all labels if `dims` is None.

    >>> list(with_dims(torch.zeros(3, 1), 1).shape)
    [3]
    """
    if not isinstance(labels, Tensor) or dims is None:
        return labels
    if labels.dim() == dims + 1 and labels.shape[-1] == 1:
        return labels.squeeze(-1)
    return labels.unsqueeze(-1) if labels.dim() + 1 == dims else labels


def _unrecorded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with plain mappings in place of `ReadRecorder`, so that no read is recorded."""
    return {name: one.unrecorded if isinstance(one, ReadRecorder) else one for name, one in arguments.items()}


def as_number(value: Any, name: str) -> float:
    """Return the value of a metric (a number, a tensor or array with one element, or a metric object) as a float."""
    if is_metric(value):
        value = value.compute()
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        return float(value.item())
    if isinstance(value, Real):
        return float(value)
    shape = getattr(value, "shape", None)
    got = repr(value) if shape is None else f"a {type(value).__name__} of shape {list(shape)}"
    raise InvalidTypeError(f"The metric {name!r} must be one number, but is {got}; give every number a name.")


def _merge(function: MetricFunction, merged: dict[str, Any], values: dict[str, Any]) -> None:
    """Merge the metric objects of a later batch into the metric objects of the first batch."""
    if list(merged) != list(values):
        raise InvalidValueError(
            f"The metric function {function} returned {list(merged)} for the first batch, but {list(values)} for a "
            "later one; let it return the same metrics for every batch."
        )
    for name, metric in merged.items():
        if values[name] is metric:
            raise _created_outside(function, name)
        if not is_metric(values[name]):
            raise InvalidTypeError(
                f"The metric function {function} returned a metric object {name!r} for the first batch, but "
                f"{values[name]!r} for a later one; let it return the same kind for every batch."
            )
        merge(metric, values[name])


def _created_outside(function: MetricFunction, name: str) -> InvalidValueError:
    return InvalidValueError(
        f"The metric function {function} uses the metric object {name!r}, which was made outside of it and would add "
        "one call to the next; make it inside of the function."
    )
