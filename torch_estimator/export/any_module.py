"""Export of any torch module, with its inputs and predictions, by torch's ONNX exporter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.data.feature_structure import Leaf, Structure, assemble, leaves
from torch_estimator.data.operations.batching import LENGTH_SUFFIX
from torch_estimator.errors import ExportError
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.heads import dtype_name
from torch_estimator.export.receivers import Received
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.floating import cast, floating_dtype
from torch_estimator.heads.serving import Prediction
from torch_estimator.serving_input import ServingInput

_WIDENED = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInputs:
    """Tensors of the ONNX graph, by name, that are the inputs of a torch module.

    `assemble` builds the module's argument (a tensor, tuple or dict) from the values of the tensors, given in the same
    order. `variable` says whether some are sequences of any length. The predictions may then be as long.
    """

    tensors: dict[str, Inlined]
    assemble: Callable[[Sequence[Tensor]], Any]
    variable: bool = False


def named_inputs(tensors: Mapping[str, Inlined]) -> ModuleInputs:
    """Return the inputs of a module that takes the given tensors as a dict."""
    names = list(tensors)
    return ModuleInputs(tensors=dict(tensors), assemble=lambda values: dict(zip(names, values, strict=True)))


def raw_inputs(received: Received, receiver: ServingInput, structure: Structure | None) -> ModuleInputs:
    """Return the inputs of a module that takes raw numbers, without feature columns.

    `structure` is that of the features that the module was trained on. None takes the structure of the serving input,
    or a dict of all its numbers.
    """
    shapes = received.shapes
    variable = {key for key, shape in shapes.items() if -1 in shape}
    tensors = {
        key: Inlined(tensor=raw.tensor, row_shape=shapes[key] if key in variable else (raw.width,), dtype=raw.dtype)
        for key, raw in received.raw.items()
        if raw.dtype != "string"
    }
    structure = structure or (None if receiver.features else receiver.structure)
    if structure is None:
        structure = {"dict": {key: {"dtype": item.dtype, "shape": shapes[key]} for key, item in tensors.items()}}
    names = _input_names(structure, list(tensors))
    order = list(tensors)

    def features(values: Sequence[Tensor]) -> Any:
        given = dict(zip(order, values, strict=True))

        def find(name: str, leaf: Leaf) -> Tensor | None:
            key = names[name]
            if key not in given and (sequence := given.get(key.removesuffix(LENGTH_SUFFIX))) is not None:
                # Count by an operation, since the exporter would take a size as a constant.
                counted = torch.ones_like(sequence.flatten(2)[..., 0] if sequence.dim() > 2 else sequence).sum(1)
                return counted.reshape(-1, *leaf["shape"]).to(getattr(torch, leaf["dtype"]))
            if key not in given:
                return None
            if key in variable:
                return given[key].to(getattr(torch, leaf["dtype"]))
            shape = tuple(leaf["shape"])
            if math.prod(shape) != math.prod(shapes[key]):
                shape = shapes[key]
            return given[key].reshape(-1, *shape).to(getattr(torch, leaf["dtype"]))

        return assemble(structure, find)

    return ModuleInputs(tensors=tensors, assemble=features, variable=not variable.isdisjoint(tensors))


def lower_module(
    graph: GraphBuilder, module: nn.Module, inputs: ModuleInputs, predictions: Callable[[Any], Mapping[str, Tensor]]
) -> dict[str, Prediction]:
    """Add the nodes of a module, and of the function from its outputs to predictions; return the predictions by key.

    Floating-point inputs and features are float32; predictions are ``[N, ...]``. If torch cannot express the module in
    ONNX, the error names the operator and the submodule.
    """
    run = _in_single_precision(module)
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = run(cast(inputs.assemble(tensors), torch.float32))
        # Clear the results of an earlier call: torch may trace the function several times, and the last trace counts.
        found.clear()
        widened = {}
        for key, value in predictions(outputs).items():
            widened[key] = _widened(key, value)
            found[key] = (widened[key].dtype, _row_shape(key, value, varies=inputs.variable))
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
    """Return a function that takes a module's outputs and returns the logits in a dict, for `lower_module`.

    It raises an ExportError unless the logits are floating-point ``[N, ...]``. `joined` joins the outputs of a module
    for several heads into one tensor of logits.
    """

    def logits(outputs: Any) -> dict[str, Tensor]:
        if joined is not None:
            outputs = joined(outputs)
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.dim() < 2:
            raise ExportError(
                f"the model {type(module).__name__} must give logits, float32 [N, width], to be exported, but gave "
                f"{_shown(outputs)}."
            )
        return {"logits": outputs.float()}

    return logits


def _in_single_precision(module: nn.Module) -> Callable[[Any], Any]:
    """Return a function that calls the module with float32 parameters.

    onnxruntime lacks most operators in half precision and many in double precision.
    """
    if floating_dtype(module) in (None, torch.float32):
        return module
    tensors = cast({**dict(module.named_parameters()), **dict(module.named_buffers())}, torch.float32)
    return lambda features: torch.func.functional_call(module, tensors, (features,))


def _widened(key: str, value: Any) -> Tensor:
    """Convert a prediction of half precision or small integers to float32 or int32, which signatures support."""
    if not isinstance(value, Tensor):
        raise ExportError(f"the prediction {key!r} must be a tensor to be exported, but is {type(value).__name__}.")
    dtype = _WIDENED.get(value.dtype)
    return value if dtype is None else value.to(dtype)


def _row_shape(key: str, value: Tensor, *, varies: bool) -> tuple[int, ...]:
    """Return the shape of one row of a traced prediction, with -1 for a size that depends on the batch.

    Such a size is an error unless `varies` is set.
    """
    if value.dim() == 0 or not isinstance(value.shape[0], torch.SymInt):
        raise ExportError(
            f"the prediction {key!r} must have one row per example to be exported, but is {_shown(value)}; take "
            "x.shape[0] where the module has len(x)."
        )
    shape = tuple(-1 if isinstance(size, torch.SymInt) else size for size in value.shape[1:])
    if -1 in shape and not varies:
        raise ExportError(
            f"the prediction {key!r} must have the same shape for every example, but is {_shown(value)}, which "
            "depends on the batch."
        )
    return shape


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    sizes = ", ".join("N" if isinstance(size, torch.SymInt) else str(size) for size in value.shape)
    return f"{str(value.dtype).removeprefix('torch.')} [{sizes}]"


def _input_names(structure: Structure, given: list[str]) -> dict[str, str]:
    """Return the name of the serving input for each tensor that the module takes. Unnamed tensors match in order."""
    wanted = [name for name, _ in leaves(structure)]
    strings = [name for name, leaf in leaves(structure) if leaf["dtype"] == "string"]
    if "dict" in structure or set(wanted) <= set(given):
        return {name: name for name in wanted}
    if strings or len(wanted) != len(given):
        raise ExportError(
            f"the model takes {len(wanted)} {'tensor' if len(wanted) == 1 else 'tensors'} without names, but the "
            f"serving input gives {len(given)} ({', '.join(given)}); make it with te.serving_input.like(features)."
        )
    return dict(zip(wanted, given, strict=True))
