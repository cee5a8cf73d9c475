"""The one floating dtype that a module computes in, and batches cast to it: numpy's own is float64, torch's float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def floating_dtype(module: nn.Module) -> torch.dtype | None:
    """The one floating dtype of a module's parameters, or else buffers; None where there is none or several."""
    for tensors in (module.parameters(), module.buffers()):
        dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        if dtypes:
            return dtypes.pop() if len(dtypes) == 1 else None
    return None


def cast(value: Any, dtype: torch.dtype, only: torch.dtype | None = None) -> Any:
    """Returns features or labels with floating tensors (or only those of one dtype) in another dtype."""
    if isinstance(value, Mapping):
        return {key: cast(one, dtype, only) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(cast(one, dtype, only) for one in value)
    floating = isinstance(value, Tensor) and value.is_floating_point() and only in (None, value.dtype)
    return value.to(dtype) if floating else value
