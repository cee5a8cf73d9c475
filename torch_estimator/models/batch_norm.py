"""Batch normalisation as TensorFlow computes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_EPSILON = 0.001
_MOMENTUM = 0.999


class BatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` with epsilon, momentum and statistics of `tf.compat.v1.layers.BatchNormalization`.

    The running variance is that of the batches themselves, not the estimate that divides by one row less. So a batch of
    one row can be trained on, as in TensorFlow: its output is ``bias``.

    Args:
        units: Numbers per row.
    """

    def __init__(self, units: int) -> None:
        super().__init__(units, eps=_EPSILON, momentum=1 - _MOMENTUM)

    def forward(self, inputs: Tensor) -> Tensor:
        """float32 ``[N, units]`` -> ``[N, units]``; in training it also moves the running statistics."""
        if not self.training:
            return super().forward(inputs)
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        # Statistics need more than the eight bits that inputs may have under autocast.
        exact = inputs.to(self.weight.dtype)
        outputs, mean, scale = torch.native_batch_norm(exact, self.weight, self.bias, None, None, True, 0.0, self.eps)
        with torch.no_grad():
            self.running_mean.lerp_(mean, 1 - _MOMENTUM)
            self.running_var.lerp_((scale.pow(-2) - self.eps).clamp(min=0.0), 1 - _MOMENTUM)
            self.num_batches_tracked.add_(1)
        return outputs
