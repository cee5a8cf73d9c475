"""What an export gives beside its predictions: inputs handed through, and inner layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_estimator.errors import ExportError
from torch_estimator.export.heads import Prediction
from torch_estimator.export.receivers import DTYPES, Received
from torch_estimator.export.signatures import PREDICT, Signature, TensorInfo
from torch_estimator.inner_layers import ForwardedLayers
from torch_estimator.serving_input import ServingInput

_SERVING_DEFAULT = "serving_default"


def lower_forwarded(keys: Sequence[str] | None, received: Received, receiver: ServingInput) -> dict[str, Prediction]:
    """Inputs as they come in, in the type and the shape of the serving input; a field of CSV is ``[N, 1]``.

    Args:
        keys: Which; None for all.
        received: What the receiver became.
        receiver: What a caller gives.

    Raises:
        ExportError: The receiver has no such input.
    """
    return {key: _forwarded(key, received, receiver) for key in (receiver.inputs if keys is None else keys)}


def with_forwarded(
    signatures: Callable[[dict[str, TensorInfo]], dict[str, Signature]],
    outputs: dict[str, TensorInfo],
    layers: Sequence[ForwardedLayers],
    forwarded: Sequence[str],
) -> dict[str, Signature]:
    """The signatures of an export, and those of layers that have one of their own.

    Forwarded inputs are in ``predict`` and in every signature of layers; ``serving_default`` then is ``predict``.

    Args:
        signatures: From what ``predict`` gives to the signatures of the head.
        outputs: Everything that the graph gives, by key.
        layers: Inner layers whose outputs are given.
        forwarded: Keys of the inputs that are handed through.

    Raises:
        ExportError: A signature of layers has the name of another.
    """
    apart: dict[str, list[str]] = {}
    for group in layers:
        if group.signature is not None:
            apart.setdefault(group.signature, []).extend(group.layers)
    elsewhere = {key for keys in apart.values() for key in keys}
    found = signatures({key: info for key, info in outputs.items() if key not in elsewhere})
    if forwarded:
        found[_SERVING_DEFAULT] = found["predict"]
    inputs = found["predict"].inputs
    for name, keys in apart.items():
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
    if key in received.raw:
        raw = received.raw[key]
        return Prediction(tensor=raw.tensor, dtype=DTYPES[raw.dtype], row_shape=(raw.width,))
    raise ExportError(
        f"the input {key!r} is to be forwarded, but the serving input has only {sorted(receiver.inputs)}; "
        f"declare it with defaults={{{key!r}: …}}."
    )
