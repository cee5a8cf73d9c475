"""Torch modules of the premade models: linear, DNN, wide-and-deep and baseline.

Attribute names are part of the checkpoint format: joined by ``/`` they are the names of tf.estimator's variables, such
as ``dnn/hiddenlayer_0/kernel``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_estimator.feature_column.dense_features import InputLayer
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.layouts import InputLayout, LinearLayout
from torch_estimator.feature_column.raw_values import RawColumn
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.feature_column.weighted_sum import LinearModel, precise_column
from torch_estimator.initial_values import Distribution, uniform

Activation = Callable[[Tensor], Tensor]

# tf.estimator's DNN models use these settings of batch normalization.
_EPSILON = 0.001
_MOMENTUM = 0.999

ROWS = "baseline/rows"

_ELEMENTWISE_FUNCTIONS = (
    *(torch.relu, torch.tanh, torch.sigmoid, torch.selu, torch.celu),
    *(functional.relu, functional.tanh, functional.sigmoid, functional.selu, functional.celu),
    *(functional.relu6, functional.leaky_relu, functional.elu, functional.gelu, functional.silu, functional.mish),
    *(functional.softplus, functional.softsign, functional.hardtanh, functional.hardswish, functional.hardsigmoid),
)
_ELEMENTWISE_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity),
)


class WideAndDeep(nn.Module):
    """Module of linear, DNN and wide-and-deep models: a linear part, a deep part, or both with their logits added.

    `rows_are_independent` says whether the logits of a row depend on that row only (except in training).
    """

    variable_separator = "/"

    def __init__(self, *, linear: Linear | None = None, dnn: DNN | None = None) -> None:
        super().__init__()
        self.linear = linear
        self.dnn = dnn
        self.multiply_adds_per_row = sum(dense.kernel.numel() for dense in self.modules() if isinstance(dense, Dense))
        if linear is not None:
            layout = linear.linear_model.layout
            self.multiply_adds_per_row += linear.linear_model.units * (layout.slots + layout.dense.width)
        self.rows_are_independent = dnn is None or _is_elementwise(dnn.activation_fn)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of `N` rows, float32 ``[N, logits_dimension]``."""
        parts = [part(features) for part in (self.linear, self.dnn) if part is not None]
        return parts[0] + parts[1] if len(parts) > 1 else parts[0]  # type: ignore[no-any-return]


def _is_elementwise(activation: Any) -> bool:
    """Return whether an activation function is known to be elementwise. The answer is False for unknown functions."""
    if isinstance(activation, partial) and not activation.args:
        activation = activation.func
    return (
        activation is None
        or type(activation) in _ELEMENTWISE_MODULES
        or any(activation is one for one in _ELEMENTWISE_FUNCTIONS)
    )


class Linear(nn.Module):
    """Wrapper of a `LinearModel` that gives its variables the names of tf.estimator (``linear/linear_model/...``)."""

    def __init__(self, layout: LinearLayout, logits_dimension: int, sparse_combiner: Combiner = "sum") -> None:
        super().__init__()
        self.linear_model = LinearModel(layout, logits_dimension, sparse_combiner)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of the `LinearModel`."""
        return self.linear_model(features)  # type: ignore[no-any-return]


class DNN(nn.Module):
    """Deep network: an input layer, hidden layers (dense, activation, dropout, batch norm), and a layer for the logits.

    An activation that is a module is copied once; all layers share the copy, and its parameters, if any, are trained.
    """

    def __init__(
        self,
        layout: InputLayout,
        hidden_units: Sequence[int],
        logits_dimension: int,
        *,
        activation_fn: Activation = torch.relu,
        dropout: float | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.input_from_feature_columns = InputFromFeatureColumns(layout)
        # Copy an activation that is a module, because training changes its mode and its parameters.
        self.activation_fn = copy.deepcopy(activation_fn) if isinstance(activation_fn, nn.Module) else activation_fn
        self.dropout = dropout
        self.batch_norm = batch_norm
        self.num_hidden = len(hidden_units)
        width = layout.width
        for index, units in enumerate(hidden_units):
            self.add_module(f"hiddenlayer_{index}", Dense(width, units))
            if batch_norm:
                self.add_module(f"batchnorm_{index}", BatchNorm(units))
            width = units
        self.logits = Dense(width, logits_dimension)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of `N` rows, float32 ``[N, logits_dimension]``."""
        hidden = self.input_from_feature_columns(features)
        for index in range(self.num_hidden):
            hidden = getattr(self, f"hiddenlayer_{index}")(hidden, self.activation_fn)
            if self.dropout and self.training:
                hidden = dropout(hidden, self.dropout)
            if self.batch_norm:
                hidden = getattr(self, f"batchnorm_{index}")(hidden)
        return self.logits(hidden)  # type: ignore[no-any-return]


