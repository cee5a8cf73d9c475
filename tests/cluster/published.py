"""Check manifests with the published Python models of Kubernetes and Kubeflow."""

from __future__ import annotations

import re
from typing import Any

import kubernetes.client.models
from kubeflow.training import models

_SCALARS = {"str": str, "int": int, "bool": bool, "float": float}


def built(value: Any, kind: str, where: str) -> Any:
    """Return the model object that a part of a manifest describes.

    Args:
        value: The part of the manifest.
        kind: Type of the part in the models' notation, such as ``list[V1Container]``.
        where: Place of the part, for messages.

    Raises:
        ValueError: The part has another type, an unknown field, or lacks a required field.
    """
    if inside := re.fullmatch(r"list\[(.+)\]", kind):
        return [built(one, inside[1], f"{where}[{index}]") for index, one in enumerate(_typed(value, list, where))]
    if inside := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return {key: built(one, inside[1], f"{where}.{key}") for key, one in _typed(value, dict, where).items()}
    if kind == "object":
        return value
    if kind in _SCALARS:
        return _typed(value, _SCALARS[kind], where)
    return _built_model(_typed(value, dict, where), kind, where)


def _built_model(fields: dict[str, Any], kind: str, where: str) -> Any:
    model = getattr(models, kind, None) or getattr(kubernetes.client.models, kind)
    unknown = fields.keys() - model.attribute_map.values()
    if unknown:
        raise ValueError(f"{where} has no field {', '.join(sorted(unknown))}")
    parts = {
        attribute: built(fields[key], model.openapi_types[attribute], f"{where}.{key}")
        for attribute, key in model.attribute_map.items()
        if key in fields
    }
    try:
        return model(**parts)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _typed(value: Any, wanted: type, where: str) -> Any:
    if type(value) is not wanted:
        raise ValueError(f"{where} must be {wanted.__name__}, but is {value!r}")
    return value
