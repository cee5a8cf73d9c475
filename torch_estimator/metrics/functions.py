"""Metrics given as functions, over a whole evaluation and exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError, PairsError
from torch_estimator.heads.pairs import PairCheck
from torch_estimator.metrics.collected import WHOLE, Collected, Reading
from torch_estimator.metrics.metric_objects import (
    can_merge,
    is_collection,
    is_metric,
    merge,
    metrics_outside,
    updates,
)

RESERVED = ("loss", "global_step")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricFunction:
    """A function from a batch, or from a whole evaluation, to metrics by name.

    Attributes:
        function: Called by keyword.
        arguments: What it takes of ``labels``, ``predictions`` and ``features``.
        bound: What it takes beside these.
        user: The user's own function, where ``function`` is one around it.
        names: Of the metrics it gave last.
    """

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    bound: Mapping[str, Any] = field(default_factory=dict)
    user: Callable[..., Any] | None = None
    names: list[str] = field(default_factory=list)

    @property
    def own(self) -> Callable[..., Any]:
        """The user's function."""
        return self.user or self.function

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Its metrics by name: numbers or metric objects.

        Raises:
            InvalidTypeError, InvalidValueError: It gives something else.
        """
        result = self.function(**{name: arguments[name] for name in self.arguments}, **self.bound)
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
    """The values of metric functions over the batches of one evaluation.

    A function that returns metric objects on the first batch, which it made and updated, is called for every batch, and
    their states are merged. Any other is called once, at the end, with all that it read of the first batch put
    together from all batches; until then that is kept in host memory, once for all functions. So is what objects
    that cannot be merged are made of.

    A function that would compare each label with each prediction, because one has the shape ``[N]`` and the other
    ``[N, 1]``, gets labels of the shape that the loss got; where that is no better, it is an error.

    Args:
        functions: In the order of their metrics; later ones replace equal names.

    Attributes:
        label_dims: How many dimensions the labels have that the loss got; None where nobody knows.
    """

    def __init__(self, functions: Iterable[MetricFunction]) -> None:
        self._functions = tuple(functions)
        self._checks = {function: PairCheck(f"The metric function {function}") for function in self._functions}
        self.label_dims: int | None = None
        self._merged: dict[MetricFunction, dict[str, Any]] = {}
        self._collected: Collected | None = None

    @property
    def arguments(self) -> set[str]:
        """What the functions take of ``labels``, ``predictions`` and ``features``."""
        return {name for function in self._functions for name in function.arguments}

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Takes in a batch: `arguments` by name, tensors on the host.

        Raises:
            InvalidTypeError, InvalidValueError: A function gives no metrics, or uses a metric object that it did not
                make, which would go on from the last call's batch.
        """
        if self._collected is None:
            self._collected = self._begin(arguments)
        else:
            for function, merged in self._merged.items():
                _merge(function, merged, self._called(function, arguments))
        self._collected.add(arguments)

    def compute(self) -> dict[str, float]:
        """All metrics; without batches those that the functions gave in an earlier evaluation, as zeros."""
        if self._collected is None:
            return {name: 0.0 for function in self._functions for name in function.names}
        results: dict[str, float] = {}
        with torch.inference_mode():
            whole = self._collected.whole()
            for function in self._functions:
                values = self._merged[function] if function in self._merged else self._called(function, whole)
                results.update({name: as_number(value, name) for name, value in values.items()})
        return results

    def _begin(self, arguments: Mapping[str, Any]) -> Collected:
        """Calls every function on the first batch, and sees what it returns and reads."""
        wanted: dict[str, dict[Any, None]] = {}
        for function in self._functions:
            noted = {name: Reading(value) if isinstance(value, Mapping) else value for name, value in arguments.items()}
            values = self._first_call(function, noted)
            if all(is_metric(value) and can_merge(value) for value in values.values()):
                self._merged[function] = values
                continue
            for name in function.arguments:
                value = noted[name]
                wanted.setdefault(name, {}).update(value.read if isinstance(value, Reading) else {WHOLE: None})
        return Collected({name: tuple(keys) for name, keys in wanted.items()})

    def _first_call(self, function: MetricFunction, arguments: Mapping[str, Any]) -> dict[str, Any]:
        outside = metrics_outside(function.own)
        before = [updates(metric) for _, metric in outside]
        values = self._called(function, arguments)
        for (name, metric), count in zip(outside, before, strict=True):
            if updates(metric) != count or any(value is metric for value in values.values()):
                raise _made_outside(function, name or type(metric).__name__)
        return values

    def _called(self, function: MetricFunction, arguments: Mapping[str, Any]) -> dict[str, Any]:
        check, own = self._checks[function], _unnoted(arguments)
        try:
            return check(own, lambda: function(arguments))
        except PairsError:
            labels = with_dims(own.get("labels"), self.label_dims)
            if labels is own.get("labels"):
                raise
        return check({**own, "labels": labels}, lambda: function({**arguments, "labels": labels}))


def with_dims(labels: Any, dims: int | None) -> Any:
    """Return labels with as many dimensions as given, where that only takes or adds a last one of size 1."""
    if not isinstance(labels, Tensor) or dims is None:
        return labels
    if labels.dim() == dims + 1 and labels.shape[-1] == 1:
        return labels.squeeze(-1)
    return labels.unsqueeze(-1) if labels.dim() + 1 == dims else labels


def _unnoted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without noting that anything of them is read."""
    return {name: one.values_there if isinstance(one, Reading) else one for name, one in arguments.items()}


def as_number(value: Any, name: str) -> float:
    """The value of a metric as a float.

    Raises:
        InvalidTypeError: It is not one number.
    """
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
    if list(merged) != list(values):
        raise InvalidValueError(
            f"The metric function {function} returned {list(merged)} for the first batch, but {list(values)} for a "
            "later one; let it return the same metrics for every batch."
        )
    for name, metric in merged.items():
        if values[name] is metric:
            raise _made_outside(function, name)
        if not is_metric(values[name]):
            raise InvalidTypeError(
                f"The metric function {function} returned a metric object {name!r} for the first batch, but "
                f"{values[name]!r} for a later one; let it return the same kind for every batch."
            )
        merge(metric, values[name])


def _made_outside(function: MetricFunction, name: str) -> InvalidValueError:
    return InvalidValueError(
        f"The metric function {function} uses the metric object {name!r}, which was made outside of it and would add "
        "one call to the next; make it inside of the function."
    )
