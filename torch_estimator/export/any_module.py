"""Any module in the graph, through torch's exporter, with what makes predictions of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.heads import dtype_name
from torch_estimator.export.module_inputs import ModuleInputs
from torch_estimator.export.torch_callable import inline
from torch_estimator.floating import cast, floating_dtype
from torch_estimator.heads.serving import Prediction

_WIDENED = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}


def lower_module(
    graph: GraphBuilder, module: nn.Module, inputs: ModuleInputs, predictions: Callable[[Any], Mapping[str, Tensor]]
) -> dict[str, Prediction]:
    """Emits a module and what follows it; returns the predictions by key.

    Args:
        graph: Where the nodes go.
        module: Called with the features of `inputs`, in float32.
        inputs: Of the graph; floating ones are float32.
        predictions: From the module's outputs to tensors ``[N, ...]`` by key.

    Raises:
        ExportError: torch cannot express it in ONNX; names the operator and the module inside.
    """
    run = _in_single_precision(module)
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = run(cast(inputs.assemble(tensors), torch.float32))
        # torch may trace several times.
        found.clear()
        widened = {}
        for key, value in predictions(outputs).items():
            widened[key] = _widened(key, value)
            found[key] = (widened[key].dtype, _row_shape(key, value))
        return tuple(widened.values())

    training = module.training
    module.eval()
    try:
        names = inline(
            graph, call, list(inputs.tensors.values()), what=f"the model {type(module).__name__}", module=module
        )
    finally:
        module.train(training)
    return {
        key: Prediction(tensor=tensor, dtype=dtype_name(dtype, key), row_shape=shape)
        for (key, (dtype, shape)), tensor in zip(found.items(), names, strict=True)
    }


def logits_of(module: nn.Module, joined: Callable[[Any], Tensor] | None = None) -> Callable[[Any], dict[str, Tensor]]:
    """The predictions of a module that gives logits, float32 ``[N, width]``; it raises ExportError for any other.

    Args:
        module: Named in errors.
        joined: Makes logits of the module's outputs, where these are several.
    """

    def logits(outputs: Any) -> dict[str, Tensor]:
        if joined is not None:
            outputs = joined(outputs)
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.dim() < 2:
            raise ExportError(
                f"the model {type(module).__name__} must give logits, float32 [N, width], to be exported, but gave "
                f"{_say(outputs)}."
            )
        return {"logits": outputs.float()}

    return logits


def _in_single_precision(module: nn.Module) -> Callable[[Any], Any]:
    """Calls the module in float32: onnxruntime lacks most operators in half and many in double precision."""
    if floating_dtype(module) in (None, torch.float32):
        return module
    tensors = cast({**dict(module.named_parameters()), **dict(module.named_buffers())}, torch.float32)
    return lambda features: torch.func.functional_call(module, tensors, (features,))


def _widened(key: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ExportError(f"the prediction {key!r} must be a tensor to be exported, but is {type(value).__name__}.")
    dtype = _WIDENED.get(value.dtype)
    return value if dtype is None else value.to(dtype)


def _row_shape(key: str, value: Tensor) -> tuple[int, ...]:
    if value.dim() == 0 or not isinstance(value.shape[0], torch.SymInt):
        raise ExportError(f"the prediction {key!r} must have one row per example to be exported, but is {_say(value)}.")
    if any(isinstance(size, torch.SymInt) for size in value.shape[1:]):
        raise ExportError(
            f"the prediction {key!r} must have the same shape for every example, but is {_say(value)}, which depends "
            "on the batch."
        )
    return tuple(value.shape[1:])


def _say(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    sizes = ", ".join("N" if isinstance(size, torch.SymInt) else str(size) for size in value.shape)
    return f"{str(value.dtype).removeprefix('torch.')} [{sizes}]"
