"""Serving inputs in the graph: what a caller sends to raw columns ``[N, width]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_estimator.errors import ExportError
from torch_estimator.export.csv_rows import lower_csv
from torch_estimator.export.graph import FLOAT, GraphBuilder
from torch_estimator.export.signatures import CsvFormat, TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.lowering import RawTensor
from torch_estimator.feature_column.raw_feature import RawFeature
from torch_estimator.serving_input import ServingInput, transform_outputs

DTYPES = {"string": "DT_STRING", "float32": "DT_FLOAT", "int64": "DT_INT64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a receiver becomes.

    Attributes:
        raw: Raw columns by key, ``[N, width]``.
        inputs: The inputs of a signature.
        csv: How rows are read, or None.
    """

    raw: dict[str, RawTensor]
    inputs: dict[str, TensorInfo]
    csv: CsvFormat | None


def lower_receiver(graph: GraphBuilder, receiver: ServingInput) -> Received:
    """Emits a receiver: its inputs, their parsing, and the user's transform."""
    if receiver.kind == "csv":
        inputs, raw, csv = lower_csv(graph, receiver)
        return Received(raw=_transformed(graph, receiver, raw), inputs=inputs, csv=csv)
    inputs = {}
    raw = {}
    for name, feature in receiver.inputs.items():
        bare = receiver.kind == "json" and feature.shape == (1,)
        info = TensorInfo(
            dtype=DTYPES[feature.dtype],
            shape=(-1,) if bare else (-1, *feature.shape),
            tensor=name,
            default=receiver.defaults.get(name),
        )
        inputs[name] = info
        tensor = graph.input(name, info)
        if bare:
            tensor = graph.op("Unsqueeze", tensor, graph.constant([1], np.int64))
        width = math.prod(feature.shape)
        if len(feature.shape) > 1:
            tensor = graph.op("Reshape", tensor, graph.constant([-1, width], np.int64))
        raw[name] = RawTensor(tensor=tensor, dtype=feature.dtype, width=width)
    return Received(raw=_transformed(graph, receiver, raw), inputs=inputs, csv=None)


def check_raw(raw: Mapping[str, RawTensor], needed: Mapping[str, RawFeature]) -> None:
    """Raises ExportError unless a receiver gives every raw column as the model reads it."""
    for key, feature in needed.items():
        given = raw.get(key)
        if given is None:
            raise ExportError(
                f"the model reads {key!r}, but the serving input has only {sorted(raw)}; "
                "make it from all of the model's columns."
            )
        if (given.dtype, given.width) != (feature.dtype, math.prod(feature.shape)):
            raise ExportError(
                f"the model reads {key!r} as {_amount(math.prod(feature.shape))} {feature.dtype} per row, "
                f"but the serving input has {_amount(given.width)} {given.dtype}."
            )


def _amount(width: int) -> str:
    return "a list of" if width == -1 else str(width)


def _transformed(graph: GraphBuilder, receiver: ServingInput, raw: dict[str, RawTensor]) -> dict[str, RawTensor]:
    """Adds the features that the user's transform makes of raw numbers."""
    transform: Any = receiver.transform
    if transform is None:
        return raw
    names = [str(name) for name in transform.input_names]
    shapes = transform_outputs(transform, names)
    inputs = []
    for name in names:
        tensor = raw[name].tensor if raw[name].dtype == "float32" else graph.op("Cast", raw[name].tensor, to=FLOAT)
        inputs.append(Inlined(tensor=tensor, row_shape=(1,), dtype="float32"))

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = transform(dict(zip(names, tensors, strict=True)))
        return tuple(features[key].reshape(-1, math.prod(shape)).float() for key, shape in shapes.items())

    training = transform.training
    transform.eval()
    try:
        tensors = inline(graph, call, inputs, what=f"the transform {type(transform).__name__}")
    finally:
        transform.train(training)
    made = {
        key: RawTensor(tensor=tensor, dtype="float32", width=math.prod(shape))
        for (key, shape), tensor in zip(shapes.items(), tensors, strict=True)
    }
    return {**raw, **made}
