"""Functions that extend an Estimator: with more metrics in evaluations, and more outputs in predictions.

Each function returns a new Estimator of the same job (same ``model_dir``, config and params) and leaves its argument
unchanged, so calls can be nested.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.inner_layers import ForwardedLayers, all_layers, find_layer
from torch_estimator.metrics import MetricFunction
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.specs import EstimatorSpec

__all__ = ["add_metrics", "forward_features", "forward_layers"]

_BATCH_ARGUMENTS = ("features", "labels", "predictions")
_ARGUMENTS = (*_BATCH_ARGUMENTS, "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Any]) -> Estimator:
    """Return an Estimator whose evaluations also report the metrics of ``metric_fn``.

    The metrics are exact over the whole evaluation. The type that ``metric_fn`` returns for the first batch decides how
    they are computed:

    - Numbers: ``metric_fn`` is called once more, at the end, with all rows. Until then the arguments that it read are
      kept in host memory (4 bytes a row for one float32 per row).
    - torchmetrics objects that ``metric_fn`` created and updated: it is called for every batch and the objects are
      merged, so memory does not grow with the rows (unless the objects themselves keep rows). Objects that torchmetrics
      cannot merge correctly are computed from all rows at the end, as numbers are.

    Args:
        estimator: The Estimator to wrap.
        metric_fn: Function that takes, by name, any of ``features`` (raw input columns: tensors, or object arrays of
            strings), ``labels`` (as the head prepares them), ``predictions`` and ``config`` (the `RunConfig`), all in
            host memory. It returns a dict of numbers or of torchmetrics objects. A name that the model already reports
            is replaced, except ``loss`` and ``global_step``, which cannot be replaced.

    Raises:
        InvalidTypeError: ``estimator`` is not an Estimator, or ``metric_fn`` is not callable.
        InvalidValueError: ``metric_fn`` takes an argument of another name.

    >>> def worst(labels, predictions):
    ...     return {"worst_error": (labels - predictions["predictions"]).abs().max()}
    >>> estimator = te.add_metrics(te.BaselineRegressor("memory://add_metrics"), worst)
    >>> data = {"x": [0.0, 1.0]}, [3.0, -7.0]
    >>> estimator.evaluate(lambda: data)["worst_error"]
    7.0
    """
    _check_estimator("add_metrics", estimator)
    names = _metric_arguments(metric_fn)
    metrics = MetricFunction(
        function=metric_fn,
        arguments=tuple(name for name in names if name in _BATCH_ARGUMENTS),
        bound={"config": estimator.config} if "config" in names else {},
    )

    def with_metrics(spec: EstimatorSpec) -> EstimatorSpec:
        if spec.mode != ModeKeys.EVAL:
            return spec
        return dataclasses.replace(spec, extra_metrics=(*spec.extra_metrics, metrics))

    return estimator.with_changed_spec(with_metrics)


def forward_features(estimator: Estimator, keys: str | Sequence[str] | None = None) -> Estimator:
    """Return an Estimator that copies input features to its predictions, such as the key of a row.

    `Estimator.predict` adds them to each prediction; an export adds them to its signatures ``predict`` and
    ``serving_default`` (and to those of `forward_layers`). The model does not have to use the features, but the serving
    input has to contain them: declare an input that the model does not use by its default, as in
    ``te.serving_input.raw_features(columns, defaults={"key": "nokey"})``.

    Args:
        estimator: The Estimator to wrap.
        keys: Names of the features to copy; None copies every feature of the input (or serving input).

    Raises:
        InvalidTypeError: ``estimator`` is not an Estimator, or a key is not a string.
        InvalidValueError: ``keys`` is empty. Predicting and exporting raise this error, or `ExportError`, if the input
            has no such feature or a prediction already has that name. Training logs a line if its input lacks one.

    >>> data = {"key": ["a", "b"], "x": [0.0, 1.0]}, [3.0, 3.0]
    >>> estimator = te.LinearRegressor([fc.numeric_column("x")], "memory://forward_features")
    >>> estimator = te.forward_features(estimator.train(lambda: data, steps=1), "key")
    >>> [str(one["key"]) for one in estimator.predict(lambda: data)]
    ['a', 'b']
    """
    _check_estimator("forward_features", estimator)
    names = _feature_keys(keys)

    def with_features(spec: EstimatorSpec) -> EstimatorSpec:
        before = spec.forward_features
        all_keys = None if before is None or names is None else tuple(dict.fromkeys((*before, *names)))
        return dataclasses.replace(spec, forward_features=all_keys)

    return estimator.with_changed_spec(with_features)


def forward_layers(estimator: Estimator, layers: Mapping[str, str], signature: str | None = None) -> Estimator:
    """Return an Estimator that adds the outputs of inner layers, such as an embedding, to its predictions.

    `Estimator.predict` adds them to each prediction. An export adds them to its signature ``predict``, or to a separate
    signature (together with the features of `forward_features`).

    Args:
        estimator: The Estimator to wrap.
        layers: Maps the key of each output to its layer. A layer is a dotted path (as `torch.nn.Module.named_modules`
            returns them), for instance ``dnn.hiddenlayer_1`` of a premade model, or the name of a feature column of a
            network, such as ``occupation_embedding``, which stands for that column's part of the network's input. The
            layer's output must be a tensor whose first dimension is the batch.
        signature: Name of the export signature that returns them; None for ``predict``.

    Raises:
        InvalidTypeError: ``estimator`` is not an Estimator, or ``layers`` is not a dict of strings.
        InvalidValueError: ``layers`` is empty or repeats a key of an earlier call. The new Estimator raises this error
            when it is used, if the model has no such layer or a prediction already has that name.

    >>> data = {"x": [0.0, 1.0]}, [3.0, 3.0]
    >>> estimator = te.DNNRegressor([8, 4], [fc.numeric_column("x")], "memory://forward_layers")
    >>> estimator = te.forward_layers(estimator.train(lambda: data, steps=1), {"hidden": "dnn.hiddenlayer_1"})
    >>> [one["hidden"].shape for one in estimator.predict(lambda: data)]
    [(4,), (4,)]
    """
    _check_estimator("forward_layers", estimator)
    group = ForwardedLayers(layers=_layer_names(layers), signature=_signature_name(signature))

    def with_layers(spec: EstimatorSpec) -> EstimatorSpec:
        forwarded = (*spec.forward_layers, group)
        for name in all_layers(forwarded).values():
            find_layer(spec.module, name)
        return dataclasses.replace(spec, forward_layers=forwarded)

    return estimator.with_changed_spec(with_layers)


def _check_estimator(function: str, estimator: object) -> None:
    if not isinstance(estimator, Estimator):
        raise InvalidTypeError(f"{function}: estimator must be an Estimator, but got {estimator!r}.")


def _metric_arguments(metric_fn: object) -> list[str]:
    """Check ``metric_fn`` and return the names of the arguments it takes."""
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


def _feature_keys(keys: object) -> tuple[str, ...] | None:
    if keys is None:
        return None
    names = (keys,) if isinstance(keys, str) else keys
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"forward_features: keys must be a string or a list of strings, but got {keys!r}.")
    if not names:
        raise InvalidValueError("forward_features: keys must not be empty; leave it out for all features.")
    return tuple(names)


def _layer_names(layers: object) -> dict[str, str]:
    if not isinstance(layers, Mapping) or not all(isinstance(item, str) for pair in layers.items() for item in pair):
        raise InvalidTypeError(
            f"forward_layers: layers must be a dict from the outputs' keys to the layers' names, but got {layers!r}."
        )
    if not layers:
        raise InvalidValueError("forward_layers: layers must not be empty.")
    return dict(layers)


def _signature_name(signature: object) -> str | None:
    if signature is not None and not isinstance(signature, str):
        raise InvalidTypeError(f"forward_layers: signature must be a string, but got {signature!r}.")
    if signature == "":
        raise InvalidValueError("forward_layers: signature must not be empty; leave it out for 'predict'.")
    return None if signature == "predict" else signature
