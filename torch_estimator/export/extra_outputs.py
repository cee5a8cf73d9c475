"""Further outputs of an export besides the predictions: outputs of inner layers, and inputs passed through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from torch_estimator.errors import ExportError
from torch_estimator.export.dtypes import BY_COLUMN
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.hash_chains import select
from torch_estimator.export.receivers import Received
from torch_estimator.export.signatures import PREDICT, Signature, TensorInfo
from torch_estimator.heads.serving import Prediction
from torch_estimator.inner_layers import ForwardedLayers, LayerOutputs, find_layer
from torch_estimator.serving_input import ServingInput

_SERVING_DEFAULT = "serving_default"

_Outputs = Callable[[Any], Mapping[str, Tensor]]


class LayerRecorder:
    """Recorder of the outputs of requested inner layers while a model is converted to ONNX.

    Code that converts a model layer by layer knows each layer's tensor and calls `record`. For a module that torch's
    exporter converts, `lower` adds the layers to the module's outputs. `layers` maps the key of an output to the name
    of the layer.
    """

    def __init__(self, module: nn.Module, layers: Mapping[str, str]) -> None:
        self._module = module
        self._names = dict(layers)
        self._layers = {key: find_layer(module, name) for key, name in layers.items()}
        self._outputs: dict[str, Prediction] = {}

    def record(self, graph: GraphBuilder, paths: Collection[str], tensor: str, width: int) -> None:
        """Record a tensor, float32 ``[N, width]``, as an output of the export, if a requested layer computes it.

        `paths` are those of the layers in the model that have this output.
        """
        for key, layer in self._layers.items():
            if layer.path in paths:
                start, stop = layer.columns or (0, width)
                part = select(graph, tensor, range(start, stop), width)
                self._outputs[key] = Prediction(tensor=part, dtype="DT_FLOAT", row_shape=(stop - start,))

    def lower(self, emit: Callable[[Callable[[_Outputs], _Outputs]], dict[str, Prediction]]) -> dict[str, Prediction]:
        """Convert a module with torch's exporter, and record the outputs of the requested layers inside it.

        `emit` converts the module. Its argument wraps the function from the module's outputs to predictions, so that
        the predictions include the requested layers. Return the result of `emit`, without the layers.
        """
        missing = {_temporary_key(key): name for key, name in self._names.items() if key not in self._outputs}
        if not missing:
            return emit(lambda outputs: outputs)
        with LayerOutputs(self._module, missing) as layers:
            found = emit(lambda outputs: lambda made: {**outputs(made), **layers.take()})
        for key in self._names:
            if _temporary_key(key) in found:
                self._outputs[key] = found.pop(_temporary_key(key))
        return found

    def outputs(self) -> dict[str, Prediction]:
        """Return the recorded outputs of layers by key."""
        for key, name in self._names.items():
            if key not in self._outputs:
                raise ExportError(
                    f"the layer {name!r}, to be given as {key!r}, has no place of its own in the exported graph; name "
                    "a hidden layer, the input layer or one of its columns."
                )
        return {key: self._outputs[key] for key in self._names}


def lower_forwarded(keys: Sequence[str] | None, received: Received, receiver: ServingInput) -> dict[str, Prediction]:
    """Return the inputs (all for None) that the export passes through as outputs, unchanged.

    A CSV field has the shape ``[N, 1]``.
    """
    return {key: _forwarded(key, received, receiver) for key in (receiver.inputs if keys is None else keys)}


def with_forwarded(
    signatures: Callable[[dict[str, TensorInfo]], dict[str, Signature]],
    outputs: dict[str, TensorInfo],
    layers: Sequence[ForwardedLayers],
    forwarded: Sequence[str],
    *,
    has_default: bool = False,
) -> dict[str, Signature]:
    """Return the signatures of an export: the head's signatures, and the user's signatures for inner layers.

    Forwarded inputs appear in ``predict`` and in every signature of layers. ``serving_default`` then equals
    ``predict``, unless the user has chosen its outputs (`has_default`). `signatures` takes the outputs of ``predict``
    and returns the signatures of the head.
    """
    separate: dict[str, list[str]] = {}
    for group in layers:
        if group.signature is not None:
            separate.setdefault(group.signature, []).extend(group.layers)
    elsewhere = {key for keys in separate.values() for key in keys}
    found = signatures({key: info for key, info in outputs.items() if key not in elsewhere})
    if forwarded and not has_default:
        found[_SERVING_DEFAULT] = found["predict"]
    inputs = found["predict"].inputs
    for name, keys in separate.items():
        if name in found:
            raise ExportError(
                f"layers are to be given by the signature {name!r}, but the head has that; it has {', '.join(found)}."
            )
        given = {key: outputs[key] for key in (*keys, *forwarded)}
        found[name] = Signature(method_name=PREDICT, inputs=inputs, outputs=given)
    return found


def _forwarded(key: str, received: Received, receiver: ServingInput) -> Prediction:
    if key in received.inputs:
        info = received.inputs[key]
        return Prediction(tensor=info.tensor, dtype=info.dtype, row_shape=info.shape[1:])
    if key in received.given:
        raw = received.given[key]
        return Prediction(tensor=raw.tensor, dtype=BY_COLUMN[raw.dtype].name, row_shape=(raw.width,))
    raise ExportError(
        f"the input {key!r} is to be forwarded, but the serving input has only {sorted(receiver.inputs)}; "
        f"declare it with defaults={{{key!r}: …}}."
    )


def _temporary_key(key: str) -> str:
    """Return a key for an inner layer that differs from the keys of all predictions."""
    return f"{key} (inner layer)"
