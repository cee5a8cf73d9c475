"""Combining what several ids of a row stand for."""

from __future__ import annotations

import torch

from torch_estimator.feature_column.embedding import Combiner


def pool(rows: torch.Tensor, weights: torch.Tensor, combiner: Combiner) -> torch.Tensor:
    """Vectors of the ids of a row, combined; zeros where there is none.

    ``"sum"`` is Σwe; ``"mean"`` is Σwe/Σw and ``"sqrtn"`` Σwe/√Σw², both over positive weights only.

    Args:
        rows: float32 ``[N, L, dimension]``, zeros where there is no id.
        weights: float32 ``[N, L]``, zeros where there is no id.
        combiner: How.

    Returns:
        float32 ``[N, dimension]``.
    """
    if combiner == "sum":
        return (rows * weights.unsqueeze(2)).sum(1)
    weights = torch.where(weights > 0, weights, 0.0)
    total = (rows * weights.unsqueeze(2)).sum(1)
    divisor = weights.sum(1, keepdim=True) if combiner == "mean" else weights.square().sum(1, keepdim=True).sqrt()
    return total / torch.where(divisor > 0, divisor, 1.0)


def presence(ids: torch.Tensor, padding: int) -> torch.Tensor:
    """Weights of ids without weights: 1, and 0 for the padding; float32 of the same shape."""
    return (ids != padding).to(torch.float32)


def clip_norms(rows: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Vectors ``[..., dimension]``, those longer than `max_norm` shortened to it; differentiable at zeros, too."""
    squares = rows.square().sum(-1, keepdim=True)
    positive = squares > 0
    norms = torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
    return rows * (max_norm / norms.clamp(min=max_norm))
