"""Capture of the outputs of a model's inner layers. Layers are found by name; forward hooks record their outputs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.dense_features import InputLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedLayers:
    """Inner layers whose outputs are added to the predictions; see `torch_estimator.forward_layers`.

    `layers` maps the key of each output to a layer name that `find_layer` accepts. The export signature named
    `signature` returns these outputs instead of predictions; without one, the signature of the predictions has both.
    """

    layers: Mapping[str, str]
    signature: str | None = None


def all_layers(forwarded: Iterable[ForwardedLayers]) -> dict[str, str]:
    """Merge `ForwardedLayers` into one dict from output key to layer name; two equal keys are an InvalidValueError."""
    layers: dict[str, str] = {}
    for group in forwarded:
        for key, name in group.layers.items():
            if key in layers:
                raise InvalidValueError(
                    f"Two layers, {layers[key]!r} and {name!r}, are to be given as {key!r}; give one another key."
                )
            layers[key] = name
    return layers


def check_new_keys(what: str, more: Iterable[str], predictions: Mapping[Any, Any]) -> None:
    """Raise InvalidValueError if an output that is added to the predictions has the key of a prediction."""
    for key in more:
        if key in predictions:
            raise InvalidValueError(
                f"The {what} {key!r} cannot be forwarded, because a prediction is called that; the predictions are "
                f"{', '.join(map(str, predictions))}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Reference to a module whose output is captured, or to a range of columns (first, end) of that output.

    The path is dotted as in `torch.nn.Module.named_modules`, or the name of a Keras layer.
    """

    path: str
    columns: tuple[int, int] | None = None

    def part_of(self, output: Tensor) -> Tensor:
        """Return this layer's columns of ``output``, the output of the module at `path`."""
        return output if self.columns is None else output[:, self.columns[0] : self.columns[1]]


def find_layer(module: nn.Module, name: str) -> Layer:
    """Find a layer by its dotted path, by the name of a Keras layer, or by the name of a feature column.

    If the module has no such layer, raise an InvalidValueError that lists similar names.
    """
    paths = list(inner_modules(module))
    # Try the name also with the prefix that the model sets, which is the attribute that holds the user's module.
    # Users name the layers of their module without that attribute.
    for path in (name, getattr(module, "layer_prefix", "") + name):
        if path in paths:
            return Layer(path=path)
    columns = dict(_feature_columns(module))
    if name in columns:
        return columns[name]
    near = difflib.get_close_matches(name, [*paths, *columns], n=5, cutoff=0.4)
    near += [path for path in paths if path.rpartition(".")[2] == name.rpartition(".")[2] and path not in near][:5]
    kind = type(module).__name__
    known = near or [*columns, *paths][:10]
    if not known:
        raise InvalidValueError(f"The model {kind} has no layer {name!r}; it has no inner layers at all.")
    raise InvalidValueError(f"The model {kind} has no layer {name!r}; names near it are {', '.join(known)}.")


def inner_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Return all submodules of `module` by dotted path, and the layers of a wrapped Keras model by name."""
    found = {path: inner for path, inner in module.named_modules() if path}
    waiting = list(getattr(getattr(module, "unwrapped", None), "layers", ()))
    while waiting:
        layer = waiting.pop(0)
        found.setdefault(str(layer.name), layer)
        waiting += getattr(layer, "layers", ())
    return found


def _feature_columns(module: nn.Module) -> Iterator[tuple[str, Layer]]:
    for path, layer in module.named_modules():
        if isinstance(layer, InputLayer) and path:
            for part in layer.layout.parts:
                yield part.name, Layer(path=path, columns=(part.start, part.stop))


class LayerOutputs:
    """Context manager that captures the outputs of layers while their module runs.

    If a layer runs several times in one forward pass, its last output counts. `layers` maps the key of each output to a
    layer name that `find_layer` accepts.
    """

    def __init__(self, module: nn.Module, layers: Mapping[str, str]) -> None:
        self._module = module
        self._names = dict(layers)
        self._layers = {key: find_layer(module, name) for key, name in layers.items()}
        self._captured: dict[str, Any] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> LayerOutputs:
        modules = inner_modules(self._module)
        for path in {layer.path for layer in self._layers.values()}:
            self._handles.append(modules[path].register_forward_hook(self._capture(path)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def hooks(self) -> int:
        """Number of forward hooks that this object has currently registered on layers."""
        return len(self._handles)

    def take(self) -> dict[str, Tensor]:
        """Return the captured outputs of the last forward pass by key, and clear them.

        Raise an InvalidValueError if a layer did not run, and an InvalidTypeError if its output is not a tensor.
        """
        outputs = {key: self._output(key, layer) for key, layer in self._layers.items()}
        self._captured.clear()
        return outputs

    def _capture(self, path: str) -> Any:
        def capture(module: nn.Module, inputs: Any, output: Any) -> None:
            self._captured[path] = output

        return capture

    def _output(self, key: str, layer: Layer) -> Tensor:
        name = self._names[key]
        if layer.path not in self._captured:
            raise InvalidValueError(f"The layer {name!r}, to be given as {key!r}, was not run with the model.")
        output = self._captured[layer.path]
        if not isinstance(output, torch.Tensor):
            raise InvalidTypeError(
                f"The layer {name!r}, to be given as {key!r}, must give a tensor, but gave a {type(output).__name__}; "
                "name a layer inside of it."
            )
        return layer.part_of(output)
