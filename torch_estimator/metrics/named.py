"""Metrics of an `EstimatorSpec`: a function or a metric object for each name."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.metrics.batch_arguments import METRIC_ARGUMENTS, batch_arguments
from torch_estimator.metrics.broadcast_check import BroadcastCheck
from torch_estimator.metrics.collected import on_host
from torch_estimator.metrics.functions import MetricFunction, MetricFunctions, as_number, with_dims
from torch_estimator.metrics.metric_objects import is_metric


class NamedMetrics:
    """Metrics of an `EstimatorSpec`, computed exactly over all batches of one evaluation.

    Args:
        metrics: Name -> one of the following.

            - A function ``metric(labels, predictions)``, which may also name ``weights`` and ``features``.
              `MetricFunctions` says when it is called.
            - A metric object, such as one of torchmetrics. A copy of it is updated batch by batch with the model's only
              prediction and the labels. The labels keep the shape of the input if it is that of the prediction;
              otherwise they have the shape that the loss got.
            - A class, or a function without arguments, that returns a metric object.
        weighted: Whether the model has a weight column, whose weights functions may name.

    >>> metrics = NamedMetrics({"error": lambda labels, predictions: (labels - predictions["output"]).abs().mean()})
    >>> metrics.update(torch.tensor([1.0, 2.0]), {"output": torch.tensor([1.0, 4.0])})
    >>> metrics.compute()
    {'error': 1.0}
    """

    def __init__(self, metrics: Mapping[str, Any], *, weighted: bool = False) -> None:
        self._names = tuple(metrics)
        self._objects = {name: _fresh(value, name) for name, value in metrics.items() if _creates_object(value, name)}
        self._functions = MetricFunctions(
            _as_metric_function(name, value, weighted=weighted)
            for name, value in metrics.items()
            if name not in self._objects
        )
        self._checks = {name: BroadcastCheck(f"The metric {name!r}") for name in self._objects}
        self._empty = True

    def update(
        self,
        labels: Any,
        predictions: Mapping[str, Tensor],
        label_dims: int | None = None,
        further: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a batch to all metrics: the labels of the input, and the predictions by name.

        `label_dims` is the number of dimensions of the labels that the loss got, or None if it is unknown; `further`
        holds weights and features of the batch, by the name of the argument.
        """
        if not self._names:
            return
        self._empty = False
        labels, predictions = on_host(labels), on_host(predictions)
        for name, metric in self._objects.items():
            prediction = _only(predictions, name)
            fits = isinstance(labels, Tensor) and labels.shape == prediction.shape
            given = labels if fits else with_dims(labels, label_dims)
            self._checks[name]({"predictions": prediction, "labels": given}, partial(metric.update, prediction, given))
        self._functions.label_dims = label_dims
        if len(self._objects) < len(self._names):
            wanted = self._functions.arguments
            named = {name: on_host(value) for name, value in (further or {}).items() if name in wanted}
            self._functions.update({"labels": labels, "predictions": predictions, **named})

    def compute(self) -> dict[str, float]:
        """Return all metrics in the order in which they were given, or zeros if there were no batches."""
        if self._empty:
            return dict.fromkeys(self._names, 0.0)
        values = self._functions.compute()
        with torch.inference_mode():
            values.update({name: as_number(metric, name) for name, metric in self._objects.items()})
        return {name: values[name] for name in self._names}


def metric_arguments(metrics: Mapping[str, Any], *, weighted: bool) -> set[str]:
    """Return the names of the arguments that some of the functions take besides labels and predictions."""
    return {
        argument
        for name, value in metrics.items()
        if not _creates_object(value, name)
        for argument in _further(name, value, weighted=weighted)
    }


def _further(name: str, function: Callable[..., Any], *, weighted: bool) -> tuple[str, ...]:
    return batch_arguments(f"The metric {name!r}", function, METRIC_ARGUMENTS, weighted=weighted)


def _as_metric_function(name: str, function: Callable[..., Any], *, weighted: bool) -> MetricFunction:
    return MetricFunction(
        function=lambda labels, predictions, **further: {name: function(labels, predictions, **further)},
        arguments=("labels", "predictions", *_further(name, function, weighted=weighted)),
        user=function,
    )


def _creates_object(value: Any, name: str) -> bool:
    """Return whether a value is a metric object or creates one, rather than a function of labels and predictions."""
    made_by = value.func if isinstance(value, functools.partial) else value
    if is_metric(value) or isinstance(made_by, type):
        return True
    if not callable(value):
        raise InvalidTypeError(
            f"The metric {name!r} must be a function of labels and predictions, or a torchmetrics object, but is "
            f"{value!r}."
        )
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return False
    # A callable without positional parameters creates a metric object.
    # A metric function has positional parameters for labels and predictions, even if both have defaults.
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    return not positional


def _fresh(value: Any, name: str) -> Any:
    """Return a new metric object without updates: a copy of `value`, or the object that calling `value` creates."""
    made = copy.deepcopy(value) if is_metric(value) else value()
    if not is_metric(made):
        raise InvalidTypeError(
            f"The metric {name!r} is a function of no arguments, so that it must make a metric object, but it made "
            f"{made!r}."
        )
    made.reset()
    return made


def _only(predictions: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the only prediction; raise InvalidValueError if there are several."""
    if len(predictions) != 1:
        raise InvalidValueError(
            f"The metric {name!r} is an object that takes one prediction, but the model gives "
            f"{', '.join(map(str, predictions))}; give a function of labels and predictions that returns an updated "
            "object."
        )
    return next(iter(predictions.values()))
