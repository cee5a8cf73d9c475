"""Torch module of the recurrent models: sequence columns, recurrent layers with Keras's variables, and logits.

Attribute names are part of the checkpoint format, as in `networks`: the variables have tf.estimator's names, such as
``rnn_model/rnn/lstm_cell/kernel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from torch_estimator.feature_column.dense_features import InputLayer
from torch_estimator.feature_column.layouts import InputLayout
from torch_estimator.feature_column.sequence_features import SequenceFeatures
from torch_estimator.heads.sequential import SequenceLogits
from torch_estimator.networks import Dense, glorot_uniform

GATES: Mapping[str, int] = {"simple_rnn": 1, "lstm": 4, "gru": 3}
"""Number of gates of each kind of cell."""

RnnCellFn = Callable[[int], nn.Module]


class RecurrentLayer(nn.Module):
    """Recurrent layer of one kind, with the variables, initial values and formulas of Keras's cells.

    The kind is ``"simple_rnn"`` (tanh), ``"lstm"`` or ``"gru"`` (with ``reset_after=True``).

    Attributes:
        kernel: float32 ``[inputs, gates * units]``. Gates are in Keras's order: i, f, c, o (LSTM) or z, r, h (GRU).
        recurrent_kernel: float32 ``[units, gates * units]``.
        bias: float32 ``[gates * units]``; for GRU ``[2, gates * units]``, of the input and of the state.
    """

    def __init__(self, kind: str, inputs: int, units: int) -> None:
        super().__init__()
        self.kind = kind
        self.units = units
        width = GATES[kind] * units
        self.kernel = nn.Parameter(glorot_uniform(inputs, width))
        self.recurrent_kernel = nn.Parameter(nn.init.orthogonal_(torch.empty(units, width)))
        bias = torch.zeros(2, width) if kind == "gru" else torch.zeros(width)
        if kind == "lstm":
            # Start with open forget gates.
            bias[units : 2 * units] = 1.0
        self.bias = nn.Parameter(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of all steps, float32 ``[N, T, units]``, for inputs ``[N, T, inputs]``."""
        state = inputs.new_zeros(1, inputs.shape[0], self.units)
        if self.kind == "lstm":
            return torch.lstm(inputs, (state, state), self.weights(), True, 1, 0.0, self.training, False, True)[0]
        run = torch.gru if self.kind == "gru" else torch.rnn_tanh
        return run(inputs, state, self.weights(), True, 1, 0.0, self.training, False, True)[0]

    def weights(self) -> list[Tensor]:
        """Return the weights as torch takes them: ``w_ih``, ``w_hh``, ``b_ih`` and ``b_hh``, in torch's order of gates.

        They are consecutive in memory, as cuDNN needs them.
        """
        biases = self.bias if self.kind == "gru" else torch.stack([self.bias, torch.zeros_like(self.bias)])
        parts = [self.kernel.T, self.recurrent_kernel.T, *biases]
        if self.kind == "gru":
            parts = [torch.cat([r, z, h]) for z, r, h in (part.chunk(3) for part in parts)]
        together = torch.cat([part.reshape(-1) for part in parts])
        pieces = torch.split(together, [part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class RecurrentNetwork(nn.Module):
    """Recurrent layers on sequence columns, with context columns repeated at each step, and a layer for the logits.

    `units` are the outputs of each layer, or of the only layer. In place of `units` and `cell_type`, `rnn_cell_fn`
    returns for the numbers in each step a module that maps float32 ``[N, T, numbers]`` to ``[N, T, units]``, or to a
    tuple that begins with it. Without `return_sequences` there are logits for the last step only. `varies_in_length` is
    True because batches differ in length.
    """

    variable_separator = "/"
    varies_in_length = True

    def __init__(
        self,
        sequence: InputLayout,
        context: InputLayout | None,
        logits_dimension: int,
        *,
        units: int | Sequence[int] | None,
        cell_type: str = "simple_rnn",
        rnn_cell_fn: RnnCellFn | None = None,
        return_sequences: bool = False,
    ) -> None:
        super().__init__()
        self.return_sequences = return_sequences
        self.sequence_features = SequenceFeatures(sequence)
        self.dense_features = None if context is None else InputLayer(context, "dense_features")
        width = sequence.width + (0 if context is None else context.width)
        # Keras nests its cells differently for one layer given as a number, one in a list, and several.
        if rnn_cell_fn is not None:
            recurrent = rnn_cell_fn(width)
            self.rnn_model = nn.ModuleDict({"rnn": recurrent})
            with torch.no_grad():
                width = _outputs(recurrent, torch.zeros(1, 1, width)).shape[-1]
        elif isinstance(units, int):
            cell = RecurrentLayer(cell_type, width, units)
            self.rnn_model = nn.ModuleDict({cell_type: nn.ModuleDict({f"{cell_type}_cell": cell})})
            width = units
        else:
            cells = {}
            for place, size in enumerate(units or ()):
                cells[f"{cell_type}_cell_{place}" if place else f"{cell_type}_cell"] = RecurrentLayer(
                    cell_type, width, size
                )
                width = size
            named = nn.ModuleDict(cells)
            self.rnn_model = nn.ModuleDict(
                {"rnn": named if len(cells) == 1 else nn.ModuleDict({"stacked_rnn_cells": named})}
            )
        self.rnn_model["logits"] = Dense(width, logits_dimension)

    def recurrent_layers(self) -> list[nn.Module]:
        """Return the recurrent layers, in the order in which they are applied."""
        layers = [layer for layer in self.rnn_model.modules() if isinstance(layer, RecurrentLayer)]
        return list(layers) or [self.rnn_model["rnn"]]

    def forward(self, features: Mapping[str, Tensor]) -> Tensor | SequenceLogits:
        """Return the logits of `N` rows, float32 ``[N, logits_dimension]``, or a `SequenceLogits`."""
        steps, lengths = self.sequence_features(features)
        if self.dense_features is not None:
            context = self.dense_features(features)
            steps = torch.cat([steps, context.unsqueeze(1).expand(-1, steps.shape[1], -1)], -1)
        return self.logits_of(steps, lengths)

    def logits_of(self, steps: Tensor, lengths: Tensor) -> Tensor | SequenceLogits:
        """Return the logits for the inputs of all steps, float32 ``[N, T, width]``, and the lengths of sequences.

        After its end a sequence keeps its last output, as with a mask in Keras. Sequences are padded at the end, so
        padding cannot change what comes before it.
        """
        for layer in self.recurrent_layers():
            steps = _outputs(layer, steps)
        at = (lengths - 1).clamp(min=0).unsqueeze(1)
        if self.return_sequences:
            places = torch.arange(steps.shape[1], device=steps.device)
            at = torch.minimum(places, at)
        outputs = steps.gather(1, at.unsqueeze(2).expand(-1, -1, steps.shape[2]))
        outputs = torch.where((lengths > 0).reshape(-1, 1, 1), outputs, 0.0)
        logits = self.rnn_model["logits"](outputs.flatten(0, 1))
        if not self.return_sequences:
            return logits  # type: ignore[no-any-return]
        return SequenceLogits(logits.unflatten(0, outputs.shape[:2]), places < lengths.unsqueeze(1))


def _outputs(layer: nn.Module, steps: Tensor) -> Tensor:
    outputs = layer(steps)
    first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return first
