"""Outputs of a model's inner layers, taken while it runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.input_layer import InputLayer
from torch_estimator.models.from_module.column_module import ColumnsThenModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer, or a stretch of its output's columns.

    Attributes:
        path: As in `named_modules`, or the name of a Keras layer.
        columns: First column and end, or None for all.
    """

    path: str
    columns: tuple[int, int] | None = None

    def part_of(self, output: Tensor) -> Tensor:
        """What it gives, from the output of the module at `path`."""
        return output if self.columns is None else output[:, self.columns[0] : self.columns[1]]


def find_layer(module: nn.Module, name: str) -> Layer:
    """Finds a layer by its dotted path, its name in a Keras model, or the name of a feature column of a network.

    Raises:
        InvalidValueError: There is none; the message has names near it.
    """
    paths = list(inner_modules(module))
    # A user's own module is one level below the columns in front of it.
    for path in (name, f"module.{name}") if isinstance(module, ColumnsThenModule) else (name,):
        if path in paths:
            return Layer(path=path)
    columns = dict(_columns(module))
    if name in columns:
        return columns[name]
    near = difflib.get_close_matches(name, [*paths, *columns], n=5, cutoff=0.4)
    near += [path for path in paths if path.rpartition(".")[2] == name.rpartition(".")[2] and path not in near][:5]
    kind = type(module).__name__
    known = near or [*columns, *paths][:10]
    if not known:
        raise InvalidValueError(f"The model {kind} has no layer {name!r}; it has no inner layers at all.")
    raise InvalidValueError(f"The model {kind} has no layer {name!r}; names near it are {', '.join(known)}.")


class LayerOutputs:
    """Notes the outputs of layers of a module while it is used as a context manager.

    A layer that runs several times in one pass is noted at its last time.

    Args:
        module: Runs.
        layers: Key of the output -> name of the layer.

    Raises:
        InvalidValueError: The module has no such layer.
    """

    def __init__(self, module: nn.Module, layers: Mapping[str, str]) -> None:
        self._module = module
        self._names = dict(layers)
        self._layers = {key: find_layer(module, name) for key, name in layers.items()}
        self._noted: dict[str, Any] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> LayerOutputs:
        modules = inner_modules(self._module)
        for path in {layer.path for layer in self._layers.values()}:
            self._handles.append(modules[path].register_forward_hook(self._noting(path)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def hooks(self) -> int:
        """How many forward hooks it has on the module now."""
        return len(self._handles)

    def take(self) -> dict[str, Tensor]:
        """The outputs of the last pass by key.

        Raises:
            InvalidValueError: A layer did not run.
            InvalidTypeError: A layer's output is not a tensor.
        """
        outputs = {key: self._output(key, layer) for key, layer in self._layers.items()}
        self._noted.clear()
        return outputs

    def _noting(self, path: str) -> Any:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            self._noted[path] = output

        return note

    def _output(self, key: str, layer: Layer) -> Tensor:
        name = self._names[key]
        if layer.path not in self._noted:
            raise InvalidValueError(f"The layer {name!r}, to be given as {key!r}, was not run with the model.")
        output = self._noted[layer.path]
        if not isinstance(output, torch.Tensor):
            raise InvalidTypeError(
                f"The layer {name!r}, to be given as {key!r}, must give a tensor, but gave a {type(output).__name__}; "
                "name a layer inside of it."
            )
        return layer.part_of(output)


def inner_modules(module: nn.Module) -> dict[str, nn.Module]:
    """All layers inside of a module by path, and those of the Keras model that it may hold by name."""
    found = {path: inner for path, inner in module.named_modules() if path}
    waiting = list(getattr(getattr(module, "unwrapped", None), "layers", ()))
    while waiting:
        layer = waiting.pop(0)
        found.setdefault(str(layer.name), layer)
        waiting += getattr(layer, "layers", ())
    return found


def _columns(module: nn.Module) -> Iterator[tuple[str, Layer]]:
    for path, layer in module.named_modules():
        if isinstance(layer, InputLayer) and path:
            for part in layer.layout.parts:
                yield part.name, Layer(path=path, columns=(part.start, part.stop))
