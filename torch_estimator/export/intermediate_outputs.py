"""Inner layers' outputs in the graph, noted while a model is emitted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.hash_chains import select
from torch_estimator.export.heads import Prediction
from torch_estimator.inner_layers import LayerOutputs, find_layer

_Outputs = Callable[[Any], Mapping[str, Tensor]]


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

    def note(self, graph: GraphBuilder, paths: Collection[str], tensor: str, width: int) -> None:
        """Notes the output of the layers at `paths`, float32 ``[N, width]``."""
        for key, layer in self._layers.items():
            if layer.path in paths:
                start, stop = layer.columns or (0, width)
                part = select(graph, tensor, range(start, stop), width)
                self._outputs[key] = Prediction(tensor=part, dtype="DT_FLOAT", row_shape=(stop - start,))

    def lower(self, emit: Callable[[Callable[[_Outputs], _Outputs]], dict[str, Prediction]]) -> dict[str, Prediction]:
        """Notes the layers that are still to be noted while a module runs.

        Args:
            emit: Given a function that adds those layers to what a function makes of the module's outputs; emits a
                module with the function that it makes.

        Returns:
            What `emit` returned, without the layers.
        """
        open_ = {_place(key): name for key, name in self._names.items() if key not in self._outputs}
        if not open_:
            return emit(lambda outputs: outputs)
        with LayerOutputs(self._module, open_) as layers:
            found = emit(lambda outputs: lambda made: {**outputs(made), **layers.take()})
        for key in self._names:
            if _place(key) in found:
                self._outputs[key] = found.pop(_place(key))
        return found

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


def _place(key: str) -> str:
    """A key beside those of the predictions."""
    return f"{key} (inner layer)"
