"""Outputs of inner layers, such as an embedding, given with the predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.estimator_wrappers.checks import check_estimator
from torch_estimator.forwarding import ForwardedLayers, all_layers
from torch_estimator.models.inner_layers import find_layer
from torch_estimator.specs import EstimatorSpec


def forward_layers(estimator: Estimator, layers: Mapping[str, str], signature: str | None = None) -> Estimator:
    """Returns an Estimator that gives the outputs of inner layers with its predictions.

    They are among the predictions of `predict`. An export gives them in its signature ``predict``, or in one of their
    own (with the features of `forward_features`).

    Args:
        estimator: What to extend; stays as it is.
        layers: Key of the output -> the layer: a dotted path as in `torch.nn.Module.named_modules`, for instance
            ``dnn.hiddenlayer_1`` of a canned model, or the name of a feature column of a network, such as
            ``occupation_embedding``, for that column's part of the network's input. The output is a tensor with the
            batch first.
        signature: Name of the signature of an export that gives them; None for ``predict``.

    Raises:
        InvalidTypeError: ``estimator`` is no Estimator, or ``layers`` no dict of strings.
        InvalidValueError: ``layers`` is empty or repeats a key of an earlier call. Calls of the new Estimator raise it
            where the model has no such layer, or a prediction is called like one.
    """
    check_estimator("forward_layers", estimator)
    group = ForwardedLayers(layers=_checked_layers(layers), signature=_checked_signature(signature))

    def with_layers(spec: EstimatorSpec) -> EstimatorSpec:
        forwarded = (*spec.forward_layers, group)
        for name in all_layers(forwarded).values():
            find_layer(spec.module, name)
        return dataclasses.replace(spec, forward_layers=forwarded)

    return estimator._extended(with_layers)


def _checked_layers(layers: object) -> dict[str, str]:
    if not isinstance(layers, Mapping) or not all(isinstance(item, str) for pair in layers.items() for item in pair):
        raise InvalidTypeError(
            f"forward_layers: layers must be a dict from the outputs' keys to the layers' names, but got {layers!r}."
        )
    if not layers:
        raise InvalidValueError("forward_layers: layers must not be empty.")
    return dict(layers)


def _checked_signature(signature: object) -> str | None:
    if signature is not None and not isinstance(signature, str):
        raise InvalidTypeError(f"forward_layers: signature must be a string, but got {signature!r}.")
    if signature == "":
        raise InvalidValueError("forward_layers: signature must not be empty; leave it out for 'predict'.")
    return None if signature == "predict" else signature
