"""How a module is called: the features of a batch become the arguments of its ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def spread_features(module: nn.Module) -> None:
    """Register a hook that unpacks a tuple or dict of features into the arguments of the module's ``forward``.

    The features of a batch are one value, but the ``forward`` of a user's module may take them as several arguments. A
    tuple or dict is passed as a single argument if ``forward`` requires only one, unless the keys of the dict are the
    names of its arguments. A module that takes one argument, or that has such a hook already, does not change.
    """
    hooks = module._forward_pre_hooks.values()
    if _takes_several(module) and not any(isinstance(hook, _Spread) for hook in hooks):
        module.register_forward_pre_hook(_Spread(module), with_kwargs=True)


def _takes_several(module: nn.Module) -> bool:
    """Return whether a module's ``forward`` accepts more than one argument; False if unknown, as for TorchScript."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:
        return False
    return len(parameters) > 1 or any(one.kind is one.VAR_POSITIONAL for one in parameters)


class _Spread:
    """Hook that passes the features of a batch as the arguments that a module's ``forward`` names."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = list(inspect.signature(module.forward).parameters.values())
        needed = [one for one in self._parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
        self._several = len(needed) > 1 or any(one.kind is one.VAR_POSITIONAL for one in needed)

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) != 1 or kwargs:
            return args, kwargs
        (features,) = args
        if isinstance(features, Mapping):
            if self._several or _are_argument_names(features, self._parameters):
                return (), _keyword_arguments(self._parameters, features)
            return args, kwargs
        return (tuple(features) if self._several and isinstance(features, tuple | list) else args), kwargs


def _are_argument_names(features: Mapping[str, Any], parameters: Sequence[inspect.Parameter]) -> bool:
    """Return whether all keys of the features are names of parameters, and no required parameter is missing."""
    named = [one for one in parameters if one.kind in _NAMED]
    return set(features) <= {one.name for one in named} and all(
        one.name in features for one in named if one.default is one.empty
    )


def _keyword_arguments(parameters: Sequence[inspect.Parameter], features: Mapping[str, Any]) -> dict[str, Any]:
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(features)
    return {one.name: features[one.name] for one in parameters if one.kind in _NAMED and one.name in features}