class InputFromFeatureColumns(nn.Module):
    """Wrapper of an `InputLayer` that gives its variables the names of tf.estimator."""

    def __init__(self, layout: InputLayout) -> None:
        super().__init__()
        self.input_layer = InputLayer(layout)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the output of the `InputLayer`."""
        return self.input_layer(features)  # type: ignore[no-any-return]


class Dense(nn.Module):
    """Dense layer ``activation(inputs @ kernel + bias)``; the kernel starts Glorot uniform and the bias zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(glorot_uniform(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor, activation: Activation | None = None) -> Tensor:
        """Map float32 ``[N, inputs]`` to ``[N, outputs]``, and apply the activation function."""
        # The activation is an argument and not an attribute, because all hidden layers share it.
        # In checkpoints, the parameters of an attribute would be named after this layer.
        precise = not self.training and self.kernel.shape[1] == 1
        outputs = (precise_column if precise else torch.addmm)(self.bias, inputs, self.kernel)
        is_relu = activation is torch.relu or activation is nn.functional.relu
        if is_relu and not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            # Apply ReLU in place, because nothing else refers to the outputs.
            # Allocating a new tensor would take a third of the layer's time.
            return outputs.relu_()
        return outputs if activation is None else activation(outputs)


def glorot_uniform(inputs: int, outputs: int) -> Tensor:
    """Return a kernel ``[inputs, outputs]`` with numbers between ±√(6 / (inputs + outputs)), as Keras's layers have."""
    kernel = torch.empty(inputs, outputs)
    seed = int(torch.randint(0, 2**62, (), device="cpu"))
    Distribution(uniform, math.sqrt(6 / (inputs + outputs))).fill(kernel, seed, "kernel")
    return kernel


def dropout(inputs: Tensor, rate: float) -> Tensor:
    """Set each number to zero with a probability `rate` below 1, and divide the remaining numbers by ``1 - rate``.

    On a CPU this takes half the time of `torch.nn.functional.dropout`, which draws its mask in double precision.
    """
    if inputs.device.type != "cpu":
        return nn.functional.dropout(inputs, rate)
    noise = torch.rand(inputs.shape, dtype=torch.float32).ge_(rate).mul_(1 / (1 - rate))
    return inputs * noise.to(inputs.dtype)


class BatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` with the settings and statistics of `tf.compat.v1.layers.BatchNormalization`.

    The running variance averages the variances of the batches (divided by the number of rows, not by one less as in
    torch). Therefore, as in TensorFlow, a batch of a single row can be trained on: its output is ``bias``.
    """

    def __init__(self, units: int) -> None:
        super().__init__(units, eps=_EPSILON, momentum=1 - _MOMENTUM)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalize float32 ``[N, units]``; in training also update the running statistics."""
        if not self.training:
            return super().forward(inputs)
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        # Under autocast the inputs may be bfloat16, whose 8 bits of precision are too few for statistics.
        exact = inputs.to(self.weight.dtype)
        outputs, mean, scale = torch.native_batch_norm(exact, self.weight, self.bias, None, None, True, 0.0, self.eps)
        with torch.no_grad():
            self.running_mean.lerp_(mean, 1 - _MOMENTUM)
            self.running_var.lerp_((scale.pow(-2) - self.eps).clamp(min=0.0), 1 - _MOMENTUM)
            self.num_batches_tracked.add_(1)
        return outputs


class Baseline(nn.Module):
    """Module of the baseline models. It returns the same trained logits for every row."""

    variable_separator = "/"
    multiply_adds_per_row = 0
    rows_are_independent = True

    def __init__(self, logits_dimension: int) -> None:
        super().__init__()
        self.baseline = Bias(logits_dimension)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of `N` rows, float32 ``[N, logits_dimension]``."""
        return self.baseline(features[ROWS].shape[0])  # type: ignore[no-any-return]


class Bias(nn.Module):
    """Logits of a `Baseline`, in a module so that the variable has its name in tf.estimator, ``baseline/bias``."""

    def __init__(self, logits_dimension: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(logits_dimension))

    def forward(self, rows: int) -> Tensor:
        """Return the bias repeated for each row, float32 ``[rows, logits_dimension]``."""
        return self.bias.repeat(rows, 1)


class RowCount(FeatureTransform):
    """Feature transform of the baseline models: replaces the columns of `N` rows by an empty array ``[N, 0]``."""

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, columns: Mapping[str, RawColumn]) -> dict[str, npt.NDArray[Any]]:
        """Return ``{"baseline/rows": float32 [N, 0]}`` for any columns of ``N`` rows."""
        return {ROWS: np.empty((len(next(iter(columns.values()))), 0), dtype=np.float32)}
