"""Arguments that a loss or metric of the user may name besides outputs (or predictions) and labels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch_estimator.errors import InvalidValueError

LOSS_ARGUMENTS = ("weights", "features", "module")
METRIC_ARGUMENTS = ("weights", "features")


def batch_arguments(
    what: str, function: Callable[..., Any] | None, names: tuple[str, ...], *, weighted: bool
) -> tuple[str, ...]:
    """Return which of some names a function (None has no arguments) has among its arguments after the first two.

    An argument with a default keeps it, except ``weights`` if the model has a weight column: a function that was
    written before may have an argument of such a name for something else. `what` names the function in the error, such
    as ``"The loss"``.

    >>> def loss(outputs, labels, features, module=None):
    ...     return outputs.sum()
    >>> batch_arguments("The loss", loss, LOSS_ARGUMENTS, weighted=False)
    ('features',)
    """
    found: list[str] = []
    bound = function.keywords if isinstance(function, functools.partial) else {}
    for one in _parameters(function)[2:]:
        if one.name not in names or one.name in bound or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        if one.name == "weights" and not weighted:
            if one.default is one.empty:
                raise InvalidValueError(
                    f"{what} takes weights, but there is no weight column; give weight_column, the name of the feature "
                    "that holds a weight for each row."
                )
        elif one.default is one.empty or one.name == "weights":
            found.append(one.name)
    return tuple(found)


def _parameters(function: Any) -> list[inspect.Parameter]:
    if function is None:
        return []
    try:
        # A module of torch is called through a wrapper, and `forward` has the names.
        return list(inspect.signature(getattr(function, "forward", function)).parameters.values())
    except (TypeError, ValueError):
        return []
