"""Modules whose ``forward`` takes several arguments, called with a batch's features."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def takes_several(module: nn.Module) -> bool:
    """Whether ``forward`` can take more than one argument; what TorchScript made says nothing about that."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:
        return False
    return len(parameters) > 1 or any(one.kind is one.VAR_POSITIONAL for one in parameters)


def _needs_several(parameters: Sequence[inspect.Parameter]) -> bool:
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) > 1 or any(one.kind is one.VAR_POSITIONAL for one in needed)


def _names_them(parameters: Sequence[inspect.Parameter], features: Mapping[str, Any]) -> bool:
    """Whether features are meant for arguments of their names, where one argument alone is needed."""
    named = [one for one in parameters if one.kind in _NAMED]
    return set(features) <= {one.name for one in named} and all(
        one.name in features for one in named if one.default is one.empty
    )


def spread_features(module: nn.Module) -> None:
    """Lets a module be called with a tuple of its arguments, or a dict of them by name, as well as with each."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    several = _needs_several(parameters)

    def spread(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) != 1 or kwargs:
            return args, kwargs
        (features,) = args
        if isinstance(features, Mapping):
            if several or _names_them(parameters, features):
                return (), _by_name(parameters, features)
            return args, kwargs
        return (tuple(features) if several and isinstance(features, tuple | list) else args), kwargs

    module.register_forward_pre_hook(spread, with_kwargs=True)


def _by_name(parameters: Sequence[inspect.Parameter], features: Mapping[str, Any]) -> dict[str, Any]:
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(features)
    return {one.name: features[one.name] for one in parameters if one.kind in _NAMED and one.name in features}
