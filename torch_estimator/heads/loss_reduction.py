"""How the losses of a batch become the training loss."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError


class LossReduction(Enum):
    """How the weighted losses of a batch are combined into the one that is trained on.

    With losses l and weights w, broadcast to the shape of l:

    * ``SUM``: Σ w·l; the default of TensorFlow's v1 classes.
    * ``SUM_OVER_BATCH_SIZE``: Σ w·l divided by the number of losses; the default of the heads.
    * ``MEAN``: Σ w·l / Σ w.
    * ``SUM_OVER_NONZERO_WEIGHTS``: Σ w·l divided by the number of weights that are not zero.
    """

    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    MEAN = "mean"
    SUM_OVER_NONZERO_WEIGHTS = "sum_over_nonzero_weights"
    SUM_BY_NONZERO_WEIGHTS = SUM_OVER_NONZERO_WEIGHTS

    @classmethod
    def of(cls, value: LossReduction | str) -> LossReduction:
        """Returns `value` itself, or the reduction that a string names.

        Strings are the members' names in either case and the values of TensorFlow's two enumerations
        (``"sum_over_batch_size"``, ``"weighted_sum"``, ``"auto"`` and so on).

        Raises:
            InvalidTypeError: `value` is neither.
            InvalidValueError: There is no such reduction; losses that are not reduced cannot be trained on.

        >>> LossReduction.of("weighted_mean")
        <LossReduction.MEAN: 'mean'>
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise InvalidTypeError(f"loss_reduction must be a LossReduction or its name, but got {value!r}.")
        name = value.lower().removeprefix("weighted_").replace("by_nonzero", "over_nonzero")
        if name == "auto":
            return cls.SUM_OVER_BATCH_SIZE
        try:
            return cls(name)
        except ValueError:
            names = ", ".join(repr(member.value) for member in cls)
            raise InvalidValueError(f"Invalid loss_reduction {value!r}; it must be one of {names}.") from None

    def reduce(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """Returns the scalar training loss; 0 where the divisor would be 0.

        Args:
            losses: One loss per example and output, [N, D].
            weights: [N], [N, 1] or [N, D], or None for ones.
        """
        if weights is None:
            total = losses.sum()
            return total if self is LossReduction.SUM else total / max(losses.numel(), 1)
        weights = align_weights(weights, losses)
        total = (losses * weights).sum()
        if self is LossReduction.SUM:
            return total
        if self is LossReduction.SUM_OVER_BATCH_SIZE:
            return total / max(losses.numel(), 1)
        weights = weights.expand_as(losses)
        divisor = weights.sum() if self is LossReduction.MEAN else (weights != 0).sum()
        return torch.where(divisor == 0, 0.0, total / torch.where(divisor == 0, 1.0, divisor))

    def reduce_batches(self, losses: Tensor, weights: Tensor | None = None, *, batches: int) -> Tensor:
        """Returns what `reduce` gives for each of several batches of the same length, one after the other: [batches].

        Summed up in float64.
        """
        aligned = torch.ones(()) if weights is None else align_weights(weights, losses).double()
        expanded = aligned.to(losses.device).expand_as(losses).reshape(batches, -1)
        total = (losses.double().reshape(batches, -1) * expanded).sum(1)
        if self is LossReduction.SUM:
            return total
        if self is LossReduction.SUM_OVER_BATCH_SIZE or weights is None:
            return total / expanded.shape[1]
        divisor = expanded.sum(1) if self is LossReduction.MEAN else (expanded != 0).sum(1)
        return torch.where(divisor == 0, 0.0, total / torch.where(divisor == 0, 1.0, divisor))


def align_weights(weights: Tensor, losses: Tensor) -> Tensor:
    """Returns float weights that broadcast against `losses` example by example.

    Raises:
        InvalidValueError: `weights` is not [N], [N, 1] or of the shape of `losses`.
    """
    aligned = weights.unsqueeze(-1) if weights.dim() == losses.dim() - 1 else weights
    if aligned.shape != losses.shape and aligned.shape != (*losses.shape[:-1], 1):
        raise InvalidValueError(
            f"weights must have shape {[*losses.shape[:-1], 1]} or {list(losses.shape)}, but got {list(weights.shape)}."
        )
    return aligned.to(losses.dtype)
