"""Inner layers' outputs in the graph, noted while a model is emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.hash_chains import select
from torch_estimator.export.heads import Prediction, dtype_name
from torch_estimator.inner_layers import LayerOutputs, find_layer


class Taps:
    """Notes the outputs of some layers.

    Args:
        module: The model.
        layers: Key of the output -> name of the layer.

    Raises:
        InvalidValueError: The model has no such layer.
    """

    def __init__(self, module: nn.Module, layers: Mapping[str, str]) -> None:
        self._module = module
        self._names = dict(layers)
        self._layers = {key: find_layer(module, name) for key, name in layers.items()}
        self._outputs: dict[str, Prediction] = {}

    def note(self, graph: GraphBuilder, paths: Iterable[str], tensor: str, width: int) -> None:
        """Notes the output of the layers at `paths`, float32 ``[N, width]``."""
        for key, layer in self._layers.items():
            if layer.path not in paths:
                continue
            start, stop = layer.columns or (0, width)
            self._outputs[key] = Prediction(
                tensor=select(graph, tensor, range(start, stop), width), dtype="DT_FLOAT", row_shape=(stop - start,)
            )

    def run(self, call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Runs the model; returns its output and then those of the layers."""
        if not self._layers:
            return (call(),)
        with LayerOutputs(self._module, self._names) as outputs:
            result = call()
            return (result, *outputs.take().values())

    def note_all(self, tensors: Sequence[str], examples: Sequence[torch.Tensor]) -> None:
        """Notes the tensors of what `run` returned beside the output; `examples` are such outputs."""
        for key, tensor, example in zip(self._layers, tensors, examples, strict=True):
            if example.dim() == 0:
                raise ExportError(f"the layer {self._names[key]!r} gives a single number, not one row per example.")
            self._outputs[key] = Prediction(
                tensor=tensor, dtype=dtype_name(example.dtype, key), row_shape=tuple(example.shape[1:])
            )

    def outputs(self) -> dict[str, Prediction]:
        """What was noted, by key in the order of the layers.

        Raises:
            ExportError: A layer was not noted.
        """
        for key, name in self._names.items():
            if key not in self._outputs:
                raise ExportError(
                    f"the layer {name!r}, to be given as {key!r}, has no place of its own in the exported graph; name "
                    "a hidden layer, the input layer or one of its columns."
                )
        return {key: self._outputs[key] for key in self._names}
