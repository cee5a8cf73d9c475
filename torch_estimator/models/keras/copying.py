"""Loading of Keras models from files, and copying of compiled models.

A copy has the layers, weights, random seeds, optimizer (with its state), loss and metrics of the original. Every
training and evaluation works on a copy, because the user's model must not change.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import torch

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.files import reason

# Arguments that Keras adds to the configuration of every layer, even if its constructor does not accept them.
_ADDED = ("name", "trainable", "dtype")
_COMPILED_WITH = ("loss", "loss_weights", "metrics", "weighted_metrics")

# First version of Keras whose safe mode refuses all code in a file.
_SAFE_SINCE = (3, 12)


def load_keras_model(path: str | os.PathLike[str], custom_objects: Mapping[str, Any] | None) -> Any:
    """Load a Keras model from a file that ``model.save("name.keras")`` wrote. Code in the file is never run.

    Raise an InvalidValueError if the file is of another kind, cannot be read, or contains code.
    """
    url = files.as_url(path)
    if not url.endswith(".keras"):
        raise InvalidValueError(
            f"keras_model_path must name a .keras file, as model.save writes, but got {url!r}; others may hold code."
        )
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version < _SAFE_SINCE:
        raise InvalidValueError(
            f"keras_model_path needs Keras 3.12 or newer, whose safe mode is one, but this is {keras.__version__}; "
            "update it, or make the model in Python and give keras_model."
        )
    with tempfile.TemporaryDirectory(prefix="torch-estimator-keras-") as folder:
        local = os.path.join(folder, "model.keras")
        try:
            with open(local, "wb") as file:
                file.write(files.read_bytes(url))
        except OSError as error:
            raise InvalidValueError(f"{url} cannot be read: {files.reason(error)}.") from error
        try:
            return keras.saving.load_model(local, custom_objects=dict(custom_objects or {}), safe_mode=True)
        except Exception as error:
            raise InvalidValueError(
                f"{url} cannot be loaded as a Keras model ({type(error).__name__}: {files.reason(error)}); code in the "
                "file is not run, so give classes and functions of your own in custom_objects."
            ) from error


class KerasBlueprint:
    """Factory of copies of a built and compiled Keras model, with the state that it had when the factory was created.

    `custom_objects` are classes and functions that the model's layers need, by name. The classes of the layers, and of
    their attributes, are found without this. Raise an InvalidTypeError if the model cannot be rebuilt from its
    configuration.
    """

    def __init__(self, model: Any, custom_objects: Mapping[str, Any]) -> None:
        self._objects = {**_objects_of(model), **custom_objects}
        self._original = _copy(model, self._objects)

    def build(self) -> Any:
        """Return a new copy of the Keras model."""
        return _copy(self._original, self._objects)


def model_variables(model: Any) -> list[Any]:
    """Return the weights and random seeds of a Keras model, but not the variables of its metrics."""
    of_metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in of_metrics]


def _copy(model: Any, objects: Mapping[str, Any]) -> Any:
    try:
        with _without_side_effects():
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
    _drop_unknown_arguments(config, objects)
    # Turn safe mode off, since the configuration comes from the user's model in memory and not from a file.
    made = keras.saving.deserialize_keras_object(config, custom_objects=dict(objects), safe_mode=False)
    for ours, theirs in zip(made._flatten_layers(), model._flatten_layers(), strict=True):
        ours.trainable = theirs.trainable
    return made


def _drop_unknown_arguments(config: Any, objects: Mapping[str, Any]) -> None:
    """Remove arguments that Keras adds to the configuration of a layer whose constructor does not accept them."""
    if isinstance(config, list | tuple):
        for part in config:
            _drop_unknown_arguments(part, objects)
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
        _drop_unknown_arguments(part, objects)


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
    """Return a new Keras optimizer with the settings of the given optimizer, but without its state."""
    settings = optimizer.get_config()
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, types.FunctionType | types.MethodType | functools.partial):
        # Pass on a learning rate that is a function, because get_config() does not return functions.
        settings["learning_rate"] = rate
    with keras.saving.custom_object_scope(dict(objects)):
        return type(optimizer).from_config(settings)


def _fresh(value: Any) -> Any:
    """Copy an argument of Keras' ``compile``: create new metrics, since metrics have state; keep everything else."""
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
    """Return the user's own classes and functions that the model's layers and optimizer use, by name."""
    found: dict[str, Any] = {}
    for layer in (*model._flatten_layers(), model.optimizer):
        for value in (layer, *vars(layer).values()):
            named: Callable[..., Any] = value if isinstance(value, types.FunctionType) else type(value)
            if named.__module__.partition(".")[0] not in ("keras", "torch", "builtins", "numpy"):
                found.setdefault(named.__name__, named)
    return found


@contextmanager
def _without_side_effects() -> Iterator[None]:
    """Restore Python's random state after the ``with`` block, and silence warnings inside it.

    Keras draws seeds for new layers, but the copied seeds replace them. Keras also warns about lambdas, which come from
    the user's model and are safe.
    """
    state = random.getstate()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(state)
