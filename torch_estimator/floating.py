"""The one floating dtype that a module computes in, and batches cast to it: numpy's own is float64, torch's float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator import tree


def floating_dtype(module: nn.Module) -> torch.dtype | None:
    """The one floating dtype of a module's parameters, or else buffers; None where there is none or several."""
    for tensors in (module.parameters(), module.buffers()):
        dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        if dtypes:
            return dtypes.pop() if len(dtypes) == 1 else None
    return None


def cast(value: Any, dtype: torch.dtype, only: torch.dtype | None = None) -> Any:
    """Return features or labels with floating tensors (or only those of one dtype) in another dtype."""

    def cast_one(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point() and only in (None, leaf.dtype)
        return leaf.to(dtype) if floating else leaf

    return tree.map(cast_one, value)
