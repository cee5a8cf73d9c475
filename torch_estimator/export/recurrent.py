"""Export of `torch.nn.RNN` as ONNX's operator RNN, which takes sequences of any length.

torch's exporter has translations for LSTM and GRU, but unrolls an RNN to the length of the example. So the modules of a
model get another `forward` while it is exported. It calls the operator `rnn_layer`, which stays one node.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


@torch.library.custom_op("torch_estimator::rnn_layer", mutates_args=())
def rnn_layer(x: Tensor, hidden: Tensor, w: Tensor, r: Tensor, b: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last states of one layer of an RNN. Its arguments are those of ONNX's operator.

    Shapes are ``[length, N, width]`` for `x`, ``[directions, N, size]`` for states, ``[directions, size, width]`` for
    the weights `w` of the input, ``[directions, size, size]`` for the weights `r` of the state, ``[directions, 2 *
    size]`` for both biases `b`, and ``[length, directions, N, size]`` for the outputs. `activation` is ``"Tanh"`` or
    ``"Relu"``.
    """
    raise NotImplementedError("rnn_layer is for exports only")


@rnn_layer.register_fake
def _(x: Tensor, hidden: Tensor, w: Tensor, r: Tensor, b: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], hidden.shape[0], x.shape[1], hidden.shape[2]), torch.empty_like(hidden)


def translations() -> dict[Any, Callable[..., Any]]:
    """Return the ONNX nodes of the operator, in the form that `torch.onnx.export` takes."""
    from onnxscript import opset21 as op

    def translated(x: Any, hidden: Any, w: Any, r: Any, b: Any, activation: str) -> Any:
        directions, _, size = hidden.shape
        direction = "bidirectional" if directions == 2 else "forward"
        activations = [activation] * directions
        return op.RNN(x, w, r, b, None, hidden, activations=activations, direction=direction, hidden_size=size)

    return {torch.ops.torch_estimator.rnn_layer.default: translated}


@contextlib.contextmanager
def exported_rnns(module: nn.Module) -> Iterator[None]:
    """Let the RNNs of a module call `rnn_layer` in a ``with`` block."""
    rnns = [one for one in module.modules() if isinstance(one, nn.RNN)]
    for rnn in rnns:
        rnn.forward = functools.partial(_forward, rnn)  # type: ignore[assignment]
    try:
        yield
    finally:
        for rnn in rnns:
            del rnn.forward


def _forward(rnn: nn.RNN, x: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what ``rnn(x, hidden)`` returns in evaluation."""
    if x.dim() != 3:
        raise ValueError(f"an exported nn.RNN takes a batch of sequences, but got {x.dim()} dimensions")
    x = x.transpose(0, 1) if rnn.batch_first else x
    directions = 2 if rnn.bidirectional else 1
    if hidden is None:
        hidden = x.new_zeros(rnn.num_layers * directions, x.shape[1], rnn.hidden_size)
    states = []
    for layer in range(rnn.num_layers):
        names = [f"l{layer}{suffix}" for suffix in ("", "_reverse")[:directions]]
        w, r = (torch.stack([getattr(rnn, f"weight_{part}_{name}") for name in names]) for part in ("ih", "hh"))
        if rnn.bias:
            parts = [torch.stack([getattr(rnn, f"bias_{part}_{name}") for name in names]) for part in ("ih", "hh")]
            b = torch.cat(parts, 1)
        else:
            b = x.new_zeros(directions, 2 * rnn.hidden_size)
        first = hidden[layer * directions : (layer + 1) * directions]
        outputs, last = rnn_layer(x, first, w, r, b, rnn.nonlinearity.capitalize())
        states.append(last)
        x = outputs.transpose(1, 2).flatten(2)
    return x.transpose(0, 1) if rnn.batch_first else x, torch.cat(states)
