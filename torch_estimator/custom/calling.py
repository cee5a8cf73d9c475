"""Modules whose ``forward`` takes several arguments, called with a batch's features."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def takes_several(module: nn.Module) -> bool:
    """Whether ``forward`` needs more than one argument, or takes any number of them."""
    parameters = inspect.signature(module.forward).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) > 1 or any(one.kind is one.VAR_POSITIONAL for one in needed)


def spread_features(module: nn.Module) -> None:
    """Lets a module be called with a tuple of its arguments, or a dict of them by name, as well as with each."""
    module.register_forward_pre_hook(_spread, with_kwargs=True)


def _spread(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) != 1 or kwargs:
        return args, kwargs
    (features,) = args
    if isinstance(features, Mapping):
        return (), _by_name(module, features)
    return (tuple(features) if isinstance(features, tuple | list) else args), kwargs


def _by_name(module: nn.Module, features: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(module.forward).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(features)
    return {one.name: features[one.name] for one in parameters if one.kind in _NAMED and one.name in features}
