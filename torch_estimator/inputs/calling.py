"""Calling an input function with what it names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch_estimator.errors import InvalidValueError


def call_input_fn(input_fn: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Calls an ``input_fn`` with those of the ``given`` arguments that it names; what a partial binds stays bound.

    As in tf.estimator, ``*args`` and ``**kwargs`` name nothing.

    Raises:
        InvalidValueError: It needs an argument that is not among those given, or takes one of them by position only.
    """
    try:
        parameters = inspect.signature(input_fn).parameters
    except (TypeError, ValueError):
        # Some functions written in C do not tell.
        return input_fn()
    bound = input_fn.keywords if isinstance(input_fn, functools.partial) else {}
    known = f"may take {', '.join(list(given)[:-1])} and {list(given)[-1]}"
    named: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in bound:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise InvalidValueError(f"input_fn {known} by name, but takes {name!r} by position only.")
        if name in given and parameter.kind is not parameter.POSITIONAL_ONLY:
            named[name] = given[name]
        elif parameter.default is parameter.empty:
            raise InvalidValueError(
                f"input_fn {known}, but needs {name!r}; bind it with functools.partial(input_fn, {name}=...) or a "
                "lambda."
            )
    return input_fn(**named)
