"""What a module is called with in the graph: the features that it was trained on, of raw inputs or of columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_estimator.data.feature_structure import Leaf, Structure, assemble, leaves
from torch_estimator.errors import ExportError
from torch_estimator.export.receivers import Received
from torch_estimator.export.torch_callable import Inlined
from torch_estimator.serving_input import ServingInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInputs:
    """Tensors of the graph, and how a module takes them.

    Attributes:
        tensors: By name.
        assemble: Makes the features of a batch of as many tensors, in the same order.
    """

    tensors: dict[str, Inlined]
    assemble: Callable[[Sequence[Tensor]], Any]


def named_inputs(tensors: Mapping[str, Inlined]) -> ModuleInputs:
    """The inputs of a module that takes a dict of tensors as they are."""
    names = list(tensors)
    return ModuleInputs(tensors=dict(tensors), assemble=lambda values: dict(zip(names, values, strict=True)))


def raw_inputs(received: Received, receiver: ServingInput, structure: Structure | None) -> ModuleInputs:
    """The inputs of a module that takes raw numbers.

    Args:
        received: The serving input in the graph.
        receiver: The serving input.
        structure: Of the features that the module was trained on; None takes the receiver's own, or else a dict of
            all that is received.

    Raises:
        ExportError: The serving input does not give what the module takes.
    """
    tensors = {
        key: Inlined(tensor=raw.tensor, row_shape=(raw.width,), dtype=raw.dtype)
        for key, raw in received.raw.items()
        if raw.dtype != "string"
    }
    shapes = {
        key: receiver.inputs[key].shape if key in receiver.inputs else item.row_shape for key, item in tensors.items()
    }
    structure = structure or receiver.structure
    if structure is None:
        structure = {"dict": {key: {"dtype": item.dtype, "shape": shapes[key]} for key, item in tensors.items()}}
    names = _names(structure, list(tensors))
    order = list(tensors)

    def features(values: Sequence[Tensor]) -> Any:
        given = dict(zip(order, values, strict=True))

        def find(name: str, leaf: Leaf) -> Tensor | None:
            key = names[name]
            if key not in given:
                return None
            shape = tuple(leaf["shape"])
            if math.prod(shape) != math.prod(shapes[key]):
                shape = shapes[key]
            return given[key].reshape(-1, *shape).to(getattr(torch, leaf["dtype"]))

        return assemble(structure, find)

    return ModuleInputs(tensors=tensors, assemble=features)


def _names(structure: Structure, given: list[str]) -> dict[str, str]:
    """The input that each tensor of a structure is; features without names take inputs in their order."""
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
