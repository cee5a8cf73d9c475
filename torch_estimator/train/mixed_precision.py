"""Mixed precision: forward pass in bfloat16 where that is safe, weights and gradients in float32."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn


def in_bfloat16(loss_fn: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """Return a loss function that calls `loss_fn` under autocast to bfloat16.

    The module's outputs are converted back to float32 before the loss reads them, because the 8 bits of precision of
    bfloat16 are too few for the logarithm of a probability. Parameters and their gradients always stay float32.
    ``loss_fn(module, features, labels, weights)`` may call the module several times.
    """

    def loss(module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return loss_fn(lambda *inputs: _in_float32(module(*inputs)), features, labels, weights)

    return loss


def _in_float32(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if type(outputs) is dict:
        return {key: _in_float32(value) for key, value in outputs.items()}
    if isinstance(outputs, MutableMapping):
        # Copy the mapping instead of making a dict, because the loss may read attributes of, say, a ModelOutput.
        outputs = copy.copy(outputs)
        for key in outputs:
            outputs[key] = _in_float32(outputs[key])
        return outputs
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(_in_float32(value) for value in outputs))
    if isinstance(outputs, tuple | list):
        return type(outputs)(_in_float32(value) for value in outputs)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        fields = (field.name for field in dataclasses.fields(outputs) if field.init)
        return dataclasses.replace(outputs, **{name: _in_float32(getattr(outputs, name)) for name in fields})
    return outputs
