"""Forward pass and loss in bfloat16 where that is safe, everything that is kept in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def in_bfloat16(loss_fn: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """Returns `loss_fn` under autocast.

    The module's outputs are float32 again before the loss reads them: eight bits are too few for a logarithm of a
    probability. Parameters and their gradients are float32 throughout.

    Args:
        loss_fn: ``loss_fn(module, features, labels, weights)`` -> scalar, which calls the module once or more.
        device: Where it runs.
    """

    def loss(module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return loss_fn(lambda *inputs: _in_float32(module(*inputs)), features, labels, weights)

    return loss


def _in_float32(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if isinstance(outputs, Mapping):
        return {key: _in_float32(value) for key, value in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(_in_float32(value) for value in outputs)
    return outputs
