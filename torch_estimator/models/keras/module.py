"""A Keras model as a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.models.keras.copying import model_variables
from torch_estimator.models.keras.names import variable_names

_WEIGHTED = {"features", "sample_weights"}


class KerasOutputs(NamedTuple):
    """What a Keras model gives, beside what its loss may want to see."""

    values: Any
    inputs: Any
    sample_weights: Any


class KerasModule(nn.Module):
    """Calls a Keras model; its weights, random seeds included, are the parameters of the module.

    Args:
        model: Built and compiled.

    Attributes:
        unwrapped: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # In a tuple, so that torch does not see the same parameters once more under Keras' own names.
        self._held = (model,)
        variables = model_variables(model)
        for name, variable in zip(variable_names(model, variables), variables, strict=True):
            self.register_parameter(name, variable._value)

    @property
    def unwrapped(self) -> Any:
        return self._held[0]

    def inputs_of(self, features: Any) -> Any:
        """The features without sample weights."""
        return features["features"] if _is_weighted(features) else features

    def forward(self, features: Any) -> KerasOutputs:
        """Runs the model in the mode of this module."""
        model = self.unwrapped
        inputs = _arranged(model, self.inputs_of(features))
        values = model(inputs, training=self.training) if model._call_has_training_arg else model(inputs)
        return KerasOutputs(values, inputs, features["sample_weights"] if _is_weighted(features) else None)


def _is_weighted(features: Any) -> bool:
    return isinstance(features, Mapping) and set(features) == _WEIGHTED


def _arranged(model: Any, features: Any) -> Any:
    """Features in the structure that the model was made with."""
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
        # A Sequential model's input seldom has a name that its author knows.
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
