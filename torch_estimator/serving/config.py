"""Settings of the server in a YAML file.

Such a file looks like this::

    models:
      - name: census
        path: runs/census/export/census
        policy: latest(2)
        labels: {stable: 3}
    port: 8501
    max_batch: 128

The keys are the fields of `ServingOptions` and, for each model, of `ServedModel`. Paths are relative to the directory
in which the server is started, as on the command line.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.json_text import shortened
from torch_estimator.serving.options import ServedModel, ServingOptions, VersionPolicy

if TYPE_CHECKING:
    from yaml import Node

_Made = TypeVar("_Made")

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def settings_of(options: Mapping[str, Any]) -> ServingOptions:
    """Return the settings of a command line and of the file that its option `config` names.

    The registry `default_registry` is served if neither names a model or a registry.
    """
    policy, path = VersionPolicy.parse(options["versions"]), options["config"]
    values = {} if path is None else read_config(path)
    # Options have the names of the settings, and are None unless they are given.
    values |= {one.name: options[one.name] for one in fields(ServingOptions) if options.get(one.name) is not None}
    if "host" in values:
        # An address of IPv6 is often written in brackets, as in URLs.
        values["host"] = values["host"].strip("[]")
    models = (*values.get("models", ()), *(_named(text, policy) for text in options["model"]))
    if not models and values.get("registry") is None:
        values["registry"] = options.get("default_registry")
    return ServingOptions(**{"policy": policy, **values, "models": models})


def _named(text: str, policy: VersionPolicy) -> ServedModel:
    name, separator, path = text.partition("=")
    if not name or (separator and not path):
        raise InvalidValueError(f"--model takes NAME=DIR, such as census=runs/census/export/census, but got {text!r}.")
    return ServedModel(name=name, path=path or None, policy=policy)


def read_config(path: str) -> dict[str, Any]:
    """Return the settings in a YAML file, as arguments of `ServingOptions`; errors name the line."""
    try:
        import yaml
    except ImportError as error:
        raise InvalidValueError("--config needs PyYAML: pip install 'torch-estimator[serve]'.") from error
    try:
        text = files.read_text(path)
        # The nodes know their lines, which the values do not.
        root, content = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{path} cannot be read: {files.reason(error)}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # The message of a YAMLError has several lines.
        raise InvalidValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if root is None:
        return {}
    return _fields(ServingOptions, root, content, path)


def _fields(kind: type, node: Node, content: Any, path: str) -> dict[str, Any]:
    """Return the arguments of a dataclass in a mapping of YAML."""
    where = _place(node, path)
    if not isinstance(content, dict):
        raise InvalidValueError(f"{where} must have keys and values, but has {shortened(content)}.")
    hints = typing.get_type_hints(kind)
    hints.pop("place", None)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, where = key_node.value, _place(key_node, path)
        if key not in hints:
            raise InvalidValueError(f"{where} has the unknown key {shortened(key)}; the keys are {', '.join(hints)}.")
        if key in values:
            raise InvalidValueError(f"{where} has the key {key!r} a second time; remove one of them.")
        value = values[key] = _value(hints[key], key, value_node, content[key], path)
        if kind is ServingOptions and key not in ("models", "tls_certificate", "tls_key"):
            # Any registry is something to serve, so that only the value itself may be wrong.
            _located(where, lambda: ServingOptions(**{"registry": "any", key: value}))  # noqa: B023
    return values


def _value(hint: Any, key: str, node: Node, value: Any, path: str) -> Any:
    where = _place(node, path)
    if hint is VersionPolicy:
        # YAML reads a single version as a number.
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidValueError(
                f"{where}: {key} must be such as latest(2), all or 1,3, but got {shortened(value)}."
            )
        return _located(where, lambda: VersionPolicy.parse(str(value)))
    if key == "labels":
        if not isinstance(value, dict) or not all(type(one) is str and type(value[one]) is int for one in value):
            raise InvalidValueError(f"{where}: labels must be such as {{stable: 3}}, but got {shortened(value)}.")
        return value
    if key == "models":
        if not isinstance(value, list):
            raise InvalidValueError(f"{where}: models must be a list, but got {shortened(value)}.")
        return tuple(_model(one, content, path) for one, content in zip(node.value, value, strict=True))
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in kinds:
        return None
    (wanted,) = (kind for kind in kinds if kind is not types.NoneType)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise InvalidValueError(f"{where}: {key} must be {_WORDS[wanted]}, but got {shortened(value)}.")
    return value


def _model(node: Node, content: Any, path: str) -> ServedModel:
    values = _fields(ServedModel, node, content, path)
    where = _place(node, path)
    if "name" not in values:
        raise InvalidValueError(f"{where} has a model without the key 'name'.")
    return _located(where, lambda: ServedModel(**values, place=f"{where}: "))


def _located(where: str, make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from error


def _place(node: Node, path: str) -> str:
    return f"{path}, line {node.start_mark.line + 1}"
