"""Configuration of an export for NVIDIA Triton's onnxruntime backend: the file ``config.pbtxt``.

Triton reads ``<repository>/<model>/<version>/model.onnx`` and ``<repository>/<model>/config.pbtxt``, which is how
exporters and registries lay out their directories. The batch is not among the dimensions in the file. Triton takes no
empty list of dimensions, so that a tensor ``[batch]`` is declared as ``[batch, 1]`` and reshaped.
"""

from __future__ import annotations

import json
import math

from torch_estimator import files
from torch_estimator.errors import ExportError
from torch_estimator.export.signatures import Manifest, TensorInfo

CONFIG_FILE = "config.pbtxt"


def config_of(
    manifest: Manifest, name: str, *, max_batch: int = 64, max_delay_ms: float = 0.0, version: int | None = None
) -> str:
    """Return the configuration of an export, as protocol buffers in text form.

    The inputs and outputs are those of all signatures under their names in the graph, which Triton uses. Inputs with a
    default have to be given: Triton knows no defaults. Triton makes batches of up to `max_batch` requests, for which it
    waits `max_delay_ms` milliseconds, and serves `version`; None for the newest one.
    """
    inputs: dict[str, TensorInfo] = {}
    outputs: dict[str, TensorInfo] = {}
    for signature in manifest.signatures.values():
        inputs |= {info.tensor: info for info in signature.inputs.values()}
        outputs |= {info.tensor: info for info in signature.outputs.values()}
    tensors = [_tensor("input", info) for info in inputs.values()]
    tensors += [_tensor("output", info) for info in outputs.values()]
    policy = "" if version is None else f"version_policy {{ specific {{ versions: {version} }} }}\n"
    delay = math.floor(1000 * max_delay_ms)
    return (
        f"name: {json.dumps(name)}\n"
        'backend: "onnxruntime"\n'
        f"max_batch_size: {max_batch}\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"
        f"{policy}"
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n" + "".join(tensors)
    )


def write_config(
    directory: str,
    manifest: Manifest,
    *,
    max_batch: int = 64,
    max_delay_ms: float = 0.0,
    is_default: bool = False,
) -> str:
    """Write ``config.pbtxt`` beside an export, whose directory has a number as its name; return the file's path.

    With `is_default`, Triton serves this version even where there is a newer one. The rest is as for `config_of`.
    """
    version, model = files.basename(directory), files.parent(directory)
    if not (version.isascii() and version.isdigit()):
        raise ExportError(
            f"Triton reads versions from directories with a number as their name, but the export is in {directory}; "
            "give an export of an exporter, or a version of a registry."
        )
    path = files.join(model, CONFIG_FILE)
    text = config_of(
        manifest,
        files.basename(model),
        max_batch=max_batch,
        max_delay_ms=max_delay_ms,
        version=int(version) if is_default else None,
    )
    try:
        files.write_atomic(path, text.encode())
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {files.reason(error)}.") from error
    return path


def _tensor(kind: str, info: TensorInfo) -> str:
    """Return the description of one input or output."""
    if not info.shape or info.shape[0] != -1:
        raise ExportError(f"the {kind} {info.tensor!r} has no batch dimension, so that Triton cannot batch requests.")
    sizes = info.shape[1:]
    dims = f"dims: [ {', '.join(map(str, sizes)) or 1} ]" + ("" if sizes else " reshape { shape: [ ] }")
    data_type = "STRING" if info.dtype == "DT_STRING" else info.type.datatype
    return f"{kind} [ {{ name: {json.dumps(info.tensor)} data_type: TYPE_{data_type} {dims} }} ]\n"
