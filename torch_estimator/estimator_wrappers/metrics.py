"""Further metrics for an Estimator."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.estimator_wrappers.checks import check_estimator
from torch_estimator.metrics import MetricFunction
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.specs import EstimatorSpec

_BATCH_ARGUMENTS = ("features", "labels", "predictions")
_ARGUMENTS = (*_BATCH_ARGUMENTS, "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Any]) -> Estimator:
    """Returns an Estimator that also gives the metrics of ``metric_fn`` when it evaluates.

    They are of the whole evaluation, exactly. What ``metric_fn`` returns for the first batch decides how:

    - numbers: it is called once more, at the end, with all rows. What it read of its arguments is kept in host memory
      until then (for one float per row, 4 bytes a row);
    - torchmetrics objects that it made and updated: it is called for every batch, and the objects are merged, without
      memory that grows with the rows (beyond what the objects keep). Objects that torchmetrics cannot merge rightly are
      made of all rows at the end, as numbers are.

    Args:
        estimator: What to extend; stays as it is.
        metric_fn: Takes by name any of ``features`` (the raw columns of the input: tensors, strings as object arrays),
            ``labels`` (as the head prepares them), ``predictions`` and ``config`` (the `RunConfig`), all on the host;
            returns a dict of numbers or torchmetrics objects. Metrics of the model's that have one of its names are
            replaced; ``loss`` and ``global_step`` cannot be.

    Raises:
        InvalidTypeError: ``estimator`` is no Estimator, or ``metric_fn`` no function.
        InvalidValueError: ``metric_fn`` takes another argument.

    >>> import torch
    >>> def my_rmse(labels, predictions):
    ...     return {"rmse": torch.sqrt(torch.mean((labels - predictions["predictions"]) ** 2))}
    """
    check_estimator("add_metrics", estimator)
    named = _checked_arguments(metric_fn)
    metrics = MetricFunction(
        function=metric_fn,
        arguments=tuple(name for name in named if name in _BATCH_ARGUMENTS),
        bound={"config": estimator.config} if "config" in named else {},
    )

    def with_metrics(spec: EstimatorSpec) -> EstimatorSpec:
        if spec.mode != ModeKeys.EVAL:
            return spec
        return dataclasses.replace(spec, extra_metrics=(*spec.extra_metrics, metrics))

    return estimator._extended(with_metrics)


def _checked_arguments(metric_fn: object) -> list[str]:
    if not callable(metric_fn):
        raise InvalidTypeError(f"add_metrics: metric_fn must be a function, but got {metric_fn!r}.")
    bound = metric_fn.keywords if isinstance(metric_fn, functools.partial) else {}
    parameters = inspect.signature(metric_fn).parameters.values()
    names = [
        one.name
        for one in parameters
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and one.name not in bound
    ]
    for name in names:
        if name not in _ARGUMENTS:
            raise InvalidValueError(
                f"add_metrics: metric_fn may take {', '.join(_ARGUMENTS)}, but takes {name!r}; bind other arguments "
                "with functools.partial."
            )
    return names
