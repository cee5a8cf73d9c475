"""Wrapper of a Keras model as a torch module, with parameter names that are the same in every process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keras.src.utils.naming import to_snake_case
from torch import nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.models.keras.copying import model_variables

_WEIGHTED = {"features", "sample_weights"}
_SEEDS = "seed_generator"


class KerasOutputs(NamedTuple):
    """Output of a Keras model, with the inputs and sample weights that the loss and the metrics may need."""

    values: Any
    inputs: Any
    sample_weights: Any


class KerasModule(nn.Module):
    """Module that calls a built and compiled Keras model; its parameters are the model's weights and random seeds."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # Store the model in a tuple, so that torch does not register the model as a submodule.
        # Otherwise every parameter would be listed twice.
        self._held = (model,)
        variables = model_variables(model)
        for name, variable in zip(variable_names(model, variables), variables, strict=True):
            self.register_parameter(name, variable._value)

    @property
    def unwrapped(self) -> Any:
        return self._held[0]

    def inputs_of(self, features: Any) -> Any:
        """Return the features for the Keras model, without sample weights."""
        return features["features"] if _is_weighted(features) else features

    def forward(self, features: Any) -> KerasOutputs:
        """Call the Keras model, with ``training=True`` if this module is in training mode."""
        model = self.unwrapped
        inputs = _as_model_inputs(model, self.inputs_of(features))
        values = model(inputs, training=self.training) if model._call_has_training_arg else model(inputs)
        return KerasOutputs(values, inputs, features["sample_weights"] if _is_weighted(features) else None)


def _is_weighted(features: Any) -> bool:
    return isinstance(features, Mapping) and set(features) == _WEIGHTED


def _as_model_inputs(model: Any, features: Any) -> Any:
    """Arrange features in the structure that the Keras model takes: a dict, a list or a single tensor."""
    functional = getattr(model, "_functional", None) or model
    structure = getattr(functional, "_inputs_struct", None)
    if structure is None:
        return features
    if isinstance(structure, Mapping):
        names = list(structure)
        given = features if isinstance(features, Mapping) else dict(zip(names, _several(features), strict=False))
        return {name: _named(model, given, name) for name in names}
    if isinstance(structure, list | tuple):
        if isinstance(features, Mapping):
            return [_named(model, features, tensor.name) for tensor in functional.inputs]
        return _several(features)
    if isinstance(features, Mapping):
        # Accept a single feature of any name, since Keras generates the name of a Sequential model's input.
        only = next(iter(features.values())) if len(features) == 1 else None
        return only if only is not None else _named(model, features, functional.inputs[0].name)
    return features[0] if isinstance(features, tuple) and len(features) == 1 else features


def _several(features: Any) -> list[Any]:
    return list(features) if isinstance(features, tuple | list) else [features]


def _named(model: Any, features: Mapping[str, Any], name: str) -> Any:
    if name not in features:
        raise InvalidValueError(
            f"The Keras model {model.name!r} takes an input {name!r}, which is not among the features "
            f"{sorted(features)}; call them by the names of the model's inputs."
        )
    return features[name]


def variable_names(model: Any, variables: Sequence[Any]) -> list[str]:
    """Return a name for each Keras variable: its path, in which layers without a given name are numbered per model.

    Keras numbers layers without a given name per process: the third dense layer of a process is ``dense_2``, whichever
    model it belongs to. With numbers within the model, the names in a checkpoint are the same in another process.
    """
    stable = _StableNames(model._flatten_layers())
    names: list[str] = []
    for variable in variables:
        name = "/".join(map(stable, variable.path.replace(".", "_").split("/")))
        names.append(_unique(name, names))
    return names


class _StableNames:
    """Map from Keras' automatic layer names, numbered per process, to names numbered within one model."""

    def __init__(self, layers: Iterable[Any]) -> None:
        automatic, given = [], set()
        for layer in layers:
            base = to_snake_case(type(layer).__name__)
            if re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
                automatic.append((layer.name, base))
            else:
                given.add(layer.name)
        self._taken = set(given)
        self._names: dict[str, str] = {}
        for name, base in automatic:
            if name not in self._names:
                self._names[name] = self._next(base)

    def __call__(self, part: str) -> str:
        """Return the new name for one part of a Keras variable's path; given names stay as they are."""
        if part not in self._names and re.fullmatch(rf"{_SEEDS}(_\d+)?", part):
            self._names[part] = self._next(_SEEDS)
        return self._names.get(part, part)

    def _next(self, base: str) -> str:
        name = _unique(base, self._taken)
        self._taken.add(name)
        return name


def _unique(name: str, taken: Iterable[str]) -> str:
    known, candidate, number = set(taken), name, 0
    while candidate in known:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
