"""Copies of a compiled Keras model: layers, weights, random seeds, optimizer with its state, loss and metrics."""

from __future__ import annotations

import functools
import inspect
import random
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import torch

from torch_estimator.errors import InvalidTypeError
from torch_estimator.files import reason

_ADDED = ("name", "trainable", "dtype")
_COMPILED_WITH = ("loss", "loss_weights", "metrics", "weighted_metrics")


class KerasBlueprint:
    """Makes copies of a model as it was when it was given.

    Args:
        model: Built and compiled.
        custom_objects: Classes and functions that its layers are made of, by name; those of the layers themselves are
            known.

    Raises:
        InvalidTypeError: The model cannot be made again from its configuration.
    """

    def __init__(self, model: Any, custom_objects: Mapping[str, Any]) -> None:
        self._objects = {**_objects_of(model), **custom_objects}
        self._original = _copy(model, self._objects)

    def build(self) -> Any:
        """Returns a copy."""
        return _copy(self._original, self._objects)


def model_variables(model: Any) -> list[Any]:
    """The variables of a model that make it what it is: weights and random seeds, not the values of metrics."""
    of_metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in of_metrics]


def _copy(model: Any, objects: Mapping[str, Any]) -> Any:
    try:
        with _quietly():
            made = _architecture(model, objects)
            _assign(model_variables(made), model_variables(model))
            for ours, theirs in zip(model_variables(made), model_variables(model), strict=True):
                ours.trainable = theirs.trainable
            _compile(made, model, objects)
    except Exception as error:
        raise InvalidTypeError(
            f"The Keras model {model.name!r} cannot be copied, which each training and evaluation needs "
            f"({type(error).__name__}: {reason(error)}); let its get_config() return the arguments of its constructor, "
            "and give its own classes and functions in custom_objects."
        ) from error
    return made


def _architecture(model: Any, objects: Mapping[str, Any]) -> Any:
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    _leave_out_unknown(config, objects)
    # The configuration was made of a model in memory a moment ago: its functions are the user's own.
    made = keras.saving.deserialize_keras_object(config, custom_objects=dict(objects), safe_mode=False)
    for ours, theirs in zip(made._flatten_layers(), model._flatten_layers(), strict=True):
        ours.trainable = theirs.trainable
    return made


def _leave_out_unknown(config: Any, objects: Mapping[str, Any]) -> None:
    """Leaves out what Keras adds to the arguments of a class of the user's whose constructor does not take it."""
    if isinstance(config, list | tuple):
        for part in config:
            _leave_out_unknown(part, objects)
    if not isinstance(config, dict):
        return
    kind = objects.get(config.get("class_name", ""))
    inner = config.get("config")
    if isinstance(kind, type) and isinstance(inner, dict):
        parameters = inspect.signature(kind).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            for name in _ADDED:
                if name not in parameters:
                    inner.pop(name, None)
    for part in config.values():
        _leave_out_unknown(part, objects)


def _compile(made: Any, model: Any, objects: Mapping[str, Any]) -> None:
    given = model._compile_config.config
    optimizer = _same_optimizer(model.optimizer, objects)
    keras.Model.compile(
        made,
        optimizer=optimizer,
        auto_scale_loss=False,
        **{name: _fresh(given.get(name)) for name in _COMPILED_WITH},
    )
    optimizer.build(made.trainable_variables)
    if model.optimizer.built:
        _assign(optimizer.variables, model.optimizer.variables)


def _same_optimizer(optimizer: Any, objects: Mapping[str, Any]) -> Any:
    """An optimizer with the same settings, without its state."""
    settings = optimizer.get_config()
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, types.FunctionType | types.MethodType | functools.partial):
        # Nothing is known of it but that it can be called.
        settings["learning_rate"] = rate
    with keras.saving.custom_object_scope(dict(objects)):
        return type(optimizer).from_config(settings)


def _fresh(value: Any) -> Any:
    """Metrics keep numbers, so each copy needs its own; losses and names are shared."""
    if isinstance(value, Mapping):
        return {key: _fresh(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_fresh(one) for one in value]
    if isinstance(value, keras.metrics.Metric):
        return type(value).from_config(value.get_config())
    return value


def _assign(targets: list[Any], sources: list[Any]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.assign(source.value.detach())


def _objects_of(model: Any) -> dict[str, Any]:
    """Classes and functions of the user's that layers hold, by the names that configurations give them."""
    found: dict[str, Any] = {}
    for layer in (*model._flatten_layers(), model.optimizer):
        for value in (layer, *vars(layer).values()):
            named: Callable[..., Any] = value if isinstance(value, types.FunctionType) else type(value)
            if named.__module__.partition(".")[0] not in ("keras", "torch", "builtins", "numpy"):
                found.setdefault(named.__name__, named)
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Keras draws seeds, soon overwritten, from Python's generator, and warns of lambdas that are the user's own."""
    state = random.getstate()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(state)
