"""The modules of the canned models; their names are those of tf.estimator's variables."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.input_layer import InputLayer
from torch_estimator.feature_column.layouts import InputLayout, LinearLayout
from torch_estimator.feature_column.linear_model import LinearModel, precise_column
from torch_estimator.models.activations import is_elementwise
from torch_estimator.models.batch_norm import BatchNorm
from torch_estimator.models.dropout import dropout

Activation = Callable[[Tensor], Tensor]


class Dense(nn.Module):
    """``activation(inputs @ kernel + bias)``, the kernel Glorot uniform and the bias zero at the start.

    Attributes:
        kernel: float32 ``[inputs, outputs]``.
        bias: float32 ``[outputs]``.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(inputs, outputs)))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor, activation: Activation | None = None) -> Tensor:
        """float32 ``[N, inputs]`` -> ``[N, outputs]``."""
        # The activation is an argument: as a part of the layer, one with parameters would change names in checkpoints.
        precise = not self.training and self.kernel.shape[1] == 1
        outputs = (precise_column if precise else torch.addmm)(self.bias, inputs, self.kernel)
        is_relu = activation is torch.relu or activation is nn.functional.relu
        if is_relu and not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            # Nobody else has these outputs; writing others takes a third of the whole layer's time.
            return outputs.relu_()
        return outputs if activation is None else activation(outputs)


class InputFromFeatureColumns(nn.Module):
    """The scope that tf.estimator gives the input layer's variables."""

    def __init__(self, layout: InputLayout) -> None:
        super().__init__()
        self.input_layer = InputLayer(layout)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """See `InputLayer`."""
        return self.input_layer(features)  # type: ignore[no-any-return]


class DNN(nn.Module):
    """Hidden layers on top of the input layer: dense, activation, dropout, batch norm, as tf.estimator orders them.

    Args:
        layout: Of the columns.
        hidden_units: Outputs of each hidden layer.
        logits_dimension: Outputs of the last layer.
        activation_fn: After each hidden layer; a module is copied, and what parameters it has are trained, all layers
            sharing them.
        dropout: Probability of dropping a hidden unit while training, or None.
        batch_norm: Whether each hidden layer's output is normalised.
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
        # A module may be in training mode, or be trained itself: this network's must be nobody else's.
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
        """Logits, float32 ``[N, logits_dimension]``."""
        hidden = self.input_from_feature_columns(features)
        for index in range(self.num_hidden):
            hidden = getattr(self, f"hiddenlayer_{index}")(hidden, self.activation_fn)
            if self.dropout and self.training:
                hidden = dropout(hidden, self.dropout)
            if self.batch_norm:
                hidden = getattr(self, f"batchnorm_{index}")(hidden)
        return self.logits(hidden)  # type: ignore[no-any-return]


class Linear(nn.Module):
    """The scope that tf.estimator gives the linear model's variables."""

    def __init__(self, layout: LinearLayout, logits_dimension: int, sparse_combiner: Combiner = "sum") -> None:
        super().__init__()
        self.linear_model = LinearModel(layout, logits_dimension, sparse_combiner)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """See `LinearModel`."""
        return self.linear_model(features)  # type: ignore[no-any-return]


class WideAndDeep(nn.Module):
    """A linear part, a deep part, or both; their logits are added up.

    Attributes:
        multiply_adds_per_row: What the dense layers and the linear part cost.
        rows_are_independent: Whether no row's logits depend on other rows, except in training.
    """

    variable_separator = "/"

    def __init__(self, *, linear: Linear | None = None, dnn: DNN | None = None) -> None:
        super().__init__()
        self.linear = linear
        self.dnn = dnn
        self.multiply_adds_per_row = sum(dense.kernel.numel() for dense in self.modules() if isinstance(dense, Dense))
        if linear is not None:
            layout = linear.linear_model.layout
            self.multiply_adds_per_row += linear.linear_model.units * (layout.slots + layout.numeric_width)
        self.rows_are_independent = dnn is None or is_elementwise(dnn.activation_fn)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Logits, float32 ``[N, logits_dimension]``."""
        parts = [part(features) for part in (self.linear, self.dnn) if part is not None]
        return parts[0] + parts[1] if len(parts) > 1 else parts[0]  # type: ignore[no-any-return]
