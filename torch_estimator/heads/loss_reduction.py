"""Reductions: how the losses of a batch become one training loss."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.metrics import align_weights


class LossReduction(Enum):
    """How the weighted losses of a batch are combined into the training loss.

    With losses l and weights w, broadcast to the shape of l:

    * ``SUM``: Σ w·l; the default of TensorFlow's v1 classes.
    * ``SUM_OVER_BATCH_SIZE``: Σ w·l divided by the number of losses; the default of the heads.
    * ``MEAN``: Σ w·l / Σ w.
    * ``SUM_OVER_NONZERO_WEIGHTS``: Σ w·l divided by the number of weights that are not zero.

    >>> te.LossReduction.MEAN.reduce(torch.tensor([[1.0], [4.0]]), weights=torch.tensor([2.0, 1.0]))
    tensor(2.)
    """

    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    MEAN = "mean"
    SUM_OVER_NONZERO_WEIGHTS = "sum_over_nonzero_weights"
    SUM_BY_NONZERO_WEIGHTS = SUM_OVER_NONZERO_WEIGHTS

    @classmethod
    def of(cls, value: LossReduction | str) -> LossReduction:
        """Return the reduction that `value` names. A member is returned unchanged.

        Args:
            value: A member, the name of a member in either case, or a value of TensorFlow's two enumerations:
                ``"sum_over_batch_size"``, ``"weighted_sum"``, ``"auto"`` and so on.

        Raises:
            InvalidTypeError: `value` is neither a member nor a string.
            InvalidValueError: There is no such reduction. ``"none"`` is not allowed, since training needs a scalar
                loss.

        >>> te.LossReduction.of("weighted_mean")
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
        """Return the training loss of a batch, a scalar: 0 if the reduction divides by weights that are all zero.

        Args:
            losses: One loss per example and output, [N, D].
            weights: Weights [N], [N, 1] or [N, D], or None for ones.

        Raises:
            InvalidValueError: The shape of the weights does not fit the losses.

        >>> losses, weights = torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 0.0])
        >>> [reduction.reduce(losses, weights).item() for reduction in te.LossReduction]
        [2.0, 1.0, 1.0, 2.0]
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
        # Replace a divisor of 0 by 1 in the inner `where`, to keep the gradient finite.
        # Otherwise the branch that the outer `where` does not take would have the gradient 0 * inf = NaN.
        return torch.where(divisor == 0, 0.0, total / torch.where(divisor == 0, 1.0, divisor))

    def reduce_batches(self, losses: Tensor, weights: Tensor | None = None, *, batches: int) -> Tensor:
        """Return the training loss of each of several equally long, concatenated batches, float64 [batches].

        Args:
            losses: One loss per example and output, [batches * N, D].
            weights: Weights [batches * N], [batches * N, 1] or [batches * N, D], or None for ones.
            batches: Number of batches.

        >>> losses = torch.tensor([[1.0], [4.0], [2.0], [2.0]])
        >>> te.LossReduction.SUM.reduce_batches(losses, batches=2)
        tensor([5., 4.], dtype=torch.float64)
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
